"""What this machine can and cannot do for fpenv, and how to fix it."""

from __future__ import annotations

import platform
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from fpenv.errors import FpenvError
from fpenv.names import list_tasks
from fpenv.sandbox.local import LocalBackend, check_isolation
from fpenv.sandbox.runtime import cache_root, provide
from fpenv.sandbox.sandbox import SandboxSpec
from fpenv.task import find_task


@dataclass(frozen=True)
class Finding:
    """One fact about the machine. `needed` findings must be ok for the local sandbox to work."""

    name: str
    ok: bool
    found: str
    fix: str = ""
    needed: bool = True


def examine() -> Iterator[Finding]:
    """Look at the machine, cheapest facts first, and end with a real sandbox that runs a command."""
    version = platform.python_version()
    yield Finding(
        "python",
        sys.version_info >= (3, 11),
        f"{version} at {sys.executable}",
        "install Python 3.11 or newer",
    )
    yield Finding("system", sys.platform == "linux", platform.platform(), "the local sandbox needs Linux")
    for name, ok, fix in check_isolation():
        yield Finding(name, ok, "available" if ok else "not available", fix, needed=not name.endswith("(optional)"))
    yield _cache()
    for name in list_tasks():
        task = find_task(name)
        yield Finding(f"task {name}", True, f"{len(task.rubric)} criteria, digest {task.digest[:12]}")
    yield _docker()
    yield _sandbox()


def _cache() -> Finding:
    try:
        root = cache_root()
    except FpenvError as error:
        return Finding("cache", False, str(error), "set FPENV_CACHE to a folder of your own that others may enter")
    free = shutil.disk_usage(root).free / 1e9
    return Finding("cache", free > 1, f"{root}, {free:.1f} GB free", "set FPENV_CACHE to a folder with 1 GB free")


def _docker() -> Finding:
    """Whether an engine answers: a program called docker alone is of no use."""
    try:
        from fpenv.sandbox.docker.engine import connect, resolve_address

        address = resolve_address(None)
        connect(address)
    except FpenvError as error:
        found, *fix = str(error).split("\n-> ")
        return Finding("docker (optional)", False, found, "; ".join((*fix, "only tasks that need Docker do")), False)
    return Finding("docker (optional)", True, f"an engine answers at {address}", needed=False)


def _sandbox() -> Finding:
    try:
        with LocalBackend().start(SandboxSpec(runtime=provide("").path)) as box:
            done = box.exec(("python3", "-c", "print(6 * 7)"), timeout_s=20)
    except FpenvError as error:
        return Finding("sandbox", False, str(error), "see the message")
    except OSError as error:
        return Finding("sandbox", False, error.strerror or "the runtime could not be built", "free space in the cache")
    ok = done.stdout.strip() == b"42"
    return Finding(
        "sandbox", ok, "started one and ran Python in it" if ok else repr(done), "report this with the output"
    )
