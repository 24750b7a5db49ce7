"""The reviewer that runs a task's evidence checks, in a fresh sandbox that only reads.

The sandbox holds the trajectory, the deliverables, the inputs, the references, `evidence.py` and the
library it imports (`review.py`); what comes back is read strictly. A paper that cannot be read is no failure:
the checks see an empty paper and score it.

A check that crashes, runs past its processor time or gives no verdict is tried once more on the oracle's work,
as the verifier is. If it ends there, what was handed in kept it from its end, and its score is 0; if not, or where
a task has no oracle's work on record, it is the check's bug, and the whole review is ungraded with the
criterion's name. So nobody can have a bad grade masked by breaking a check.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files as package_files
from typing import Any

from fpenv.errors import ReviewError, SandboxError, SandboxGone
from fpenv.grading.control import oracle_case
from fpenv.grading.reviewer import ReviewCase
from fpenv.records import Criterion, Evidence, Review, Verdict
from fpenv.sandbox.sandbox import Limits, SandboxSpec
from fpenv.store import check_name, jsonable
from fpenv.untrusted import Untrusted, parse_json, show

FOLDER = "/review"
RUNNER = "import sys; sys.path.insert(0, '/review'); import review; review.main('/review', sys.argv[1])"
MAX_ANSWER_BYTES = 8 << 20
MAX_QUOTES = 20
QUOTE_LIMIT = 500
REASON_LIMIT = 2000
# More than the checks need, so that what an agent hands in cannot exhaust its reviewer.
LIMITS = Limits(memory_bytes=4 << 30, disk_bytes=256 << 20, processes=64)
ENVIRONMENT = {"HOME": "/tmp", "PYTHONHASHSEED": "0"}


@dataclass(frozen=True)
class EvidenceReviewer:
    """Applies a task's evidence.py. Times are for all checks together, and for one criterion's."""

    timeout_s: float = 300.0
    check_time_s: float = 30.0
    name: str = "evidence"

    def review(self, case: ReviewCase) -> Review:
        return review_by_evidence(case, self)


def review_by_evidence(case: ReviewCase, reviewer: EvidenceReviewer) -> Review:
    """Run the checks, once more on the oracle's work where one failed. Same case, same review, byte for byte."""
    try:
        verdicts = _judge(case, reviewer)
    except ReviewError as error:
        reason = str(error)
    except SandboxError as error:
        reason = f"infrastructure: the reviewer's sandbox failed: {show(str(error), 500)}"
    else:
        return Review(status="graded", reviewer=reviewer.name, verdicts=verdicts)
    return Review(status="ungraded", reviewer=reviewer.name, verdicts=(), reason=reason)


def _judge(case: ReviewCase, reviewer: EvidenceReviewer) -> tuple[Verdict, ...]:
    findings = _attempt(case, reviewer)
    failures = [finding for finding in findings if isinstance(finding, ReviewError)]
    control = oracle_case(case) if failures else None
    if failures and control is None:
        raise failures[0]
    controls = _attempt(control, reviewer) if control else findings
    return tuple(map(_settle, case.criteria, findings, controls))


def _settle(criterion: Criterion, finding: Verdict | ReviewError, control: Verdict | ReviewError) -> Verdict:
    """The verdict; 0 for a check that fails on this work alone. Raises ReviewError for one that fails on any."""
    if isinstance(finding, Verdict):
        return finding
    if isinstance(control, ReviewError):
        raise finding
    reason = f"what was handed in kept this check from its end; on the oracle's work it ends ({finding})"
    return Verdict(criterion=criterion.name, score=0, reason=show(reason, REASON_LIMIT))


def _attempt(case: ReviewCase, reviewer: EvidenceReviewer) -> list[Verdict | ReviewError]:
    """One verdict a criterion, or why there is none."""
    try:
        return parse_findings(_run(case, reviewer), case.criteria)
    except ReviewError as error:
        return [error] * len(case.criteria)


def parse_findings(data: bytes, criteria: Sequence[Criterion]) -> list[Verdict | ReviewError]:
    """Read the runner's answer: a verdict, or why there is none, for every criterion in the rubric's order.

    Raises ReviewError for an answer that is none.
    """
    try:
        raw = parse_json(data, max_bytes=MAX_ANSWER_BYTES)
    except Untrusted as error:
        raise ReviewError(f"evidence checks: {error}") from error
    if isinstance(raw, dict) and set(raw) == {"crash"}:
        raise ReviewError(f"evidence checks could not be loaded: {show(str(raw['crash']), 500)}")
    findings = raw.get("findings") if isinstance(raw, dict) else None
    if not isinstance(findings, list) or len(findings) != len(criteria):
        raise ReviewError(f"evidence checks: expected {len(criteria)} findings, got {show(repr(raw), 100)}")
    return [_verdict_or_failure(item, criterion) for item, criterion in zip(findings, criteria, strict=True)]


