"""The read-only folders that every sandbox shares: a minimal /etc, and /opt/lab with guest and client.

Of the host's /etc only what programs need to run is taken: the loader's cache, alternatives, fonts, the time
zone and public certificates. Accounts are made up. Both lie in the cache, keyed by what they hold.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import py_compile
import shutil
import sys
from pathlib import Path

from fpenv.sandbox.cache import cache_root, provide_folder

AGENT_ID = 1000
_HERE = Path(__file__).parent
_FROM_HOST = ("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives", "fonts", "localtime", "mime.types")
_CERTIFICATES = "ssl/certs/ca-certificates.crt"
_MADE = {
    "passwd": f"root:x:0:0:root:/nonexistent:/usr/sbin/nologin\nagent:x:{AGENT_ID}:{AGENT_ID}::/root:/bin/bash\n"
    "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
    "group": f"root:x:0:\nagent:x:{AGENT_ID}:\nnogroup:x:65534:\n",
    "hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
    "hostname": "sandbox\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nshadow: files\nhosts: files\n",
    "resolv.conf": "",
}
_COMMAND = """#!/opt/runtime/bin/python3 -I
import sys

sys.path.insert(0, "/opt/lab/lib")
from lab import main

sys.exit(main(sys.argv[1:]))
"""


def provide_etc() -> Path:
    """Return the folder that is /etc inside."""
    return provide_folder(cache_root() / f"etc-{_etc_key()}", _build_etc)


@functools.cache
def _etc_key() -> str:
    key = hashlib.sha256(repr(sorted(_MADE.items())).encode())
    for name in (*_FROM_HOST, _CERTIFICATES):
        for path in (Path("/etc", name), *sorted(Path("/etc", name).glob("*"))):
            if path.exists():
                key.update(f"{path} {path.stat().st_mtime_ns} {path.stat().st_size}\n".encode())
    return key.hexdigest()[:16]


def _build_etc(folder: Path) -> None:
    for name, text in _MADE.items():
        (folder / name).write_text(text)
    for name in _FROM_HOST:
        source = Path("/etc", name)
        if source.is_dir():
            shutil.copytree(source, folder / name, symlinks=True)
        elif source.exists():
            shutil.copy(source, folder / name)
    if Path("/etc", _CERTIFICATES).exists():
        (folder / _CERTIFICATES).parent.mkdir(parents=True)
        shutil.copy(Path("/etc", _CERTIFICATES), folder / _CERTIFICATES)
    (folder / "mtab").symlink_to("/proc/self/mounts")
    (folder / "os-release").symlink_to("/usr/lib/os-release")


def provide_support() -> Path:
    """Return the folder that is /opt/lab inside."""
    return provide_folder(cache_root() / f"support-{_support_key()}", _build_support)


@functools.cache
def _support_files() -> dict[str, bytes]:
    return {
        "guest/guest.py": (_HERE / "guest.py").read_bytes(),
        "lib/lab.py": (_HERE / "client.py").read_bytes(),
        "bin/lab": _COMMAND.encode(),
    }


@functools.cache
def _support_key() -> str:
    return hashlib.sha256(repr((_support_files(), sys.version)).encode()).hexdigest()[:16]


def _build_support(folder: Path) -> None:
    for name, content in _support_files().items():
        path = folder / name
        path.parent.mkdir()
        path.write_bytes(content)
        if path.suffix == ".py":
            py_compile.compile(
                str(path),
                dfile=f"/opt/lab/{name}",
                doraise=True,
                cfile=importlib.util.cache_from_source(str(path), optimization=""),
                optimize=2,  # no docstrings: the guest's start is part of every sandbox's
                invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
            )
    (folder / "bin/lab").chmod(0o755)


def provide_empty() -> Path:
    """Return an empty folder, which hides another one."""
    return provide_folder(cache_root() / "empty", lambda folder: None)


def provide_stage() -> Path:
    """Return the folder that each sandbox mounts its own files on, in a mount namespace of its own."""
    return provide_folder(cache_root() / "stage", lambda folder: None)
