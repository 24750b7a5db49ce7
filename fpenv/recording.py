"""Leaves each episode of an environment as a run folder: `ROOT/TASK/INSTANCE/NUMBER`."""

from __future__ import annotations

import importlib.metadata
import platform
from pathlib import Path

from fpenv.errors import ConfigError
from fpenv.instance import Instance
from fpenv.records import Grade, Step, Stop
from fpenv.sandbox.sandbox import Collected
from fpenv.store import RunFolder, RunInfo, TrajectoryWriter

_VERSIONS = ("fpenv", "gymnasium", "numpy")


class Recording:
    """One episode being written. Steps are on disk before `append` returns."""

    def __init__(self, root: Path, instance: Instance, *, agent: str, oracle: bool) -> None:
        self.folder = _new_folder(root / instance.task.name / instance.name)
        self._info = RunInfo(
            task=instance.task.name,
            task_digest=instance.task.digest,
            instance=instance.name,
            agent=agent,
            stop="running",
            oracle=oracle,
            versions={"python": platform.python_version()} | {n: importlib.metadata.version(n) for n in _VERSIONS},
        )
        self.folder.write_run(self._info)
        self._writer: TrajectoryWriter = self.folder.start_trajectory(self._info.model_dump())

    def append(self, step: Step) -> None:
        self._writer.append(step)

    def finish(self, stop: Stop, grade: Grade, collected: Collected) -> None:
        """Write deliverables, grade and how the run ended; the run is complete when run.json says so."""
        self.close()
        self.folder.write_deliverables(collected.files)
        self.folder.write_grade(grade)
        self.folder.write_run(self._info.model_copy(update={"stop": stop}))

    def close(self) -> None:
        self._writer.close()


def _new_folder(parent: Path) -> RunFolder:
    """Make the next free numbered folder; two processes never get the same one."""
    parent.mkdir(parents=True, exist_ok=True)
    taken = [int(entry.name) for entry in parent.iterdir() if entry.name.isdecimal()]
    for number in range(max(taken, default=0) + 1, max(taken, default=0) + 10_000):
        folder = parent / f"{number:04d}"
        try:
            folder.mkdir()
        except FileExistsError:
            continue
        return RunFolder.create(folder)
    raise ConfigError(f"{parent}: expected a free number for a run folder, found none; choose another folder")
