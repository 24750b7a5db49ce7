"""The files and folders of an image while its Dockerfile is read. Paths are absolute and normal."""

from __future__ import annotations

import fnmatch
import posixpath
import re
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from fpenv.package.requirement_lines import Unsupported

MAX_BYTES = 512 << 20
_SYSTEM = (
    "/usr",
    "/etc",
    "/proc",
    "/dev",
    "/sys",
    "/run",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/var",
    "/boot",
)
_OURS = ("/opt/lab", "/opt/runtime", "/opt/fpenv", "/verifier", "/oracle", "/tests", "/solution", "/logs")


@dataclass
class ImageFiles:
    """What has been laid down so far."""

    files: dict[str, bytes] = field(default_factory=dict)
    folders: list[str] = field(default_factory=list)
    executables: set[str] = field(default_factory=set)
    read_by_pip: set[str] = field(default_factory=set)

    def read(self, path: str) -> bytes | None:
        """Content of a file that pip asks for, or None."""
        self.read_by_pip.add(path)
        return self.files.get(path)

    def laid_down(self) -> dict[str, bytes]:
        """What stays: requirements files in /tmp have done their duty."""
        used = {path for path in self.read_by_pip if path.startswith("/tmp/")}
        return {path: content for path, content in self.files.items() if path not in used}

    def put(self, path: str, content: bytes, *, executable: bool = False) -> None:
        """Lay down a file. Raises Unsupported where the sandbox's own system lies."""
        _check_place(path, is_file=True)
        self.files[path] = content
        (self.executables.add if executable else self.executables.discard)(path)
        if sum(map(len, self.files.values())) > MAX_BYTES:
            raise Unsupported(f"lays down more than {MAX_BYTES >> 20} MiB of files")

    def make_folder(self, path: str) -> None:
        _check_place(path, is_file=False)
        if path not in self.folders and path not in ("/", "/root", "/tmp"):
            self.folders.append(path)

    def remove(self, pattern: str) -> None:
        """Remove what a path or glob names; what is not there is no matter."""
        for path in list(self.files):
            if any(
                fnmatch.fnmatchcase(str(part), pattern) for part in (PurePosixPath(path), *PurePosixPath(path).parents)
            ):
                del self.files[path]
                self.executables.discard(path)
        self.folders = [path for path in self.folders if not fnmatch.fnmatchcase(path, pattern)]

    def set_mode(self, mode: str, path: str, *, recursive: bool) -> None:
        """Apply the execute bit of a chmod; owner and other bits do not differ in a sandbox with one user."""
        executable = _execute_bit(mode)
        for name in self.files:
            inside = recursive and PurePosixPath(name).is_relative_to(path)
            if executable is not None and (fnmatch.fnmatchcase(name, path) or inside):
                (self.executables.add if executable else self.executables.discard)(name)


class Context:
    """The folder that COPY takes files from. Symbolic links are followed where they stay inside."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._root = folder.resolve()
        ignore = folder / ".dockerignore"
        lines = ignore.read_text(encoding="utf-8", errors="replace").splitlines() if ignore.is_file() else []
        self._ignored = [line.strip().strip("/") for line in lines if line.strip() and not line.startswith("#")]

    def find(self, source: str) -> dict[str, tuple[bytes, bool]]:
        """Files that a source of COPY means: path relative to what is copied -> content and execute bit.

        A folder's files are relative to it, a single file has its own name. Raises Unsupported.
        """
        pattern = posixpath.normpath(source.lstrip("/")) if source.strip("/.") else "."
        if pattern.startswith(".."):
            raise Unsupported(f"copies {source!r} from outside the build context")
        matches = sorted(self._folder.glob(pattern)) if re.search(r"[*?\[]", pattern) else [self._folder / pattern]
        found: dict[str, tuple[bytes, bool]] = {}
        for match in matches:
            inside = [match] if match.is_file() else sorted(f for f in match.rglob("*") if f.is_file())
            anchor = match.parent if match.is_file() else match
            found |= {f.relative_to(anchor).as_posix(): self._read(f) for f in inside if not self._is_ignored(f)}
        if not any(match.exists() for match in matches):
            raise Unsupported(f"copies {source!r}, which is not in the build context")
        return found

    def is_folder(self, source: str) -> bool:
        return (self._folder / source.lstrip("/")).is_dir()

    def _read(self, file: Path) -> tuple[bytes, bool]:
        if not file.resolve().is_relative_to(self._root):
            raise Unsupported(f"copies {file.name!r}, a link that leads out of the build context")
        return file.read_bytes(), bool(file.stat().st_mode & 0o100)

    def _is_ignored(self, file: Path) -> bool:
        relative = file.relative_to(self._folder)
        parts = (relative, *relative.parents)[:-1]
        ignored = False
        for line in self._ignored:
            pattern = line.lstrip("!").removeprefix("**/")
            if any(fnmatch.fnmatchcase(str(part), pattern) for part in parts) or (
                line.startswith("**/") and any(fnmatch.fnmatchcase(part.name, pattern) for part in parts)
            ):
                ignored = not line.startswith("!")
        return ignored


def _check_place(path: str, *, is_file: bool) -> None:
    parts = PurePosixPath(path).parts
    if any(PurePosixPath(path).is_relative_to(taken) for taken in (*_SYSTEM, *_OURS)):
        raise Unsupported(f"writes to {path}, where the sandbox keeps its own system")
    if is_file and len(parts) < (4 if parts[1:2] == ("opt",) else 3):
        raise Unsupported(f"writes {path} beside the system's folders")


def _execute_bit(mode: str) -> bool | None:
    """What a mode says about executing, or None where it does not touch that."""
    if re.fullmatch(r"[0-7]{3,4}", mode):
        return bool(int(mode[-3]) & 1)
    symbolic = re.fullmatch(r"[ugoa]*([+=-])([rwxXst]*)", mode)
    if symbolic is None:
        raise Unsupported(f"chmod {mode}")
    return symbolic[1] != "-" if "x" in symbolic[2] else None
