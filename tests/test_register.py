"""Gymnasium ids for folders of packages."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import gymnasium
import pytest
from gymnasium.envs.registration import registry

from fpenv import register_tasks
from fpenv.cli import main
from fpenv.errors import ConfigError

PACKAGES = Path(__file__).parent / "packages"


@pytest.fixture(autouse=True)
def _registry_as_before() -> Iterator[None]:
    before = dict(registry)
    yield
    registry.clear()
    registry.update(before)


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    for name in ("boxed", "harbor"):
        shutil.copytree(PACKAGES / name, tmp_path / "suite" / name)
    (tmp_path / "suite" / ".git").mkdir()
    (tmp_path / "suite" / "README.md").write_text("x")
    return tmp_path / "suite"


def test_a_folder_of_packages_gets_ids_and_doing_it_twice_does_no_harm(suite: Path) -> None:
    assert register_tasks(suite) == ["FrontierPhysics/boxed", "FrontierPhysics/harbor"]
    assert register_tasks(suite) == ["FrontierPhysics/boxed", "FrontierPhysics/harbor"]
    env = gymnasium.make("FrontierPhysics/harbor", reward="verifier", max_steps=3)
    assert env.unwrapped.task.path == suite / "harbor"
    env.close()


def test_a_namespace_of_ones_own_keeps_suites_apart(suite: Path, tmp_path: Path) -> None:
    register_tasks(suite)
    other = Path(shutil.copytree(suite, tmp_path / "other"))
    assert register_tasks(other, namespace="mine") == ["mine/boxed", "mine/harbor"]
    assert gymnasium.spec("mine/boxed").kwargs["task"] == str(other / "boxed")


def test_bad_packages_and_taken_names_are_one_error_and_nothing_is_registered(suite: Path, tmp_path: Path) -> None:
    (suite / "boxed" / "task.md").write_text("no frontmatter")
    shutil.copytree(PACKAGES / "coin", suite / "rydberg-ising-critical-point")
    (suite / "empty").mkdir()
    (suite / "empty" / "task.toml").write_text("[broken")
    with pytest.raises(ConfigError, match="3 packages cannot be registered") as caught:
        register_tasks(suite)
    for text in (
        "boxed/task.md: expected YAML frontmatter",
        "empty/task.toml: it is not TOML",
        "FrontierPhysics/rydberg-ising-critical-point is taken already, by ",
    ):
        assert text in str(caught.value)
    assert "FrontierPhysics/harbor" not in registry


def test_a_name_that_makes_no_id_is_told(suite: Path) -> None:
    (suite / "boxed").rename(suite / "a b")
    with pytest.raises(ConfigError, match="expected a folder name that makes a Gymnasium id"):
        register_tasks(suite)


@pytest.mark.parametrize("folder", ["nowhere", "empty"])
def test_a_folder_without_packages_is_told(tmp_path: Path, folder: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="expected a folder of task packages"):
        register_tasks(tmp_path / folder)


def test_strict_registering_wants_published_content(suite: Path) -> None:
    with pytest.raises(ConfigError, match=r"no registry\.json in the 3 folders above"):
        register_tasks(suite, strict=True)


def test_a_package_anywhere_is_made_by_its_path_in_a_fresh_process() -> None:
    made = f"gymnasium.make('fpenv:FrontierPhysics/task', path={str(PACKAGES / 'boxed')!r})"
    code = f"import gymnasium; print({made}.spec.id)"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "FrontierPhysics/task\n", "")


def test_a_package_needs_its_path() -> None:
    with pytest.raises(ConfigError, match="expected path=FOLDER of a task package, got none"):
        gymnasium.make("FrontierPhysics/task")


def test_the_command_line_plays_and_shows_any_package(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    harbor = str(PACKAGES / "harbor")
    assert main(["run", harbor, "--agent", "oracle", "--out", str(tmp_path)]) == 3
    assert "rubric ungraded: the package has no rubric" in capsys.readouterr().out
    assert main(["run", harbor, "--agent", "noop", "--out", str(tmp_path)]) == 0
    assert main(["tasks", "show", harbor]) == 0
    shown = capsys.readouterr().out
    assert "note: image python:3.11-slim-bookworm is not used" in shown
    assert "every new file" in shown
