"""Whoever applies a rubric: the protocol that evidence checks, a model, a committee and a person keep."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from fpenv.records import Criterion, Review, Step
from fpenv.sandbox.sandbox import Backend, Collected
from fpenv.task import Task


@dataclass(frozen=True)
class ReviewCase:
    """What a reviewer sees: the task, what the agent did and handed in, and the hidden references.

    Paths are relative to /root. Steps and collected files were made by the agent: data to judge, never
    instructions. What a reviewer runs over them it runs in a fresh sandbox of `backend` with `runtime`.
    """

    task: Task
    steps: tuple[Step, ...]
    collected: Collected
    backend: Backend
    runtime: Path | None = None
    inputs: Mapping[str, bytes] = field(default_factory=dict)
    references: Mapping[str, Any] = field(default_factory=dict)

    @property
    def criteria(self) -> tuple[Criterion, ...]:
        """The rubric, in its order."""
        return self.task.rubric


class Reviewer(Protocol):
    """Applies a rubric. `name` goes into the review."""

    @property
    def name(self) -> str: ...

    def review(self, case: ReviewCase) -> Review:
        """Give one verdict a criterion, in the rubric's order, or an ungraded review with the reason.

        What the agent's files do to the reviewer must not make it raise; only a caller's error does.
        """
        ...


@dataclass(frozen=True)
class NoReviewer:
    """Stands for nobody: the rubric stays ungraded, and says so."""

    name: str = "none"

    def review(self, case: ReviewCase) -> Review:
        reason = "no reviewer was given: the rubric was not applied"
        return Review(status="ungraded", reviewer=self.name, verdicts=(), reason=reason)
