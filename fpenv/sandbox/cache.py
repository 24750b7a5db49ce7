"""Where built things lie: folders that appear whole, under a lock, readable by everyone.

`$FPENV_CACHE` names the root; otherwise it is /var/cache/fpenv for root and the user's cache folder for
others. Sandboxes run under a user of their own, so as root the whole path must be open to others.
"""

from __future__ import annotations

import fcntl
import functools
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from platformdirs import user_cache_path

from fpenv.errors import ConfigError

_TEMPORARY = ".building-"


def cache_root() -> Path:
    """Return the cache's root, made if need be. Raises ConfigError if it cannot serve."""
    return _checked_root(os.environ.get("FPENV_CACHE"), os.geteuid())


@functools.cache
def _checked_root(named: str | None, user: int) -> Path:
    if named:
        root = Path(named).absolute()
    elif user == 0:
        root = Path("/var/cache/fpenv")
    else:
        root = user_cache_path("fpenv")
    try:
        root.mkdir(parents=True, exist_ok=True)
        root = root.resolve(strict=True)
    except OSError as error:
        raise ConfigError(f"the cache folder {root} cannot be made ({error.strerror}); set FPENV_CACHE") from None
    _check(root)
    return root


def _check(root: Path) -> None:
    info = root.stat()
    if info.st_uid not in (os.geteuid(), 0) or info.st_mode & stat.S_IWOTH:
        raise ConfigError(f"the cache folder {root} may be changed by others; set FPENV_CACHE to one of your own")
    if not os.access(root, os.W_OK):
        raise ConfigError(f"the cache folder {root} is not writable; set FPENV_CACHE")
    if os.geteuid() != 0:
        return
    if not info.st_mode & stat.S_IXOTH and root.name == "fpenv":
        root.chmod(0o755)
    for folder in (root, *root.parents):
        if not folder.stat().st_mode & stat.S_IXOTH:
            raise ConfigError(
                f"the cache folder {root} lies behind {folder}, which sandbox users may not enter; "
                f"set FPENV_CACHE to a folder open to all, or `chmod o+x {folder}`"
            )


def provide_folder(path: Path, build: Callable[[Path], None]) -> Path:
    """Return `path`; if it is not there yet, let `build` fill a new folder and put that in its place.

    One builder at a time; a build that fails or is killed leaves nothing that would be taken for a result.
    """
    if path.is_dir():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with _lock(path.with_name(path.name + ".lock")):
        _sweep(path.parent, path.name)
        if not path.is_dir():
            temporary = path.with_name(_TEMPORARY + path.name)
            temporary.mkdir(mode=0o755)
            try:
                build(temporary)
                open_to_all(temporary)
                temporary.rename(path)
            finally:
                shutil.rmtree(temporary, ignore_errors=True)
    return path


def open_to_all(folder: Path) -> None:
    """Let everyone read the folder's files and enter its folders, and nobody else write them."""
    for parent, folders, files in os.walk(folder):
        os.chmod(parent, 0o755)
        for name in [*folders, *files]:
            path = os.path.join(parent, name)
            mode = os.lstat(path).st_mode
            if stat.S_ISREG(mode):
                os.chmod(path, 0o755 if mode & stat.S_IXUSR else 0o644)


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _sweep(folder: Path, name: str) -> None:
    shutil.rmtree(folder / (_TEMPORARY + name), ignore_errors=True)
