"""Where an episode of a task runs: which backend, and what brings the task's programs along.

    local    on this machine, with a runtime of the Python packages that the task's Dockerfile installs
    docker   in a container of the image that the task's Dockerfile builds
    auto     local for light tasks (at most 4 CPUs, 16 GB memory, 10 GB disk, no GPU), else docker

A `Backend` of the caller's own gets the runtime, as the local one does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fpenv.errors import ConfigError
from fpenv.sandbox.runtime import provide
from fpenv.sandbox.sandbox import Backend
from fpenv.task import Task

NAMES = ("local", "docker", "auto")
LIGHT_CPUS, LIGHT_MEMORY_MB, LIGHT_STORAGE_MB = 4, 16_384, 10_240


@dataclass(frozen=True)
class Placement:
    """A backend, and the runtime to mount in its sandboxes; None where the backend's image has it all."""

    backend: Backend
    runtime: Path | None


def check_place(sandbox: str | Backend) -> None:
    """Raise ConfigError for a name that is none. Builds nothing."""
    if isinstance(sandbox, str) and sandbox not in NAMES:
        raise ConfigError(f"sandbox: expected one of {', '.join(NAMES)}, or a Backend; got {sandbox!r}")


def place(task: Task, sandbox: str | Backend = "local", progress: Callable[[str], None] | None = None) -> Placement:
    """Choose, and build what is not built yet (seconds to minutes, once for each content of the environment).

    Raises ConfigError for a name that is none, TaskError for a Dockerfile that cannot be built there,
    SandboxError where the build or the engine fails.
    """
    check_place(sandbox)
    name = route(task) if sandbox == "auto" else sandbox
    if name == "docker":
        return _in_container(task, progress)
    if isinstance(name, str):
        from fpenv.sandbox.local import LocalBackend

        name = LocalBackend()
    return Placement(name, provide(task.requirements, progress=progress).path)


def route(task: Task) -> str:
    """Say where `auto` sends a task."""
    box = task.front.sandbox
    light = box.cpus <= LIGHT_CPUS and box.memory_mb <= LIGHT_MEMORY_MB and box.storage_mb <= LIGHT_STORAGE_MB
    return "local" if light and not box.gpus else "docker"


def _in_container(task: Task, progress: Callable[[str], None] | None) -> Placement:
    from fpenv.sandbox.docker import DockerBackend, build_image

    image = build_image(task.path / "environment", progress=progress)
    return Placement(DockerBackend(image, gpus=task.front.sandbox.gpus or None), None)
