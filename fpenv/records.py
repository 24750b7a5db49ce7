"""The records that pass between the parts: frozen, validated, and equal in memory and on disk.

Nothing here does anything. Behaviour takes records and returns records; a record is written with
`model_dump(mode="json")` and read back with `model_validate`, unchanged.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class Record(BaseModel):
    """Base of all records: frozen, and an unknown field is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


# ----------------------------------------------------------------------------------------- the episode
class Action(Record):
    """What an agent does: the name of a tool and its arguments."""

    tool: str
    arguments: dict[str, Any]


class Budget(Record):
    """What is left. Units: steps, whole wall-clock seconds (rounded up), instrument shots (negative if overspent)."""

    steps_left: int
    seconds_left: int
    shots_left: int


class InstrumentCall(Record):
    """One metered call of an instrument, as the host saw it. A refused call has no result and costs nothing."""

    instrument: str
    operation: str
    arguments: dict[str, Any]
    result: dict[str, Any] | None
    refusal: str | None = None
    shots: int = 0
    lab_time_s: float = 0.0
    shots_total: int = 0


class Search(Record):
    """One query of the literature, with the keys of the works that were returned."""

    query: str
    hits: tuple[str, ...]


class ToolResult(Record):
    """What a tool gave back: text for the agent, and the same as data for programs."""

    output: str
    failed: bool = False
    data: dict[str, Any] = Field(default_factory=dict)


class Step(Record):
    """One action and all that it caused. Times are seconds since the start of the episode, host clock."""

    step_id: int
    parent_id: int | None
    tool: str
    arguments: str
    result: ToolResult
    budget: Budget
    instrument_calls: tuple[InstrumentCall, ...] = ()
    searches: tuple[Search, ...] = ()
    started_s: float
    ended_s: float


Stop = Literal["submitted", "steps", "time", "sandbox_ended", "infrastructure"]
"""Why an episode ended. `sandbox_ended` is the agent's doing; `infrastructure` never is, and is ungraded."""


# ----------------------------------------------------------------------------------------- the grade
class Criterion(Record):
    """One line of a rubric. A blocker is scored 0 or 1, a non-blocker 0, 1 or 2; `weight` is 1 to 10."""

    name: str
    blocker: bool
    weight: int = Field(ge=1, le=10)
    description: str
    guidance: str = ""


class Evidence(Record):
    """A quotation and where it stands: `paper.pdf p. 3`, `result.md line 4`, `step 12`, `instrument call 7`."""

    source: str
    quote: str


class Verdict(Record):
    """A reviewer's score for one criterion, with what it rests on."""

    criterion: str
    score: int = Field(ge=0, le=2)
    reason: str
    evidence: tuple[Evidence, ...] = ()


class TestOutcome(Record):
    """One hidden test: `missing` means that it was expected and did not report."""

    test_id: str
    outcome: Literal["passed", "failed", "error", "skipped", "missing"]
    message: str = ""


class VerifierResult(Record):
    """The result D of the hidden tests. `status` is ungraded when the verifier itself could not be trusted."""

    status: Literal["graded", "ungraded"]
    passed: bool
    tests: tuple[TestOutcome, ...]
    reason: str = ""


class Review(Record):
    """The rubric applied: one verdict a criterion, in the rubric's order; or ungraded with the reason."""

    status: Literal["graded", "ungraded"]
    reviewer: str
    verdicts: tuple[Verdict, ...]
    reason: str = ""


class Grade(Record):
    """Verifier and review together. `s_final` is in [0, 100], or None when ungraded: never a made-up number.

    `rubric_score` (0 to 100) is the weighted non-blocker score before the gates, for partial credit.
    The same deliverables give the same bytes: nothing here depends on time, place or order.
    """

    task: str
    task_digest: str
    instance: str
    status: Literal["graded", "ungraded"]
    s_final: float | None
    reason: str
    verifier: VerifierResult
    review: Review
    tests_passed: int
    tests_total: int
    failed_blockers: tuple[str, ...]
    rubric_score: float | None
    deliverables: dict[str, str]
    refused_deliverables: dict[str, str] = Field(default_factory=dict)
