"""The task checker can fail: each thing that it promises to notice is shown to it."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from fpenv.errors import TaskError
from fpenv.task import load_task
from fpenv.testing.task_check import check_case, check_noop, check_oracle, check_package

COIN = Path(__file__).parent.parent / "packages" / "coin"
BIAS = "test_outputs.py::test_bias"


@pytest.fixture
def package(tmp_path: Path) -> Path:
    return Path(shutil.copytree(COIN, tmp_path / "coin"))


def write_case(package: Path, result: str, **expect: Any) -> Path:
    folder = package / "cases" / "reject" / "one"
    (folder / "deliverables").mkdir(parents=True)
    (folder / "deliverables" / "result.md").write_text(result)
    (folder / "trajectory.jsonl").write_text("")
    (folder / "case.json").write_text(json.dumps({"description": "d", "expect": expect}))
    return folder / "case.json"


def test_the_oracle_and_noop_are_checked_by_playing(package: Path) -> None:
    task = load_task(package)
    assert check_oracle(task, 2).ok
    assert check_noop(task).ok


def test_an_oracle_that_does_not_solve_its_task_is_noticed(package: Path) -> None:
    (package / "oracle" / "solve.sh").write_text("echo bias: 0.2 > result.md\n")
    result = check_oracle(load_task(package), "canonical")
    assert not result.ok
    assert BIAS in result.detail


def test_record_writes_the_tests_that_the_oracles_run_reported(package: Path) -> None:
    (package / "expected.json").unlink()
    assert check_oracle(load_task(package), "canonical", record=True).ok
    assert len(json.loads((package / "expected.json").read_text())["tests"]) == 2


def test_a_case_that_fails_by_its_named_test_and_blocker_passes(package: Path) -> None:
    file = write_case(package, "bias: 0.2", passed=False, failed_tests=[BIAS], failed_blockers=["no_fabrication"])
    assert check_case(load_task(package), file).ok


@pytest.mark.parametrize(
    ("result", "expect", "complaint"),
    [
        ("bias: 0.7", {"passed": False, "failed_tests": [BIAS]}, "D: expected False, got True"),
        ("bias: 0.2", {"passed": False}, "failed tests: expected"),
        ("bias: 0.7", {"passed": True}, "failed blockers: expected"),
        ("bias: 0.7", {"passed": True, "s_final_min": 50}, "S_final: expected 50.0 to 100.0, got 0.0"),
    ],
)
def test_a_case_that_gets_another_grade_than_it_states_is_noticed(
    package: Path, result: str, expect: dict[str, Any], complaint: str
) -> None:
    check = check_case(load_task(package), write_case(package, result, **expect))
    assert not check.ok
    assert complaint in check.detail


def test_a_criterion_without_a_check_is_noticed(package: Path) -> None:
    (package / "evidence.py").write_text("def no_fabrication(case): ...\n")
    failed = {result.name: result.detail for result in check_package(load_task(package)) if not result.ok}
    assert failed["package/every criterion has a check"] == "toss_budget, statistics, literature"


def test_a_case_file_with_a_wrong_key_is_the_authors_error(package: Path) -> None:
    file = write_case(package, "bias: 0.7", passed=True, colour="red")
    with pytest.raises(TaskError, match="colour"):
        check_case(load_task(package), file)
