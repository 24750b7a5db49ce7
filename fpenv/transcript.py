"""An episode as a person reads it: what was done, what came back, what was left, how it ended.

Everything an agent or a tool wrote is untrusted: control characters and bidirectional marks are shown as
escapes, so that no output can move the cursor, hide a line or forge one of ours.
"""

from __future__ import annotations

import unicodedata

from fpenv.records import Grade, Step, Stop

_WIDTH = 110
_LINES = 12


class Transcript:
    """Collects steps and renders them."""

    def __init__(self, title: str = "no episode yet: call reset()") -> None:
        self._title = escape(title)
        self._blocks: list[str] = []

    def add(self, step: Step) -> None:
        mark = "✗" if step.result.failed else "✓"
        left = step.budget
        head = f"{mark} {step.step_id:>3}  {escape(step.tool) or '(malformed)'}  {_fold(step.arguments, 1)}"
        budget = f"{left.steps_left} steps, {left.seconds_left} s, {left.shots_left} shots"
        foot = f"{step.ended_s - step.started_s:.1f} s; left: {budget}"
        self._blocks.append("\n".join((head, _indent(_fold(step.result.output, _LINES)), f"      [{foot}]")))

    def end(self, stop: Stop | None, grade: Grade) -> None:
        score = "ungraded" if grade.s_final is None else f"S_final {grade.s_final:.1f}"
        self._blocks.append(
            f"{score}: ended by {stop}; tests {grade.tests_passed} of {grade.tests_total}; "
            f"failed blockers: {', '.join(map(escape, grade.failed_blockers)) or 'none'}"
            + (f"\n{escape(grade.reason)}" if grade.reason else "")
        )

    def text(self) -> str:
        return "\n".join((self._title, "─" * min(len(self._title), _WIDTH), *self._blocks))


def escape(text: str) -> str:
    """Show control, format and surrogate characters as escapes; newlines and tabs stay."""
    return "".join(
        c if c in "\n\t" or unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp") else _code(c)
        for c in text
    )


def _code(character: str) -> str:
    return f"\\x{ord(character):02x}" if ord(character) < 256 else f"\\u{{{ord(character):x}}}"


def _fold(text: str, lines: int) -> str:
    every = escape(text).split("\n")
    shown = (
        every
        if len(every) <= lines
        else [*every[: lines // 2], f"… {len(every) - lines} lines …", *every[-lines // 2 :]]
    )
    if lines == 1:
        shown = [" ".join(escape(text).split())]
    return "\n".join(line if len(line) <= _WIDTH else f"{line[: _WIDTH - 1]}…" for line in shown)


def _indent(text: str) -> str:
    return "\n".join(f"      {line}" for line in text.split("\n"))
