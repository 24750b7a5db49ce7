"""Plays a stored trajectory again, and says where outputs differ.

A cut trajectory is played to its last whole step and then submitted. What was malformed is played as
malformed: the trajectory does not hold what was sent, so that its answer is not compared. Times, process
ids and the like count as differences unless they are named in `normalise`: a replay hides nothing unasked.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fpenv.agents.agent import SUBMIT
from fpenv.env import Observation
from fpenv.errors import ConfigError
from fpenv.records import Step
from fpenv.store import RunFolder, RunInfo, jsonable, read_trajectory
from fpenv.task import Task

NORMALISERS: dict[str, re.Pattern[str]] = {
    "times": re.compile(
        r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:?\d\d)?)?"  # ISO dates and times
        r"|\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)? ?(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) +\d{1,2}"
        r"(?: +\d\d:\d\d(?::\d\d)?)?(?: +[A-Z]{3,4})?(?: +\d{4})?\b"  # date, ls -l
        r"|\b\d\d:\d\d(?::\d\d(?:\.\d+)?)?\b"  # times of day
        r"|\b(?:\d+m)?\d+(?:\.\d+)? ?(?:ns|us|µs|ms|s|sec|secs|seconds|minutes|min)\b"  # durations
    ),
    "uuids": re.compile(r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b"),
    "pids": re.compile(r"(?i)(?<=\bpid[ :=])\s*\d+|(?<=\bprocess )\d+|(?<=^\[\d\] )\d+"),
    "addresses": re.compile(r"\b0x[0-9a-fA-F]{6,}\b"),
}
"""What a replay may be told to look past: name -> what is taken for one of it."""

MAX_SHOWN_CHARS = 160


@dataclass(frozen=True)
class Recorded:
    """A stored trajectory with what it belongs to. `notes` are warnings for whoever plays it again."""

    path: Path
    run: RunInfo
    steps: tuple[Step, ...]
    complete: bool
    notes: tuple[str, ...] = ()

    @property
    def submitted(self) -> bool:
        return bool(self.steps) and self.steps[-1].result.data.get("submitted") is True


@dataclass(frozen=True)
class Difference:
    """Where a replay departs: the first differing line of a step, counted from 1; None where a side has none."""

    step_id: int
    tool: str
    what: str
    line: int
    recorded: str | None
    played: str | None

    def __str__(self) -> str:
        sides = " | ".join(
            f"{name} {'(nothing)' if text is None else repr(text[:MAX_SHOWN_CHARS])}"
            for name, text in (("recorded", self.recorded), ("played", self.played))
        )
        return f"step {self.step_id}, {self.tool or '(malformed)'}: {self.what} line {self.line}: {sides}"


class ReplayAgent:
    """Takes the recorded actions in order, on the recorded instance, then submits."""

    name = "replay"

    def __init__(self, recorded: Recorded) -> None:
        self.recorded = recorded
        self.reset_options: dict[str, Any] = {"instance": recorded.run.instance, "oracle": recorded.run.oracle}
        self._actions = [_action(step) for step in recorded.steps]

    def act(self, observation: Observation, info: dict[str, Any]) -> dict[str, Any] | None:
        return self._actions.pop(0) if self._actions else SUBMIT


class Replay:
    """A recorded run and what to look past, to compare with the run that a replay has left."""

    def __init__(self, recorded: Recorded, normalise: Iterable[str] = ()) -> None:
        self.recorded = recorded
        self.notes = recorded.notes
        if not recorded.complete:
            self.notes += ("the trajectory is cut: played to its last whole step, then submitted",)
        elif not recorded.submitted:
            self.notes += ("the recorded run did not submit: played to its last step, then submitted",)
        self._normalise = check_normalisers(normalise)

    def compare(self, played: RunFolder) -> list[Difference]:
        return compare_steps(self.recorded.steps, read_trajectory(played.trajectory).steps, self._normalise)

    def tell(self, differences: Sequence[Difference]) -> list[str]:
        """Say what was found, a line each."""
        past = f" (looking past {', '.join(self._normalise)})" if self._normalise else ""
        number = len(self.recorded.steps)
        if not differences:
            return [f"replay: all {number} steps gave the recorded outputs{past}"]
        steps = len({difference.step_id for difference in differences})
        return [f"replay: {steps} of {number} steps differ{past}", *(f"  {entry}" for entry in differences)]


def load_recorded(path: Path, task: Task) -> Recorded:
    """Read a run folder or a trajectory file for a task.

    Another task is a ConfigError; another digest of the same task, or another version, is a note.
    """
    file = path / "trajectory.msgpack" if path.is_dir() else path
    if not file.is_file():
        raise ConfigError(f"replay: expected a run folder or a trajectory file, found no {file}")
    trajectory = read_trajectory(file)
    if trajectory.header is None:
        raise ConfigError(f"{file}: expected a trajectory, but not even its header is whole; nothing can be played")
    try:
        run = RunInfo.model_validate(trajectory.header.metadata)
    except ValidationError as error:
        raise ConfigError(
            f"{file}: expected a trajectory that names its task and instance, found none; was it written by an Env?"
        ) from error
    if run.task != task.name:
        raise ConfigError(f"{file}: expected a trajectory of task {task.name}, got one of {run.task}")
    for before, step in zip((None, *trajectory.steps), trajectory.steps, strict=False):
        if step.parent_id != (before.step_id if before else None):
            raise ConfigError(f"{file}: step {step.step_id} has parent {step.parent_id}; expected an unbroken row")
    changed = (
        f"the task has changed since: recorded with digest {run.task_digest[:16]}, it is now {task.digest[:16]}; "
        "differences may come from that"
    )
    notes = (changed,) if run.task_digest != task.digest else ()
    return Recorded(file, run, trajectory.steps, trajectory.complete, notes)


def compare_steps(recorded: Sequence[Step], played: Sequence[Step], normalise: Iterable[str] = ()) -> list[Difference]:
    """Return the first differing line of every step that both hold, and where one of them ends early.

    Output, failure, instrument calls and searches are compared. Raises ConfigError for an unknown normaliser.
    """
    patterns = [(name, NORMALISERS[name]) for name in check_normalisers(normalise)]
    found: list[Difference] = []
    for old, new in zip(recorded, played, strict=False):
        if old.tool:
            found += _compare(old, new, patterns)
    if len(played) < len(recorded):
        missing = recorded[len(played)]
        found.append(
            Difference(missing.step_id, missing.tool, "the replay ended before it", 1, missing.arguments, None)
        )
    return found


def check_normalisers(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names as they are if all are known."""
    chosen = tuple(names)
    unknown = [name for name in chosen if name not in NORMALISERS]
    if unknown:
        raise ConfigError(f"normalise: expected some of {', '.join(NORMALISERS)}, got {unknown[0]!r}")
    return chosen


