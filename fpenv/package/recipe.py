"""What a task's Dockerfile comes to when nothing but files, variables and Python packages is needed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fpenv.errors import TaskError


@dataclass(frozen=True)
class Recipe:
    """An environment, as far as it can be had without a container engine.

    requirements: lines of a requirements.txt. files: absolute path inside -> content. executables: those of
    them with the execute bit. folders: absolute paths of folders made. env: variables beside PATH, HOME and
    TMPDIR. workdir: where commands run, or empty where the package does not say. notes: what differs from the
    image and does no harm. problems: what could not be read, each with its line.
    """

    requirements: tuple[str, ...] = ()
    files: Mapping[str, bytes] = field(default_factory=dict)
    executables: frozenset[str] = frozenset()
    folders: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    workdir: str = ""
    notes: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()

    def check(self, where: Path) -> None:
        """Raise TaskError, naming every line, where a container engine is needed after all."""
        if self.problems:
            raise TaskError(
                f"{where}: the local sandbox cannot build this environment: {'; '.join(self.problems)}; "
                "use the Docker backend (sandbox='docker') for this task"
            )
