"""The grade: verifier and review under equation 1 of the paper.

    S_final = 100 sum(w_i s_i) / (2 sum w_i)   over non-blockers, if D = 1 and every blocker passes; else 0

| verifier | review   | failed blocker | grade                                                      |
|----------|----------|----------------|------------------------------------------------------------|
| ungraded | any      | any            | ungraded                                                   |
| D = 0    | any      | any            | 0: the equation gives 0 whatever the review would have said |
| D = 1    | ungraded |                | ungraded                                                   |
| D = 1    | graded   | yes            | 0                                                          |
| D = 1    | graded   | no             | S_final; 100 where the rubric has no non-blockers          |

Ungraded means None, never a number. A grade depends on the deliverables, the trajectory and the task alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fpenv.errors import ReviewError
from fpenv.grading.reviewer import NoReviewer, ReviewCase, Reviewer
from fpenv.grading.verifier import VerifierJob, run_verifier
from fpenv.records import Criterion, Grade, Review, Step, TestOutcome, VerifierResult
from fpenv.rubric import score_rubric
from fpenv.sandbox.sandbox import Backend, Collected
from fpenv.store import canonical_json
from fpenv.task import Task
from fpenv.untrusted import show


@dataclass(frozen=True)
class Subject:
    """What is graded: names for the record, and the rubric to weigh by."""

    task: str
    task_digest: str
    instance: str
    rubric: tuple[Criterion, ...]

    @classmethod
    def of(cls, task: Task, instance: str) -> Subject:
        return cls(task.name, task.digest, instance, task.rubric)


def grade_episode(
    *,
    task: Task,
    instance: str,
    inputs: Mapping[str, bytes],
    references: Mapping[str, Any],
    collected: Collected,
    steps: Sequence[Step],
    backend: Backend,
    runtime: Path | None,
    reviewer: Reviewer | None,
) -> Grade:
    """Grade frozen deliverables: verifier and reviewer each in a fresh sandbox of `backend`.

    Without a reviewer the rubric stays ungraded. What breaks on the way is an ungraded grade with the
    reason; only a TaskError or a ConfigError is raised.
    """
    job = VerifierJob(
        folder=task.verifier,
        mount=task.layout.verifier_mount,
        cwd=task.verifier_cwd,
        base=task.base,
        layer=task.layer,
        env=task.verifier_env,
        inputs=inputs,
        deliverables=collected.files,
        references=references or None,
        expected=task.expected_tests,
        control=task.control,
        runtime=runtime,
        limits=task.limits,
        timeout_s=task.verifier_timeout_s,
    )
    case = ReviewCase(task, tuple(steps), collected, backend, runtime, inputs, references)
    review = apply_reviewer(reviewer or NoReviewer(), case)
    return combine(Subject.of(task, instance), run_verifier(job, backend), review, collected)


def ungraded(task: Task, instance: str, reason: str) -> Grade:
    """The grade of an episode that the infrastructure ended: nothing was verified or reviewed."""
    reason = show(reason)
    tests = tuple(TestOutcome(test_id=name, outcome="missing") for name in task.expected_tests or ())
    verifier = VerifierResult(status="ungraded", passed=False, tests=tests, reason=reason)
    review = Review(status="ungraded", reviewer="none", verdicts=(), reason=reason)
    return combine(Subject.of(task, instance), verifier, review, Collected({}, {}))


def apply_reviewer(reviewer: Reviewer, case: ReviewCase) -> Review:
    """Let a reviewer judge, and hold it to one verdict a criterion; anything else is an ungraded review."""
    if not case.criteria:
        reason = "the package has no rubric: nothing was reviewed"
        return Review(status="ungraded", reviewer=reviewer.name, verdicts=(), reason=reason)
    try:
        review = reviewer.review(case)
    except ReviewError as error:
        return Review(status="ungraded", reviewer=reviewer.name, verdicts=(), reason=str(error))
    if review.status == "ungraded":
        return review
    expected = [criterion.name for criterion in case.criteria]
    got = [verdict.criterion for verdict in review.verdicts]
    blockers = {criterion.name for criterion in case.criteria if criterion.blocker}
    if got != expected:
        reason = f"reviewer {reviewer.name}: expected verdicts on {', '.join(expected)}, got {', '.join(got) or 'none'}"
    elif bad := [v.criterion for v in review.verdicts if v.criterion in blockers and v.score > 1]:
        reason = f"reviewer {reviewer.name}: criterion {bad[0]}: expected 0 or 1 for a blocker, got 2"
    else:
        return review
    return Review(status="ungraded", reviewer=review.reviewer, verdicts=(), reason=reason)


def combine(subject: Subject, verifier: VerifierResult, review: Review, collected: Collected) -> Grade:
    """Combine by equation 1; see the module's table."""
    score, failed = score_rubric(subject.rubric, review.verdicts) if review.status == "graded" else (None, ())
    s_final, reason = _final(verifier, review, score, failed)
    return Grade(
        task=subject.task,
        task_digest=subject.task_digest,
        instance=subject.instance,
        status="ungraded" if s_final is None else "graded",
        s_final=s_final,
        reason=reason,
        verifier=verifier,
        review=review,
        tests_passed=sum(test.outcome == "passed" for test in verifier.tests),
        tests_total=len(verifier.tests),
        failed_blockers=failed,
        rubric_score=score,
        deliverables={name: hashlib.sha256(data).hexdigest() for name, data in sorted(collected.files.items())},
        refused_deliverables=dict(sorted(collected.refused.items())),
    )


def grade_bytes(grade: Grade) -> bytes:
    """The canonical bytes of a grade: equal grades, equal bytes."""
    return canonical_json(grade)


def _final(
    verifier: VerifierResult, review: Review, score: float | None, failed: tuple[str, ...]
) -> tuple[float | None, str]:
    if verifier.status == "ungraded":
        return None, verifier.reason
    if not verifier.passed:
        first = next((test.test_id for test in verifier.tests if test.outcome != "passed"), "")
        return 0.0, verifier.reason or f"hidden test {first} did not pass"
    if review.status == "ungraded":
        return None, review.reason
    if failed:
        return 0.0, f"failed blockers: {', '.join(failed)}"
    if score is None:
        return 100.0, "every test and blocker passed; the rubric has no non-blockers to weigh"
    return score, ""
