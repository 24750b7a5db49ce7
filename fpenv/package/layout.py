"""Where a package keeps its parts: the official layout, or Harbor's older one.

    official   task.md                       verifier/  at /verifier   oracle/    at /oracle
    Harbor     task.toml, instruction.md     tests/     at /tests      solution/  at /solution

A folder with `task.md` is official, whatever else lies in it; there `tests/` and `solution/` stand in for
`verifier/` and `oracle/` only where these are missing.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from fpenv.errors import TaskError

_FRONTMATTER = re.compile(r"---[ \t]*\n(.*?\n|)---[ \t]*(?:\n|\Z)(.*)", re.DOTALL)
_RESERVED = re.compile(r"## (prompt|role:\S+|scene:\S+|user-persona)[ \t]*", re.IGNORECASE)
_MOUNTS = {"verifier": "/verifier", "tests": "/tests", "oracle": "/oracle", "solution": "/solution"}
RUBRICS = ("rubric.json", "verifier/rubric.json", "tests/rubric.json")


@dataclass(frozen=True)
class Layout:
    """Names of a package's folders, relative to it, and where their scripts expect them inside a sandbox."""

    verifier: str = "verifier"
    oracle: str = "oracle"

    @property
    def verifier_mount(self) -> str:
        return _MOUNTS[self.verifier]

    @property
    def oracle_mount(self) -> str:
        return _MOUNTS[self.oracle]


@dataclass(frozen=True)
class Sheet:
    """What the package says, before it is validated: the raw settings, the prompt, and the file they came from."""

    file: Path
    settings: Any
    prompt: str


def is_package(folder: Path) -> bool:
    return (folder / "task.md").is_file() or (folder / "task.toml").is_file()


def find_layout(folder: Path) -> Layout:
    """Say where the parts are. Raises TaskError where there is no verifier to run."""
    order = ("verifier", "tests") if (folder / "task.md").is_file() else ("tests", "verifier")
    verifier = next((name for name in order if (folder / name).is_dir()), order[0])
    if not (folder / verifier / "test.sh").is_file():
        raise TaskError(f"{folder}: expected {verifier}/test.sh, found none; add the hidden tests")
    pair = ("oracle", "solution") if order[0] == "verifier" else ("solution", "oracle")
    oracle = next((name for name in pair if (folder / name).is_dir()), pair[0])
    return Layout(verifier, oracle)


def read_sheet(folder: Path) -> Sheet:
    """Read `task.md`, or `task.toml` with `instruction.md`. Raises TaskError naming the file."""
    if (folder / "task.md").is_file():
        return _read_task_md(folder / "task.md")
    if (folder / "task.toml").is_file():
        return _read_task_toml(folder / "task.toml")
    raise TaskError(f"{folder}: expected a task package with task.md or task.toml, found none; name its folder")


def _read_task_md(file: Path) -> Sheet:
    match = _FRONTMATTER.fullmatch(_text(file))
    if match is None:
        raise TaskError(f"{file}: expected YAML frontmatter between two lines '---', found none")
    try:
        settings = yaml.safe_load(match[1])
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise TaskError(f"{file}: the frontmatter is not YAML: {error}") from error
    return Sheet(file, {} if settings is None else settings, _base_prompt(match[2]))


def _read_task_toml(file: Path) -> Sheet:
    try:
        settings = tomllib.loads(_text(file))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise TaskError(f"{file}: it is not TOML: {error}") from error
    instruction = file.parent / "instruction.md"
    if not instruction.is_file():
        raise TaskError(f"{file.parent}: expected instruction.md beside task.toml, found none; add the prompt")
    return Sheet(file, settings, _text(instruction).strip() + "\n")


def _base_prompt(body: str) -> str:
    """The body, or its section `## prompt` where a compatibility import marked one."""
    sections: dict[str, list[str]] = {}
    name = ""
    for line in body.splitlines():
        heading = _RESERVED.fullmatch(line)
        name = heading[1].lower() if heading else name
        sections.setdefault(name, []).extend([] if heading else [line])
    chosen = sections.get("prompt") or sections.get("", [])
    return "\n".join(chosen).strip() + "\n"


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise TaskError(f"{file}: expected UTF-8 text, got {error}") from error
