"""The oracle's recorded work on the canonical instance: what tells a broken check from a breaking submission."""

from __future__ import annotations

from dataclasses import replace

from fpenv.grading.reviewer import ReviewCase
from fpenv.instance import make_instance
from fpenv.records import Step
from fpenv.sandbox.sandbox import Collected


def oracle_case(case: ReviewCase) -> ReviewCase | None:
    """The same review over the oracle's work, or None where the task has none on record.

    It lies in `cases/accept/oracle`: `deliverables/`, and `trajectory.jsonl` where there is one.
    """
    if case.task.control is None:
        return None
    instance = make_instance(case.task)
    trajectory = case.task.path / "cases" / "accept" / "oracle" / "trajectory.jsonl"
    lines = trajectory.read_bytes().splitlines() if trajectory.is_file() else []
    return replace(
        case,
        steps=tuple(Step.model_validate_json(line) for line in lines),
        collected=Collected(case.task.control, {}),
        inputs=instance.inputs,
        references=instance.parts.references,
    )
