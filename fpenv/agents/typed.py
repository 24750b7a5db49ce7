"""What a typed line means: an action, something that is answered on the spot, or a mistake that costs nothing."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

HELP = """\
COMMAND                    run a shell command in /root (a line that ends with \\ goes on)
:read FILE [FIRST [LINES]] show a part of a text file
:write FILE                write a text file, in $EDITOR or line by line
:search WORDS              search the literature
:instrument JSON           operate an instrument: {"operation": ..., "arguments": {...}}
:manual                    the manual of the instruments
:timeout SECONDS           time limit of the commands that follow (plain :timeout: back to the usual)
:brief :history :budget    the task again; what was done; what is left. These cost no step.
:submit                    hand in and end the episode, after a question
:quit, :save, Ctrl-D       leave; fpenv play --resume RUN goes on later, and says where
Ctrl-C                     drops the line; while a command runs, says how to give it up"""
WORDS = (
    ":read",
    ":write",
    ":search",
    ":instrument",
    ":manual",
    ":timeout",
    ":brief",
    ":history",
    ":budget",
    ":submit",
    ":quit",
    ":save",
    ":help",
)

LOCAL = {"brief", "history", "budget", "submit", "help", "quit", "save", "exit"}


@dataclass(frozen=True)
class Local:
    """A command that takes no step by itself."""

    name: str
    rest: str = ""


@dataclass(frozen=True)
class Mistake:
    """What was expected instead."""

    text: str


Meaning = dict[str, Any] | Local | Mistake | None


def understand(line: str, timeout_s: float | None = None) -> Meaning:
    """Return what a line means; None for an empty one. A colon before a space is the shell's own."""
    line = line.strip()
    named = re.fullmatch(r":(\w+)(?:\s+(.*))?", line, re.DOTALL)
    if not named:
        limit = {} if timeout_s is None else {"timeout_s": timeout_s}
        return action("bash", {"command": line, **limit}) if line else None
    name, rest = named[1], (named[2] or "").strip()
    if name in LOCAL:
        return Local(name, rest)
    if name not in _PARSERS:
        return Mistake(f"there is no :{name}; :help lists what there is")
    return _PARSERS[name](rest)


def action(tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """An action as it is recorded: arguments as JSON text."""
    return {"tool": tool, "arguments": json.dumps(arguments, ensure_ascii=False)}


def typed_text(tool: str, arguments: str) -> str:
    """An action as a person would have typed it."""
    try:
        known = json.loads(arguments)
    except (ValueError, RecursionError):
        known = None
    match tool, known:
        case "bash", {"command": str(command)}:
            return command
        case "read_file", {"path": str(path), **rest}:
            numbers = (str(rest[name]) for name in ("first_line", "lines") if name in rest)
            return " ".join((":read", shlex.quote(path), *numbers))
        case "write_file", {"path": str(path)}:
            return f":write {shlex.quote(path)}"
        case "search_literature", {"query": str(query)}:
            return f":search {query}"
        case "instrument", {"operation": "manual"}:
            return ":manual"
        case "submit", _:
            return ":submit"
        case _:
            return f":{tool} {arguments}"


def _read(rest: str) -> Meaning:
    try:
        path, *numbers = shlex.split(rest)
        if len(numbers) > 2:
            raise ValueError
        fields = {name: int(number) for name, number in zip(("first_line", "lines"), numbers, strict=False)}
    except ValueError:
        return Mistake("expected :read FILE [FIRST [LINES]], with numbers from 1")
    return action("read_file", {"path": path, **fields})


def _write(rest: str) -> Meaning:
    try:
        (path,) = shlex.split(rest)
    except ValueError:
        return Mistake("expected :write FILE, one file, in quotes if its name has spaces")
    return Local("write", path)


def _search(rest: str) -> Meaning:
    return action("search_literature", {"query": rest}) if rest else Mistake("expected :search WORDS")


def _instrument(rest: str) -> Meaning:
    try:
        arguments = json.loads(rest)
    except (ValueError, RecursionError) as error:
        return Mistake(f'expected :instrument JSON, such as {{"operation": "manual"}}; that was no JSON: {error}')
    if not isinstance(arguments, dict):
        return Mistake(f"expected :instrument and a JSON object {{...}}, got a {type(arguments).__name__}")
    return action("instrument", arguments)


def _timeout(rest: str) -> Meaning:
    try:
        if rest and not 0 < float(rest) <= 36_000:
            raise ValueError
    except ValueError:
        return Mistake("expected :timeout SECONDS, more than 0 and at most 36000")
    return Local("timeout", rest)


_PARSERS: dict[str, Callable[[str], Meaning]] = {
    "read": _read,
    "write": _write,
    "search": _search,
    "instrument": _instrument,
    "manual": lambda rest: action("instrument", {"operation": "manual"}),
    "timeout": _timeout,
}


def clock(seconds: float) -> str:
    whole = int(seconds)
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}" if hours else f"{rest // 60}:{rest % 60:02d}"
