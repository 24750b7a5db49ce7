"""Is a task fit to be used? Its package is complete, its oracle solves it, idleness gets nothing, and every
case in `cases/accept` and `cases/reject` gets the grade that its `case.json` states, for the reason it states.

A case is a folder with `case.json` and, in it or named by it (relative paths): `deliverables/` and
`trajectory.jsonl`. `case.json`:

    {"description": ..., "instance": "canonical" or a seed, "deliverables": path, "trajectory": path,
     "expect": {"passed": D, "failed_tests": [...], "failed_blockers": [...], "s_final_min": ..., "s_final_max": ...}}
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field, ValidationError

from fpenv.agents.agent import Agent, play
from fpenv.agents.noop import NoopAgent
from fpenv.agents.oracle import OracleAgent
from fpenv.env import FrontierPhysicsEnv
from fpenv.errors import TaskError
from fpenv.grading.evidence import EvidenceReviewer
from fpenv.grading.grade import grade_episode
from fpenv.instance import make_instance
from fpenv.placement import place
from fpenv.records import Grade, Record, Step
from fpenv.sandbox.sandbox import Collected
from fpenv.store import read_files
from fpenv.task import Task
from fpenv.tools.library import load_library

ORACLE_AT_LEAST = 90.0


@dataclass(frozen=True)
class CheckResult:
    """One check: its name, whether it held, and what was seen."""

    name: str
    ok: bool
    detail: str


class Expectation(Record):
    """The grade that a case must get. Lists are compared as sets, exactly."""

    passed: bool
    failed_tests: tuple[str, ...] = ()
    failed_blockers: tuple[str, ...] = ()
    s_final_min: float = Field(default=0.0, ge=0, le=100)
    s_final_max: float = Field(default=100.0, ge=0, le=100)


class CaseFile(Record):
    """`case.json`."""

    description: str
    instance: int | str = "canonical"
    deliverables: str = "deliverables"
    trajectory: str = "trajectory.jsonl"
    expect: Expectation


def check_task(task: Task, *, instances: Sequence[int] = (), record: bool = False) -> Iterator[CheckResult]:
    """Run every check of one task, cheapest first. `record` writes expected.json from the oracle's run."""
    yield from check_package(task)
    yield check_noop(task)
    yield from check_cases(task)
    yield check_oracle(task, "canonical", record=record)
    for seed in instances:
        yield check_oracle(task, seed)


def check_package(task: Task) -> Iterator[CheckResult]:
    """The files are there and fit one another."""
    for name in (
        "task.md",
        "proposal.pdf",
        "oracle/solve.sh",
        "verifier/test.sh",
        "environment/Dockerfile",
        "evidence.py",
    ):
        yield CheckResult(f"package/{name}", (task.path / name).is_file(), "")
    module = task.path / "evidence.py"
    source = module.read_text(encoding="utf-8") if module.is_file() else ""
    lost = [line.name for line in task.rubric if f"def {line.name.replace('-', '_')}(" not in source]
    yield CheckResult("package/every criterion has a check", not lost, ", ".join(lost))
    blockers = sum(line.blocker for line in task.rubric)
    counts = f"{blockers} blockers, {len(task.rubric) - blockers} non-blockers"
    yield CheckResult("package/rubric size", blockers >= 2 and len(task.rubric) - blockers >= 6, counts)
    works = load_library(task.path)
    yield CheckResult("package/literature", len(works) >= 15, f"{len(works)} works")


def check_noop(task: Task) -> CheckResult:
    """Submitting at once is graded, and is worth nothing."""
    grade = _play(task, NoopAgent(), "canonical")
    return CheckResult("noop scores 0", grade.s_final == 0.0, _summary(grade))


def check_oracle(task: Task, instance: int | str, *, record: bool = False) -> CheckResult:
    """The oracle solves an instance."""
    grade = _play(task, OracleAgent(task), instance)
    if record:
        tests = {"tests": sorted(test.test_id for test in grade.verifier.tests)}
        (task.path / "expected.json").write_text(json.dumps(tests, indent=2) + "\n", encoding="utf-8")
    ok = grade.s_final is not None and grade.s_final >= ORACLE_AT_LEAST
    return CheckResult(f"oracle solves instance {instance}", ok, _summary(grade))


def check_cases(task: Task) -> Iterator[CheckResult]:
    """Each case gets the grade it states."""
    for file in sorted(task.path.glob("cases/*/*/case.json")):
        yield check_case(task, file)


def check_case(task: Task, file: Path) -> CheckResult:
    """Grade one case and compare."""
    name = f"{file.parent.parent.name}/{file.parent.name}"
    try:
        case = CaseFile.model_validate_json(file.read_bytes())
    except ValidationError as error:
        raise TaskError(f"{file}: {error.errors()[0]['loc']}: {error.errors()[0]['msg']}") from error
    grade = _grade(task, case, file.parent)
    wrong = _differences(case.expect, grade)
    return CheckResult(name, not wrong, "; ".join(wrong) or _summary(grade))


def _grade(task: Task, case: CaseFile, folder: Path) -> Grade:
    instance = make_instance(task, case.instance)
    placed = place(task)
    lines = (folder / case.trajectory).read_bytes().splitlines()
    return grade_episode(
        task=task,
        instance=instance.name,
        inputs=instance.inputs,
        references=instance.parts.references,
        collected=Collected(read_files(folder / case.deliverables), {}),
        steps=tuple(Step.model_validate_json(line) for line in lines),
        backend=placed.backend,
        runtime=placed.runtime,
        reviewer=EvidenceReviewer(),
    )


def _differences(expect: Expectation, grade: Grade) -> list[str]:
    failed = sorted(test.test_id for test in grade.verifier.tests if test.outcome != "passed")
    wrong = []
    if grade.s_final is None:
        wrong.append(f"expected a graded case, got ungraded: {grade.reason}")
    elif not expect.s_final_min <= grade.s_final <= expect.s_final_max:
        wrong.append(f"S_final: expected {expect.s_final_min} to {expect.s_final_max}, got {grade.s_final}")
    if grade.verifier.passed != expect.passed:
        wrong.append(f"D: expected {expect.passed}, got {grade.verifier.passed}")
    if failed != sorted(expect.failed_tests):
        wrong.append(f"failed tests: expected {sorted(expect.failed_tests)}, got {failed}")
    if sorted(grade.failed_blockers) != sorted(expect.failed_blockers):
        wrong.append(f"failed blockers: expected {sorted(expect.failed_blockers)}, got {sorted(grade.failed_blockers)}")
    return wrong


def _play(task: Task, agent: Agent, instance: int | str) -> Grade:
    with tempfile.TemporaryDirectory(prefix="fpenv-check-") as folder:
        env = FrontierPhysicsEnv(task.path, record_to=folder)
        return play(env, agent, instance=instance)[0]


def _summary(grade: Grade) -> str:
    score = "ungraded" if grade.s_final is None else f"{grade.s_final:.1f}"
    failed = [test.test_id for test in grade.verifier.tests if test.outcome != "passed"]
    return f"S_final {score}, tests {grade.tests_passed}/{grade.tests_total}" + (
        f", failed: {', '.join([*failed, *grade.failed_blockers])}" if failed or grade.failed_blockers else ""
    )
