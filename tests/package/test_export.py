"""What an export holds: one instance, baked in, and nothing of fpenv's own."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from fpenv.cli import main
from fpenv.errors import ConfigError
from fpenv.export import export_task
from fpenv.instance import make_instance
from fpenv.task import load_task

COIN = Path(__file__).parent.parent / "packages" / "coin"


def test_inputs_and_references_of_the_instance_are_baked_in(tmp_path: Path) -> None:
    instance = make_instance(load_task(COIN), 7)
    task = load_task(export_task(instance, tmp_path / "coin-7", "harbor").path)
    assert make_instance(task).inputs == {"data/sheet.txt": b"a coin\n"}
    assert json.loads((task.verifier / "references.json").read_text()) == instance.parts.references
    assert task.verifier.name == "tests"
    assert task.deliverables == ("result.md",)
    assert task.time_limit_s == 600
    assert [line.name for line in task.rubric] == ["no_fabrication", "toss_budget", "statistics", "literature"]


def test_paths_follow_the_layout_and_logs_stay(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(COIN, tmp_path / "coin"))
    (folder / "oracle" / "solve.sh").write_text("cat /oracle/a.py '/verifier'; ls /my/oracle /oracles /logs/verifier\n")
    exported = export_task(make_instance(load_task(folder)), tmp_path / "out", "harbor").path
    assert (exported / "tests" / "test.sh").read_text().splitlines()[1:4:2] == [
        "python3 -m pytest /tests/test_outputs.py",
        "echo $((code == 0)) > /logs/verifier/reward.txt",
    ]
    assert (exported / "solution" / "solve.sh").read_text() == (
        "cat /solution/a.py '/tests'; ls /my/oracle /oracles /logs/verifier\n"
    )


@pytest.mark.parametrize("form", ["harbor", "benchflow"])
def test_nothing_that_is_fpenvs_own_goes_along_and_the_losses_are_told(tmp_path: Path, form: Any) -> None:
    exported = export_task(make_instance(load_task(COIN)), tmp_path / "coin", form)
    names = {file.name for file in exported.path.rglob("*")}
    assert not names & {"instance.py", "instruments.py", "evidence.py", "literature.json", "expected.json", "cases"}
    assert len(exported.losses) == 6
    assert exported.losses[0].startswith("instruments: ")


def test_an_export_overwrites_nothing(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("x")
    with pytest.raises(ConfigError, match="expected a new or empty folder for the package, found files in it"):
        export_task(make_instance(load_task(COIN)), tmp_path, "harbor")


def test_the_command_writes_the_package_and_lists_what_stayed_behind(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    argv = ["tasks", "export", str(COIN), "--format", "benchflow", "--instance", "3", "--to", str(tmp_path / "coin")]
    assert main(argv) == 0
    shown = capsys.readouterr().out
    assert f"wrote {tmp_path / 'coin'}" in shown
    assert "left behind: instruments" in shown
    assert load_task(tmp_path / "coin").front.metadata.title == "The bias of a coin"
