"""Whether this machine can isolate, what holds on it, and how to mend what does not."""

from __future__ import annotations

import os
import platform
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fpenv.errors import FpenvError, SandboxError
from fpenv.sandbox import rootfs, seccomp
from fpenv.sandbox.local.bwrap import find_bwrap
from fpenv.sandbox.local.cgroup import Cgroup, make_cgroup, remove_groups
from fpenv.sandbox.local.launcher import get_launcher
from fpenv.sandbox.local.lease import take_lease
from fpenv.sandbox.local.mounts import ISOLATION
from fpenv.sandbox.sandbox import Limits

OLDEST_KERNEL = (5, 14)
"""The first that counts processes for each user namespace; pidfd, openat2 and time namespaces are older."""

_PROBE_TIMEOUT_S = 20.0
_PRIVILEGES = (
    "as root in a container, allow what bubblewrap needs: docker run --security-opt seccomp=unconfined "
    "--security-opt systempaths=unconfined --security-opt apparmor=unconfined"
)
_SWITCHES = (
    ("kernel.unprivileged_userns_clone", "0", "sudo sysctl kernel.unprivileged_userns_clone=1"),
    ("user.max_user_namespaces", "0", "sudo sysctl user.max_user_namespaces=10000"),
    (
        "kernel.apparmor_restrict_unprivileged_userns",
        "1",
        "sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0 (Ubuntu since 23.10), or run as root",
    ),
)


@dataclass(frozen=True)
class Promise:
    """Something the sandbox bounds or keeps apart: whether that holds here, and by what."""

    name: str
    holds: bool
    means: str


def check_isolation() -> list[tuple[str, bool, str]]:
    """Return (what is needed, whether it is there, how to get it); what is only better to have is marked."""
    return list(_checks())


def describe_isolation() -> list[Promise]:
    """Return what holds for sandboxes that this process starts."""
    cgroup, has_own_uid = _probe_host()
    bounded = "memory" in cgroup.controllers
    watched = "a watchdog ten times a second; files count apart, kernel buffers do not count"
    pids = "cgroup and RLIMIT_NPROC" if "pids" in cgroup.controllers else "RLIMIT_NPROC of the user namespace"
    return [
        Promise("files, processes, network apart", True, "namespaces, no capabilities, a system-call filter"),
        Promise(
            "a user id for each sandbox", has_own_uid, "setresuid" if has_own_uid else "it runs as the caller's user"
        ),
        Promise("memory", True, "cgroup" if bounded else watched),
        Promise("processes", True, pids),
        Promise("processors", "cpu" in cgroup.controllers, "cgroup" if "cpu" in cgroup.controllers else "no limit"),
        Promise("disk and inodes", True, "one tmpfs for all that is writable"),
        Promise("end with the host process", True, "parent-death signals and the process namespace"),
    ]


def explain_failure(said: str, status: int | None) -> str:
    """Return the message for a sandbox that ended before its guest spoke."""
    message = f"the sandbox did not start (status {status}): {said or 'no message'}"
    advice = [fix for name, bad, fix in _SWITCHES if _setting(name) == bad]
    if any(sign in said for sign in ("Operation not permitted", "Permission denied", "No space left")):
        advice = advice or [_PRIVILEGES]
    return "\n-> ".join([message, *advice])


def _checks() -> Iterator[tuple[str, bool, str]]:
    release = tuple(int(part) for part in platform.release().split("-")[0].split(".")[:2])
    yield "kernel", release >= OLDEST_KERNEL, f"Linux {'.'.join(map(str, OLDEST_KERNEL))} or newer"
    yield "machine", platform.machine() in seccomp.MACHINES, f"one of {', '.join(seccomp.MACHINES)}"
    try:
        find_bwrap()
        yield "bubblewrap", True, ""
    except FpenvError as error:
        yield "bubblewrap", False, str(error)
        return
    for name, bad, fix in _SWITCHES:
        if _setting(name) is not None and not (os.geteuid() == 0 and "unprivileged" in name):
            yield name, _setting(name) != bad, fix
    failure = _probe()
    yield "namespaces", failure is None, failure or ""
    controllers = _probe_host()[0].controllers
    wanted = "run as root, or in a systemd user service with Delegate=yes; else a watchdog stands in"
    yield "memory cgroup (optional)", "memory" in controllers, wanted
    yield "cpu cgroup (optional)", "cpu" in controllers, "run as root, or with delegated controllers"


def _setting(name: str) -> str | None:
    try:
        return Path("/proc/sys", *name.split(".")).read_text().strip()
    except OSError:
        return None


def _probe_host() -> tuple[Cgroup, bool]:
    """Return the control groups that a sandbox would get (removed again), and whether it has its own user id."""
    lease = take_lease(remove_groups)
    cgroup = make_cgroup(f"fpenv-probe-{lease.name}", Limits(cpus=1.0))
    cgroup.remove()
    lease.release()
    return cgroup, lease.uid is not None


def _probe() -> str | None:
    """Run nothing in an empty sandbox; return why it could not be done."""
    ours, theirs = socket.socketpair()
    read, write = os.pipe()
    lease = None
    try:
        lease = take_lease(remove_groups)
        links = [f"/{name}" for name in ("lib", "lib64") if os.path.islink(f"/{name}")]
        mounts = ["--ro-bind", "/usr", "/usr", "--proc", "/proc", "--dev", "/dev"]
        mounts += [word for link in links for word in ("--symlink", os.readlink(link), link)]
        request: dict[str, object] = {
            "argv": [str(find_bwrap().path), *ISOLATION, *mounts, "--", "/usr/bin/true"],
            "stage": str(rootfs.provide_stage()),
            "filter": seccomp.build_filter(memory_is_bounded=False).hex(),
            "uid": lease.uid,
            "size": 1 << 20,
            "inodes": 100,
            "limits": {},
        } | dict.fromkeys(("folders", "files", "cgroups"), ())
        pid = get_launcher().start(request, [], theirs.fileno(), write)
        status, deadline = None, time.monotonic() + _PROBE_TIMEOUT_S
        while status is None and time.monotonic() < deadline:
            time.sleep(0.002)
            status = get_launcher().reap(pid)
        os.set_blocking(read, False)
        os.write(write, b" ")
        said = os.read(read, 1 << 16).decode(errors="replace").strip()
        return None if status == 0 else explain_failure(said, status)
    except SandboxError as error:
        return str(error)
    finally:
        for end in (ours, theirs):
            end.close()
        for fd in (read, write):
            os.close(fd)
        if lease:
            lease.release()
