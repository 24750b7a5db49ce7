"""A person's episode across sittings: `session.json` in the run folder, and what may be resumed.

A sandbox does not outlive its sitting. Resuming plays the recorded actions into a fresh one, in a new run
folder that then holds the whole episode; the replay costs no time, the sittings do. A command that was given
up is in no trajectory, so it is kept here: a reader of a human baseline can see that there was one.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fpenv.agents.replay import Recorded, load_recorded
from fpenv.errors import ConfigError
from fpenv.records import Record
from fpenv.store import RunFolder, canonical_json
from fpenv.task import Task, find_task, load_task

FILE = "session.json"


class Abandonment(Record):
    """An action that was given up or cut off while it ran. `elapsed_s` is when it was begun."""

    after_step: int
    tool: str
    arguments: str
    elapsed_s: float


class Session(Record):
    """What a trajectory does not hold. Time that was not spent in a sitting is not counted."""

    task_path: str
    max_steps: int
    time_limit_s: float | None
    sandbox: str
    elapsed_s: float = 0.0
    running: Abandonment | None = None
    abandoned: tuple[Abandonment, ...] = ()
    resumed_from: str = ""
    continued_in: str = ""

    def write(self, run: Path) -> None:
        part = run / f".{FILE}.part"
        part.write_bytes(canonical_json(self))
        part.replace(run / FILE)


def begin_session(task: Task, *, max_steps: int, time_limit_s: float | None, sandbox: str) -> Session:
    """A session that has not begun to be played."""
    return Session(task_path=str(task.path.resolve()), max_steps=max_steps, time_limit_s=time_limit_s, sandbox=sandbox)


def load_session(run: Path) -> tuple[Session, Recorded]:
    """Read what is to be resumed. Raises ConfigError, saying what to do instead, for what cannot be."""
    info = RunFolder(run).read_run()
    if info.agent != "human":
        raise ConfigError(f"{run}: expected a run that a person played, got one of agent {info.agent}")
    if info.stop not in ("running", "infrastructure"):
        raise ConfigError(f"{run}: expected a run that was left, but it has ended ({info.stop}); fpenv grade reads it")
    session = _read(run)
    if session.continued_in:
        raise ConfigError(f"{run}: this run goes on in {session.continued_in}; resume that one")
    folder = Path(session.task_path)
    task = load_task(folder) if folder.is_dir() else find_task(info.task)
    recorded = load_recorded(run, task)
    session = session.model_copy(update={"task_path": str(task.path.resolve())})
    if recorded.submitted or info.stop == "infrastructure":  # neither was the person's last word
        recorded = replace(recorded, steps=recorded.steps[:-1])
    if session.running:
        kept = (*session.abandoned, session.running)
        session = session.model_copy(update={"running": None, "abandoned": kept})
    return session, recorded


def _read(run: Path) -> Session:
    file = run / FILE
    try:
        return Session.model_validate_json(file.read_bytes())
    except FileNotFoundError:
        raise ConfigError(
            f"{run}: expected {FILE}, found none: a sitting did not get as far as its prompt; resume the run before it"
        ) from None
    except (OSError, ValidationError) as error:
        said: Any = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error.strerror
        raise ConfigError(f"{file}: expected a session, got: {said}") from error
