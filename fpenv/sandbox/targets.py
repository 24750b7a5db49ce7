"""Where things may lie inside a sandbox, and whether its user can read what is mounted there; for every backend."""

from __future__ import annotations

import stat
from pathlib import Path, PurePosixPath

from fpenv.errors import SandboxError


def check_target(path: str) -> PurePosixPath:
    """Return an absolute path inside. Raises SandboxError for one that leads elsewhere."""
    if not path.startswith("/") or "\0" in path or ".." in path.split("/") or path.rstrip("/") == "":
        raise SandboxError(f"expected an absolute path inside the sandbox without `..`, got {path!r}")
    return PurePosixPath("/" + path.strip("/"))


def overlaps(path: str, other: str) -> bool:
    """Whether one path is the other, or lies below it."""
    first, second = PurePosixPath(path), PurePosixPath(other)
    return first.is_relative_to(second) or second.is_relative_to(first)


def readable_by_all(source: Path) -> bool:
    """Whether any user can read all of a file or folder; what lies above it does not count."""
    for path in (source, *(source.rglob("*") if source.is_dir() else ())):
        mode = path.lstat().st_mode
        needed = stat.S_IROTH | (stat.S_IXOTH if stat.S_ISDIR(mode) else 0)
        if not stat.S_ISLNK(mode) and mode & needed != needed:
            return False
    return True