def _action(step: Step) -> dict[str, Any]:
    return {"tool": step.tool, "arguments": step.arguments} if step.tool else {}


def _compare(old: Step, new: Step, patterns: Sequence[tuple[str, re.Pattern[str]]]) -> Iterable[Difference]:
    """The first difference of a step: what the agent saw comes before what only the host did."""
    for what, before, after in (
        ("output", old.result.output, new.result.output),
        ("failed", str(old.result.failed), str(new.result.failed)),
        ("instrument calls", _lines(old.instrument_calls), _lines(new.instrument_calls)),
        ("searches", _lines(old.searches), _lines(new.searches)),
    ):
        pairs = zip_longest(before.split("\n"), after.split("\n"))
        for number, (left, right) in enumerate(pairs, start=1):
            if left != right and _normal(left, patterns) != _normal(right, patterns):
                yield Difference(old.step_id, old.tool, what, number, left, right)
                return


def _normal(line: str | None, patterns: Sequence[tuple[str, re.Pattern[str]]]) -> str | None:
    for name, pattern in patterns if line is not None else ():
        line = pattern.sub(f"<{name}>", line)  # type: ignore[arg-type]
    return line


def _lines(records: Sequence[Any]) -> str:
    return "\n".join(json.dumps(jsonable(record), sort_keys=True) for record in records)
