"""Control groups: memory, process-count and processor limits of a sandbox, where this process may set them.

Version 1 has a tree for each controller, version 2 one for all. A sandbox's group lies as deep as possible
below this process's own, so that outer limits go on to hold. Nothing here is needed for isolation; where no
group may be made, `watchdog.py` and resource limits stand in.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from fpenv.sandbox.sandbox import Limits

_OVERHEAD = 2
"""Processes of the sandbox itself: bubblewrap's outer one and the guest."""

_PERIOD_US = 100_000
_SWAP = {"memory.swap.max": "0", "memory.memsw.limit_in_bytes": ""}
"""Where swap is accounted: none in version 2; memory and swap together as much as memory in version 1."""


@dataclass(frozen=True)
class Cgroup:
    """The groups of one sandbox: one folder for each version-1 controller, or a single version-2 folder."""

    folders: tuple[Path, ...] = ()
    controllers: frozenset[str] = frozenset()

    @property
    def entries(self) -> list[str]:
        """Files that a process writes its id to, to enter."""
        return [str(folder / "cgroup.procs") for folder in self.folders]

    def count_oom_kills(self) -> int:
        """Return how many processes the kernel has killed for the group's memory limit."""
        for folder in self.folders:
            for name in ("memory.events", "memory.oom_control"):
                with contextlib.suppress(OSError):
                    for line in (folder / name).read_text().splitlines():
                        if line.startswith("oom_kill "):
                            return int(line.split()[1])
        return 0

    def remove(self) -> None:
        """Kill what is left inside, then remove the groups."""
        remove_groups([str(folder) for folder in self.folders])


def make_cgroup(name: str, limits: Limits) -> Cgroup:
    """Make groups with these limits; empty where that is not allowed, without controllers it lacks."""
    settings = _version2_settings(limits)
    for parent in _version2_parents():
        folder = parent / name
        if _make(folder, settings):
            return Cgroup((folder,), frozenset(control.split(".")[0] for control, _ in settings))
    made: dict[str, Path] = {}
    for controller, settings in _version1_settings(limits).items():
        for parent in _version1_parents(controller):
            if controller not in made and _make(parent / name, settings):
                made[controller] = parent / name
    return Cgroup(tuple(made.values()), frozenset(made))


def remove_groups(folders: list[str]) -> None:
    """Kill and remove; what cannot be removed within a second is left to the next sweep."""
    for folder in map(Path, folders):
        deadline = time.monotonic() + 1.0
        while folder.is_dir():
            try:
                folder.rmdir()
            except OSError:
                _kill_members(folder)
                if time.monotonic() > deadline:
                    break
                time.sleep(0.001)


def _kill_members(folder: Path) -> None:
    with contextlib.suppress(OSError):
        (folder / "cgroup.kill").write_text("1")
        return
    with contextlib.suppress(OSError):
        for pid in (folder / "cgroup.procs").read_text().split():
            with contextlib.suppress(OSError):
                os.kill(int(pid), signal.SIGKILL)


def _make(folder: Path, settings: list[tuple[str, str]]) -> bool:
    """Make one group with its settings, or nothing at all."""
    try:
        folder.mkdir()
    except OSError:
        return False
    try:
        for control, value in settings:
            _set(folder / control, value)
    except OSError:
        with contextlib.suppress(OSError):
            folder.rmdir()
        return False
    for control, value in _SWAP.items():
        with contextlib.suppress(OSError):  # kernels without swap accounting have no such control
            _set(folder / control, value or dict(settings).get("memory.limit_in_bytes", ""))
    return True


def _set(control: Path, value: str) -> None:
    # Without O_CREAT: a control that is not there is a controller that is not enabled.
    fd = os.open(control, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, value.encode())
    finally:
        os.close(fd)


def _version1_settings(limits: Limits) -> dict[str, list[tuple[str, str]]]:
    settings = {
        "memory": [("memory.limit_in_bytes", str(limits.memory_bytes))],
        "pids": [("pids.max", str(limits.processes + _OVERHEAD))],
    }
    if limits.cpus is not None:
        quota = str(int(limits.cpus * _PERIOD_US))
        settings["cpu"] = [("cpu.cfs_period_us", str(_PERIOD_US)), ("cpu.cfs_quota_us", quota)]
    return settings


def _version2_settings(limits: Limits) -> list[tuple[str, str]]:
    settings = [
        ("memory.max", str(limits.memory_bytes)),
        ("pids.max", str(limits.processes + _OVERHEAD)),
    ]
    if limits.cpus is not None:
        settings.append(("cpu.max", f"{int(limits.cpus * _PERIOD_US)} {_PERIOD_US}"))
    return settings


def _version2_parents() -> list[Path]:
    """Return the groups above this process, nearest first, that hand memory and pids down."""
    mount = _mounts().get("")
    if mount is None:
        return []
    parents = []
    for parent in _upwards(mount, _own_groups().get("", "/")):
        with contextlib.suppress(OSError):
            handed_down = (parent / "cgroup.subtree_control").read_text().split()
            if {"memory", "pids"} <= set(handed_down):
                parents.append(parent)
    return parents


def _version1_parents(controller: str) -> list[Path]:
    mount = _mounts().get(controller)
    if mount is None:
        return []
    own = mount / _own_groups().get(controller, "/").lstrip("/")
    return [own if own.is_dir() else mount]


def _upwards(mount: Path, own: str) -> list[Path]:
    group = mount / own.lstrip("/")
    if not group.is_dir():  # seen from a container whose group is named as on its host
        return [mount]
    return [group, *(parent for parent in group.parents if parent.is_relative_to(mount))]


def _own_groups() -> dict[str, str]:
    """Return controller -> this process's group; version 2 is the controller ""."""
    groups = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, group = line.split(":", 2)
        groups.update(dict.fromkeys(controllers.split(","), group))
    return groups


@functools.cache
def _mounts() -> dict[str, Path]:
    """Return controller -> where its tree is mounted; version 2 is the controller ""."""
    mounts: dict[str, Path] = {}
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, target, kind, options, *_ = line.split()
        if kind == "cgroup2":
            mounts[""] = Path(target)
        elif kind == "cgroup":
            mounts.update(dict.fromkeys(options.split(","), Path(target)))
    return mounts
