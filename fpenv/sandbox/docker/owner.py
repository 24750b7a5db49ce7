"""Whose container it is: labels that name the process which started it, and whether that one still lives.

A process is named by its id, its start (ids are used again), the boot of its kernel and its process
namespace: an id means nothing in another one. Of what this process cannot judge it says that it lives.
"""

from __future__ import annotations

import os
from pathlib import Path

NAME_LABEL, OWNER_LABEL = "fpenv.sandbox", "fpenv.owner"
_PARTS = 5  # boot, process namespace, user, process, its start
_START_FIELD = 19  # of /proc/PID/stat, counted from the state behind the command's name


def describe_owner() -> str:
    """Return what names this process for `is_gone`."""
    return f"{_machine()} {os.geteuid()} {os.getpid()} {_start_of(os.getpid())}"


def is_gone(owner: str) -> bool:
    """Say whether the described process has certainly ended."""
    parts = owner.split(" ")
    if len(parts) != _PARTS or " ".join(parts[:2]) != _machine() or not parts[3].isdecimal():
        return False
    if os.geteuid() not in (0, int(parts[2]) if parts[2].isdecimal() else 0):
        return False  # a machine may hide other users' processes
    return _start_of(int(parts[3])) != parts[4]


def _machine() -> str:
    """Name the running kernel and this process's namespace of process ids."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {os.stat('/proc/self/ns/pid').st_ino}"


def _start_of(pid: int) -> str:
    """Return when a process started, in ticks since boot; "" if it is none or only waits to be reaped."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[_START_FIELD]
