"""Leases: which user a sandbox runs as, and what it would leave behind if its host process were killed.

A lease is a locked file. The lock goes with the process that holds it, so a lease that can be locked is a
dead one, and whoever finds it removes what it names. As root each sandbox has a user id of its own from a
range that no distribution hands out.
"""

from __future__ import annotations

import fcntl
import os
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

from fpenv.errors import SandboxError
from fpenv.sandbox.cache import cache_root

_FIRST_UID, _COUNT = 0x70000000, 1 << 16
"""The first ids above what systemd reserves for containers (its "Users, Groups, UIDs and GIDs" page)."""

_FEWEST_IDS = 8192

Cleaner = Callable[[list[str]], None]
_SWEEP_EVERY_S = 60.0
_last_sweep = -_SWEEP_EVERY_S
_sweep_lock = threading.Lock()


class Lease:
    """One sandbox's claim; `uid` is None where the sandbox runs as the host's own user."""

    def __init__(self, path: Path, fd: int, uid: int | None) -> None:
        self._path, self._fd, self.uid = path, fd, uid
        self.name = path.name

    def record(self, leftovers: list[str]) -> None:
        """Write down what to remove if this process dies."""
        os.pwrite(self._fd, "\n".join(leftovers).encode(), 0)

    def release(self) -> None:
        if self._fd >= 0:
            self._path.unlink(missing_ok=True)
            os.close(self._fd)
            self._fd = -1


def take_lease(clean: Cleaner) -> Lease:
    """Return a lease that no other process holds; `clean` removes what dead ones left."""
    folder = _folder()
    _sweep(folder, clean)
    uids = _spare_uids()
    first, count = uids or (_FIRST_UID, _COUNT)
    offset = random.SystemRandom().randrange(count)
    for step in range(count):
        number = first + (offset + step) % count
        path = folder / str(number)
        fd = _lock(path, create=True)
        if fd is not None:
            _clean(fd, clean)
            return Lease(path, fd, number if uids else None)
    raise SandboxError(f"all {count} leases in {folder} are taken; end some sandboxes")


def _folder() -> Path:
    # As root one place for all, whatever the cache: the user ids must not collide.
    folder = Path("/run/fpenv") if os.geteuid() == 0 else cache_root() / "leases"
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    return folder


def _spare_uids() -> tuple[int, int] | None:
    """Return the first spare user id and how many there are; None where this process cannot change its user.

    Inside a container with few ids these are the upper ones it has. Where there is hardly any, root is some
    ordinary user of the machine, and sandboxes may run as that one.
    """
    if os.geteuid() != 0:
        return None
    highest = 0
    for line in Path("/proc/self/uid_map").read_text().splitlines():
        inside, _, length = map(int, line.split())
        highest = max(highest, inside + length)
    if highest >= _FIRST_UID + _COUNT:
        return _FIRST_UID, _COUNT
    if highest < _FEWEST_IDS:
        return None
    count = min(4096, highest // 2)
    return highest - count - 64, count  # 64: spare nobody and its neighbours


def _lock(path: Path, *, create: bool) -> int | None:
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o600)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.stat(path).st_ino == os.fstat(fd).st_ino:
            return fd
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(fd)
    return None


def _clean(fd: int, clean: Cleaner) -> None:
    leftovers = os.pread(fd, 1 << 16, 0).decode().split("\n")
    clean([leftover for leftover in leftovers if leftover])
    os.ftruncate(fd, 0)


def _sweep(folder: Path, clean: Cleaner) -> None:
    global _last_sweep
    with _sweep_lock:
        if time.monotonic() - _last_sweep < _SWEEP_EVERY_S:
            return
        _last_sweep = time.monotonic()
    for path in folder.iterdir():
        fd = _lock(path, create=False)
        if fd is not None:
            _clean(fd, clean)
            path.unlink(missing_ok=True)
            os.close(fd)
