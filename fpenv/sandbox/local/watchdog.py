"""Bounds a sandbox's memory where no memory cgroup can be had: as the kernel would, by killing the largest.

One thread for the whole process looks at each sandbox's process tree ten times a second. Between two looks a
program may go beyond the limit; the resource limit on each process's data bounds by how much.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

_PERIOD_S = 0.1
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Watchdog:
    """Watches process trees by the id of their first process, until they are dropped."""

    def __init__(self) -> None:
        self._limits: dict[int, int] = {}
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None

    def watch(self, pid: int, memory_bytes: int) -> None:
        with self._lock:
            self._limits[pid] = memory_bytes
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="fpenv-watchdog", daemon=True)
                self._thread.start()
            self._wake.set()

    def drop(self, pid: int) -> None:
        with self._lock:
            self._limits.pop(pid, None)
            if not self._limits:
                self._wake.clear()

    def _run(self) -> None:
        while True:
            self._wake.wait()
            with self._lock:
                limits = dict(self._limits)
            for pid, memory_bytes in limits.items():
                with contextlib.suppress(OSError, ValueError):
                    enforce(pid, memory_bytes)
            threading.Event().wait(_PERIOD_S)


def enforce(root: int, memory_bytes: int) -> int | None:
    """Kill the largest process below `root` if the tree uses more than it may; return its id."""
    tree = list(_tree(root))
    if sum(_resident_bytes(pid) for pid in tree) <= memory_bytes:
        return None
    # Forked processes share pages: look again with each page counted once.
    sizes = {pid: _proportional_bytes(pid) for pid in tree}
    if sum(sizes.values()) <= memory_bytes:
        return None
    victims = [pid for pid in tree if pid != root] or [root]
    victim = max(victims, key=lambda pid: sizes[pid])
    fd = os.pidfd_open(victim)
    try:
        if victim in set(_tree(root)):
            signal.pidfd_send_signal(fd, signal.SIGKILL)
    finally:
        os.close(fd)
    return victim


def _tree(root: int) -> Iterator[int]:
    pending = [root]
    while pending:
        pid = pending.pop()
        yield pid
        with contextlib.suppress(OSError):
            for task in os.listdir(f"/proc/{pid}/task"):
                children = Path(f"/proc/{pid}/task/{task}/children").read_text()
                pending += map(int, children.split())


def _resident_bytes(pid: int) -> int:
    """Memory of the process that is not backed by a file on disk."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith(("RssAnon:", "RssShmem:")))


def _proportional_bytes(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return sum(int(line.split()[1]) << 10 for line in lines if line.startswith(("Pss_Anon:", "Pss_Shmem:")))
    except OSError:
        return _resident_bytes(pid)


_watchdog = Watchdog()


def get_watchdog() -> Watchdog:
    """Return this process's watchdog."""
    return _watchdog


def _renew_after_fork() -> None:
    global _watchdog
    _watchdog = Watchdog()


os.register_at_fork(after_in_child=_renew_after_fork)
