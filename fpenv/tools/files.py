"""Write a file, read a part of one."""

from __future__ import annotations

import posixpath

from pydantic import Field

from fpenv.records import ToolResult
from fpenv.tools.tool import Arguments, Room, ShellText, Tool

READ_LIMIT = 8 << 20
SHOW_LIMIT = 32 << 10


class WriteArguments(Arguments):
    path: ShellText = Field(min_length=1, max_length=4096)
    content: str


class WriteFile(Tool[WriteArguments]):
    """Write a text file whole."""

    name = "write_file"
    description = "Write a UTF-8 text file whole, making its folders. A relative path is below /root."
    arguments = WriteArguments

    def run(self, arguments: WriteArguments, room: Room) -> ToolResult:
        path = _absolute(arguments.path)
        data = arguments.content.encode("utf-8", "replace")
        try:
            room.sandbox.write(path, data)
        except (OSError, ValueError) as error:
            return _failed(path, error)
        return ToolResult(output=f"wrote {len(data):,} bytes to {path}", data={"path": path, "bytes": len(data)})


class ReadArguments(Arguments):
    path: ShellText = Field(min_length=1, max_length=4096)
    first_line: int = Field(default=1, ge=1)
    lines: int = Field(default=400, ge=1, le=100_000)


class ReadFile(Tool[ReadArguments]):
    """Read some lines of a text file."""

    name = "read_file"
    description = (
        "Read lines of a UTF-8 text file: `lines` of them from `first_line` (counted from 1). A relative path is "
        f"below /root. At most {SHOW_LIMIT >> 10} KiB are shown, and only files up to {READ_LIMIT >> 20} MiB are read."
    )
    arguments = ReadArguments

    def run(self, arguments: ReadArguments, room: Room) -> ToolResult:
        path = _absolute(arguments.path)
        try:
            data, size = room.sandbox.read(path, limit=READ_LIMIT)
        except (OSError, ValueError) as error:
            return _failed(path, error)
        if size > READ_LIMIT:
            message = f"{path}: expected a file of at most {READ_LIMIT:,} bytes, got {size:,}; use bash (head, sed)"
            return ToolResult(output=message, failed=True, data={"path": path, "size": size})
        every = data.decode("utf-8", "replace").splitlines(keepends=True)
        start = arguments.first_line - 1
        chosen = "".join(every[start : start + arguments.lines])
        cut = len(chosen) - SHOW_LIMIT
        last = min(len(every), start + arguments.lines)
        note = f"[lines {arguments.first_line} to {last} of {len(every)}]" if last - start < len(every) else ""
        if cut > 0:
            note = f"[{cut:,} more characters cut] {note}".strip()
        text = chosen[:SHOW_LIMIT].rstrip("\n")
        return ToolResult(output="\n".join(filter(None, (text, note))), data={"path": path, "size": size})


def _absolute(path: str) -> str:
    return posixpath.normpath(posixpath.join("/root", path))


def _failed(path: str, error: Exception) -> ToolResult:
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return ToolResult(output=f"{path}: {reason}", failed=True, data={"path": path})
