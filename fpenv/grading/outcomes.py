"""What a run of test.sh left behind, read strictly: the signed report of its tests, and the package's reward."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeGuard

from fpenv.records import TestOutcome
from fpenv.untrusted import Untrusted, parse_json, show

MAX_REPORT_BYTES = 32 << 20
MAX_TESTS = 10_000
MESSAGE_LIMIT = 2000


@dataclass(frozen=True)
class Report:
    """What the plugin wrote. `ended` says that the session came to its own end and every line was authentic."""

    collected: tuple[str, ...] = ()
    outcomes: tuple[TestOutcome, ...] = ()
    uncollected: tuple[tuple[str, str], ...] = ()
    ended: bool = False


def parse_report(data: bytes, key: bytes) -> Report:
    """Read a signed report up to its first line that is not authentic or not as agreed."""
    reading = _Reading()
    *lines, rest = data[:MAX_REPORT_BYTES].split(b"\n")
    for line in lines:
        signature, _, body = line.partition(b" ")
        expected = hmac.new(key, body, hashlib.sha256).hexdigest().encode()
        if reading.ended or not hmac.compare_digest(signature, expected):
            return reading.report(whole=False)
        try:
            reading.add(parse_json(body))
        except Untrusted:
            return reading.report(whole=False)
    return reading.report(whole=rest == b"")


def parse_reward(files: Mapping[str, bytes]) -> tuple[float | None, str]:
    """The package's reward and what is wrong with it: json wins, and both must agree to 1e-9 if both exist."""
    found: dict[str, float] = {}
    for name, parse in (("reward.json", _json_reward), ("reward.txt", _text_reward)):
        if name in files:
            try:
                found[name] = parse(files[name])
            except Untrusted as error:
                return None, f"{name}: {error}"
    values = list(found.values())
    if len(values) == 2 and abs(values[0] - values[1]) > 1e-9:
        return None, f"reward.json says {values[0]:g} and reward.txt {values[1]:g}: expected them to agree"
    return (values[0], "") if values else (None, "")


class _Reading:
    """A report while it is read, line by line."""

    def __init__(self) -> None:
        self.lines = 0
        self.collected: tuple[str, ...] = ()
        self.outcomes: dict[str, TestOutcome] = {}
        self.uncollected: list[tuple[str, str]] = []
        self.ended = False

    def report(self, whole: bool) -> Report:
        outcomes, uncollected = tuple(self.outcomes.values()), tuple(self.uncollected)
        return Report(self.collected, outcomes, uncollected, ended=whole and self.ended)

    def add(self, line: Any) -> None:
        """Take up one authentic line. Raises Untrusted."""
        if not isinstance(line, dict) or line.get("n") != self.lines or self.lines > MAX_TESTS:
            raise Untrusted(f"expected line {self.lines} of the report, got another")
        self.lines += 1
        match line:
            case {"kind": "collected", "ids": list(ids)} if len(ids) <= MAX_TESTS and all(map(_is_id, ids)):
                self.collected = tuple(ids)
            case {"kind": "uncollected", "id": str(name), "message": str(message)}:
                self.uncollected.append((show(name, 200), show(message, 500)))
            case {"kind": "test", "id": name, "outcome": outcome, "message": str(message)} if _is_id(
                name
            ) and _is_outcome(outcome):
                self._keep_worse(TestOutcome(test_id=name, outcome=outcome, message=show(message, MESSAGE_LIMIT)))
            case {"kind": "end", "exitstatus": int()}:
                self.ended = True
            case _:
                raise Untrusted(f"expected a line of the report, got {show(repr(line), 200)}")

    def _keep_worse(self, test: TestOutcome) -> None:
        before = self.outcomes.get(test.test_id)
        if before is None or before.outcome == "passed":
            self.outcomes[test.test_id] = test


def _is_id(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and 0 < len(value) <= 1000 and value.isprintable()


def _is_outcome(value: object) -> TypeGuard[Literal["passed", "failed", "error", "skipped"]]:
    return value in ("passed", "failed", "error", "skipped")


def _json_reward(data: bytes) -> float:
    raw = parse_json(data, max_bytes=1 << 16)
    value = raw.get("reward") if isinstance(raw, dict) else raw
    if isinstance(raw, dict) and "reward" not in raw and len(raw) == 1:
        (value,) = raw.values()
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Untrusted(f'expected a number, or an object with the number "reward", got {show(repr(raw), 100)}')
    return float(value)


def _text_reward(data: bytes) -> float:
    text = data[:100].decode("ascii", "replace").strip()
    if not re.fullmatch(r"[+-]?[0-9]{1,20}(\.[0-9]{1,20})?([eE][+-]?[0-9]{1,2})?", text):
        raise Untrusted(f"expected one number, got {show(text, 60)!r}")
    return float(text)
