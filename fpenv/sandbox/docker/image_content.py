"""What of an image is prepared on the host: the digest of what it is built from, and what lies in its folders.

A sandbox's writable folders are empty tmpfs mounts that hide what an image has there. So that is read once
and laid into each sandbox, as the agent's own.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import stat
import tarfile
from collections.abc import Generator, Iterable
from pathlib import Path, PurePosixPath

from fpenv.errors import SandboxError, TaskError

SEED_LIMIT = 64 << 20
_OVERHEAD = 4 << 20

UNPACK = """
import sys, tarfile
options = {"filter": "tar"} if hasattr(tarfile, "tar_filter") else {}
fixed = tuple(sys.argv[1:])
with tarfile.open(fileobj=sys.stdin.buffer, mode="r|") as archive:
    for member in archive:
        path = "/" + member.name
        if not any(path == other or path.startswith(other + "/") for other in fixed):
            archive.extract(member, "/", set_attrs=not member.isdir(), **options)
"""
"""Run inside: unpacks a seed from stdin, but nothing at or below the paths in its arguments."""


def digest_context(folder: Path) -> str:
    """Return the digest of all that a build may use: names, contents, what is executable, where links lead."""
    if not (folder / "Dockerfile").is_file():
        raise TaskError(f"expected a Dockerfile in {folder}, found none")
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*"), key=lambda path: path.relative_to(folder).as_posix()):
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            kind, content = "link", os.readlink(path).encode("utf-8", "surrogateescape")
        elif stat.S_ISDIR(mode):
            kind, content = "folder", b""
        elif stat.S_ISREG(mode):
            kind, content = "program" if mode & stat.S_IXUSR else "file", path.read_bytes()
        else:
            raise TaskError(f"expected files, folders and links in {folder}, {path} is something else")
        name = path.relative_to(folder).as_posix().encode("utf-8", "surrogateescape")
        digest.update(kind.encode() + b"\0" + name + b"\0" + hashlib.sha256(content).digest())
    return digest.hexdigest()


def pack_seed(archives: Iterable[tuple[str, bytes]]) -> bytes:
    """Return one archive of what an image has in some folders, b"" if there is nothing.

    archives: (folder, tar of it as the engine gives it, with the folder itself as its first member). Kept are
    files, folders and links; owners and special modes are not. Raises SandboxError if it is too much.
    """
    packed, count = io.BytesIO(), 0
    with tarfile.open(fileobj=packed, mode="w") as seed:
        for folder, data in archives:
            with tarfile.open(fileobj=io.BytesIO(data)) as archive:
                for member in archive:
                    kept = _rename(member, PurePosixPath(folder))
                    if kept is not None:
                        seed.addfile(kept, archive.extractfile(member) if member.isreg() else None)
                        count += 1
    return packed.getvalue() if count else b""


def join_chunks(chunks: Generator[bytes, None, None], folder: str, image: str) -> bytes:
    """Return a download whole. Raises SandboxError past what can be laid into each sandbox."""
    data = bytearray()
    with contextlib.closing(chunks):
        for chunk in chunks:
            data += chunk
            if len(data) > SEED_LIMIT - _OVERHEAD:
                raise SandboxError(
                    f"the image {image} holds more than {SEED_LIMIT - _OVERHEAD >> 20} MiB in {folder}, which is "
                    "copied into each sandbox; let its Dockerfile put large inputs into /data: there they are shared"
                )
    return bytes(data)


def _rename(member: tarfile.TarInfo, folder: PurePosixPath) -> tarfile.TarInfo | None:
    """Return a member of a folder's archive as one of the seed; None for the folder itself, devices and pipes."""
    inside = PurePosixPath(member.name).parts[1:]
    if not inside or ".." in inside or not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
        return None
    path = str(folder.joinpath(*inside)).lstrip("/")
    link = member.linkname
    if member.islnk():
        link = str(folder.joinpath(*PurePosixPath(link).parts[1:])).lstrip("/")
    mode = member.mode & 0o777 | (0o700 if member.isdir() else 0o600)
    return member.replace(name=path, linkname=link, mode=mode, uid=0, gid=0, uname="", gname="", deep=False)