def _run(case: ReviewCase, reviewer: EvidenceReviewer) -> bytes:
    out = f"/tmp/findings-{secrets.token_hex(16)}.json"
    command = ["python3", "-s", "-P", "-B", "-c", RUNNER, out]
    contents = _contents(case, reviewer)
    spec = SandboxSpec(runtime=case.runtime, read_only={FOLDER: contents}, limits=LIMITS)
    try:
        with case.backend.start(spec) as sandbox:
            result = sandbox.exec(command, timeout_s=reviewer.timeout_s, cwd="/", env=ENVIRONMENT)
            collected = sandbox.collect([out], max_bytes=MAX_ANSWER_BYTES)
    except SandboxGone as gone:
        if not gone.by_agent:
            raise
        raise ReviewError("evidence checks ended their own sandbox: they use more than its limits") from gone
    if out in collected.files:
        return collected.files[out]
    how = f"ran past {reviewer.timeout_s:g} s" if result.timed_out else f"exited with {result.exit_code}"
    said = show(result.stderr[-1000:].decode("utf-8", "replace").strip(), 1000)
    raise ReviewError(f"evidence checks: expected findings, got none: the runner {how}: {said}")


def _contents(case: ReviewCase, reviewer: EvidenceReviewer) -> dict[str, bytes]:
    checks = case.task.path / "evidence.py"
    if not checks.is_file():
        raise ReviewError(f"task {case.task.name} has no evidence.py: expected one, or another reviewer")
    described = {
        "criteria": [criterion.name for criterion in case.criteria],
        "check_time_s": reviewer.check_time_s,
        "steps": [jsonable(step) for step in case.steps],
        "references": jsonable(dict(case.references)),
        "refused": dict(case.collected.refused),
        "inputs": sorted(case.inputs),
        "deliverables": sorted(case.collected.files),
    }
    return {
        "review.py": package_files("fpenv.grading").joinpath("review.py").read_bytes(),
        "evidence.py": checks.read_bytes(),
        "case.json": json.dumps(described, sort_keys=True).encode(),
        **_under("inputs", case.inputs),
        **_under("deliverables", case.collected.files),
    }


def _under(folder: str, files: Mapping[str, bytes]) -> dict[str, bytes]:
    return {f"{folder}/{check_name(name)}": content for name, content in files.items()}


def _verdict_or_failure(item: Any, criterion: Criterion) -> Verdict | ReviewError:
    try:
        return _verdict(item, criterion)
    except ReviewError as error:
        return error


def _verdict(item: Any, criterion: Criterion) -> Verdict:
    where = f"criterion {criterion.name}"
    if not isinstance(item, dict) or item.get("criterion") != criterion.name:
        raise ReviewError(f"{where}: expected its finding, got {show(repr(item), 100)}")
    if "crash" in item:
        raise ReviewError(f"{where}: its check failed: {show(str(item['crash']), 500)}; mend evidence.py")
    if set(item) != {"criterion", "score", "reason", "quotes"}:
        raise ReviewError(f"{where}: expected score, reason and quotes, got {show(repr(sorted(item)), 100)}")
    highest = 1 if criterion.blocker else 2
    score = item["score"]
    if isinstance(score, bool) or not isinstance(score, int) or not 0 <= score <= highest:
        raise ReviewError(f"{where}: expected a score from 0 to {highest}, got {show(repr(score), 40)}")
    if not isinstance(item["reason"], str) or not isinstance(item["quotes"], list):
        raise ReviewError(f"{where}: expected a reason as text and a list of quotes")
    evidence = tuple(_evidence(quote, where) for quote in item["quotes"][:MAX_QUOTES])
    return Verdict(criterion=criterion.name, score=score, reason=show(item["reason"], REASON_LIMIT), evidence=evidence)


def _evidence(quote: Any, where: str) -> Evidence:
    match quote:
        case {"source": str(source), "quote": str(text)}:
            return Evidence(source=show(source, 200), quote=show(text, QUOTE_LIMIT))
    raise ReviewError(f"{where}: expected quotes with source and quote, got {show(repr(quote), 100)}")
