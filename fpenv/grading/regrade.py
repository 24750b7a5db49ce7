"""Grading again what lies on disk: a run folder, or a plain folder of deliverables."""

from __future__ import annotations

from pathlib import Path

from fpenv.deliverables import select
from fpenv.errors import ConfigError
from fpenv.grading.evidence import EvidenceReviewer
from fpenv.grading.grade import grade_episode, ungraded
from fpenv.grading.reviewer import Reviewer
from fpenv.instance import Instance, make_instance
from fpenv.placement import place
from fpenv.records import Grade, Step
from fpenv.sandbox.sandbox import Backend, Collected
from fpenv.store import RunFolder, read_files, read_trajectory
from fpenv.task import Task, find_task

INTERRUPTED = "the run was left before its end, and nothing was handed in"


def regrade(
    folder: Path,
    *,
    task: str | Path | None = None,
    instance: str | int | None = None,
    sandbox: str | Backend = "local",
    reviewer: Reviewer | None = None,
) -> tuple[Task, Grade]:
    """Grade a folder; nothing in it is changed. The grade of a run folder comes out as it did, byte for byte.

    A run folder says itself which task and instance it answers, and has the trajectory; `task` and
    `instance` override that. A plain folder of deliverables needs `task`; it has no trajectory, so that
    checks which look for what was done find nothing. Only files that the task asks for are read.

    A run that the infrastructure ended stays ungraded. Raises ConfigError for one that was left before its
    end, and for one whose trajectory is lost or damaged: what was done is not known, so that it has no grade.
    """
    if not folder.is_dir():
        raise ConfigError(f"{folder}: expected a run folder or a folder of deliverables, found none")
    run = RunFolder(folder) if (folder / "run.json").is_file() else None
    info = run.read_run() if run else None
    if info and info.stop == "running":
        raise ConfigError(f"{folder}: expected a run that has ended; {INTERRUPTED}: play it again")
    if task is None and info is None:
        raise ConfigError(f"{folder}: no run.json here: expected --task to say which task the deliverables answer")
    found = _find_task(folder, task, info.task if info else "")
    chosen = make_instance(found, info.instance if info and instance is None else instance)
    if run and info and info.stop == "infrastructure":
        return found, ungraded(found, chosen.name, run.read_grade().reason)
    steps = _read_steps(run) if run else ()
    placed = place(chosen.task, sandbox)
    grade = grade_episode(
        task=chosen.task,
        instance=chosen.name,
        inputs=chosen.inputs,
        references=chosen.parts.references,
        collected=_collect(folder, run, chosen),
        steps=steps,
        backend=placed.backend,
        runtime=placed.runtime,
        reviewer=reviewer or EvidenceReviewer(),
    )
    return chosen.task, grade


def _find_task(folder: Path, said: str | Path | None, recorded: str) -> Task:
    """The task that was said, or else the one that the run names: of a package elsewhere it has no more than that."""
    if said is not None:
        return find_task(said)
    try:
        return find_task(recorded)
    except ConfigError:
        raise ConfigError(
            f"{folder}: the run's task {recorded!r} does not come with fpenv: expected --task with its folder"
        ) from None


def _read_steps(run: RunFolder) -> tuple[Step, ...]:
    if not run.trajectory.is_file():
        raise ConfigError(f"{run.trajectory}: expected the run's trajectory, found none")
    trajectory = read_trajectory(run.trajectory)
    if not trajectory.complete:
        raise ConfigError(
            f"{run.trajectory}: expected a whole trajectory, got one that is cut or damaged after "
            f"{len(trajectory.steps)} steps; restore it, or grade {run.deliverables} with --task"
        )
    return trajectory.steps


def _collect(folder: Path, run: RunFolder | None, instance: Instance) -> Collected:
    """What was handed in. A run folder has nothing else, and its grade knows what was refused then, and why."""
    task = instance.task
    if run is None:
        return select(_read_wanted(folder, task), task, instance.inputs)
    files = run.read_deliverables() if run.deliverables.is_dir() else {}
    collected = select(files, task, instance.inputs)
    graded = (run.path / "grade.json").is_file()
    return Collected(collected.files, run.read_grade().refused_deliverables) if graded else collected


def _read_wanted(folder: Path, task: Task) -> dict[str, bytes]:
    """The files that the task names, or those below the folders it names; all only where it names none."""
    if not task.deliverables:
        return read_files(folder)
    found: dict[str, bytes] = {}
    for name in task.deliverables:
        place = folder / name
        if name.endswith("/") and place.is_dir():
            found |= {f"{name}{below}": content for below, content in read_files(place).items()}
        elif place.is_file() and place.resolve() == folder.resolve() / name:
            found[name] = place.read_bytes()
    return found
