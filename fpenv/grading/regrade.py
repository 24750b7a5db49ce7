"""Grading again what lies on disk: a run folder, or a plain folder of deliverables."""

from __future__ import annotations

from pathlib import Path

from fpenv.deliverables import select
from fpenv.errors import ConfigError
from fpenv.grading.evidence import EvidenceReviewer
from fpenv.grading.grade import grade_episode
from fpenv.grading.reviewer import Reviewer
from fpenv.instance import make_instance
from fpenv.placement import place
from fpenv.records import Grade, Step
from fpenv.sandbox.sandbox import Backend
from fpenv.store import RunFolder, read_files, read_trajectory
from fpenv.task import Task, find_task


def regrade(
    folder: Path,
    *,
    task: str | Path | None = None,
    instance: str | int | None = None,
    sandbox: str | Backend = "local",
    reviewer: Reviewer | None = None,
) -> tuple[Task, Grade]:
    """Grade a folder; nothing in it is changed.

    A run folder says itself which task and instance it answers, and has the trajectory; `task` and
    `instance` override that. A plain folder of deliverables needs `task`; it has no trajectory, so that
    checks which look for what was done find nothing. Only files that the task asks for are taken.
    """
    if not folder.is_dir():
        raise ConfigError(f"{folder}: expected a run folder or a folder of deliverables, found none")
    steps: tuple[Step, ...] = ()
    files = folder
    if (folder / "run.json").is_file():
        run = RunFolder(folder)
        info = run.read_run()
        task, instance = task or info.task, info.instance if instance is None else instance
        steps = read_trajectory(run.trajectory).steps if run.trajectory.is_file() else ()
        files = run.deliverables
    if task is None:
        raise ConfigError(f"{folder}: no run.json here: expected --task to say which task the deliverables answer")
    chosen = make_instance(find_task(task), instance)
    placed = place(chosen.task, sandbox)
    grade = grade_episode(
        task=chosen.task,
        instance=chosen.name,
        inputs=chosen.inputs,
        references=chosen.parts.references,
        collected=select(read_files(files) if files.is_dir() else {}, chosen.task, chosen.inputs),
        steps=steps,
        backend=placed.backend,
        runtime=placed.runtime,
        reviewer=reviewer or EvidenceReviewer(),
    )
    return chosen.task, grade
