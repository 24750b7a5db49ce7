"""Python packages, as `pip install` arguments and requirements files name them.

Pins, ranges, extras, markers and hashes are kept as they are. Where an index is named it is left out, with a
note: packages come from the index that this machine's pip is set up for. Nothing is installed from a path,
an archive, a URL or a repository.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

_REQUIREMENT = re.compile(
    r"[A-Za-z0-9][A-Za-z0-9._-]*\s*(\[[A-Za-z0-9._,\s-]*\])?"  # name, extras
    r"\s*(\(?\s*(===|==|~=|!=|<=|>=|<|>)\s*[A-Za-z0-9.*+!_-]+(\s*,\s*(===|==|~=|!=|<=|>=|<|>)\s*[A-Za-z0-9.*+!_-]+)*\s*\)?)?"
    r"\s*(;[^#]*)?(\s+--hash=\S+)*",
    re.ASCII,
)
_INDEX = {
    "-i",
    "--index-url",
    "--extra-index-url",
    "-f",
    "--find-links",
    "--trusted-host",
    "--index",
    "--default-index",
}
_INDEX_ALONE = {"--no-index"}
_WITH_VALUE = {
    *("--timeout", "--default-timeout", "--retries", "--root-user-action", "--progress-bar", "--cache-dir", "--python"),
    *("--only-binary", "--no-binary", "--exists-action", "--log", "--use-feature"),
}
_HARMLESS = {
    *("--no-cache-dir", "--no-cache", "-q", "-qq", "-qqq", "--quiet", "-v", "--verbose", "-U", "--upgrade"),
    *("--no-input", "--disable-pip-version-check", "--break-system-packages", "--prefer-binary", "--system"),
    *("--no-warn-script-location", "--no-color", "--compile", "--no-compile", "--force-reinstall", "--user"),
    *("--no-build-isolation", "--ignore-installed", "-I", "--upgrade-strategy", "--only-if-needed"),
}
_OWN_INSTALLER = {"pip", "uv"}
ReadFile = Callable[[str], bytes | None]
"""Content of a file as it would lie in the image, or None."""


class Unsupported(Exception):
    """What the local sandbox cannot do, in words."""


@dataclass
class Wanted:
    """What has been asked for so far."""

    lines: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, requirement: str) -> None:
        text = requirement.strip()
        if not _REQUIREMENT.fullmatch(text):
            raise Unsupported(f"installs {text!r}: expected a package by name and version")
        if re.split(r"[^A-Za-z0-9._-]", text, maxsplit=1)[0].lower() in _OWN_INSTALLER:
            self.notes.append(f"{text} is not installed: sandboxes have no network to use it")
        elif text not in self.lines:
            self.lines.append(text)


def read_arguments(arguments: Sequence[str], read: ReadFile, wanted: Wanted) -> None:
    """Take up the arguments after `pip install`. Raises Unsupported."""
    rest = iter(arguments)
    for word in rest:
        flag, has_value, value = word.partition("=") if word.startswith("--") else (word, "", "")
        if flag in ("-r", "--requirement"):
            _read_file(value if has_value else _next(rest, word), read, wanted)
        elif word.startswith("-r") and len(word) > 2 and not word.startswith("--"):
            _read_file(word[2:], read, wanted)
        elif flag in _INDEX or flag in _INDEX_ALONE:
            if flag in _INDEX and not has_value:
                _next(rest, word)
            wanted.notes.append(f"{flag} is not used: packages come from this machine's index")
        elif flag in _WITH_VALUE:
            if not has_value:
                _next(rest, word)
        elif flag in _HARMLESS:
            continue
        elif word.startswith("-"):
            raise Unsupported(f"pip install {word}")
        else:
            wanted.add(word)


def read_requirements(text: str, read: ReadFile, wanted: Wanted, folder: str = "", depth: int = 0) -> None:
    """Take up the lines of a requirements file. Raises Unsupported."""
    for raw in text.replace("\\\r\n", " ").replace("\\\n", " ").splitlines():
        line = re.sub(r"(^|\s)#.*$", "", raw).strip()
        if not line:
            continue
        flag, _, value = re.sub(r"[=\s]+", " ", line, count=1).partition(" ") if line.startswith("-") else ("", "", "")
        if flag in ("-r", "--requirement"):
            path = value if value.startswith("/") or not folder else f"{folder}/{value}"
            _read_file(path, read, wanted, depth + 1)
        elif flag in _INDEX or flag in _INDEX_ALONE:
            wanted.notes.append(f"{flag} is not used: packages come from this machine's index")
        elif flag in _HARMLESS or flag in _WITH_VALUE:
            continue
        elif line.startswith("-"):
            raise Unsupported(f"a requirements file has {line!r}")
        else:
            wanted.add(line)


def _read_file(path: str, read: ReadFile, wanted: Wanted, depth: int = 0) -> None:
    content = read(path)
    if content is None or depth > 8:
        raise Unsupported(f"pip install -r {path}: expected a file that was copied in, found none")
    folder = path.rpartition("/")[0]
    read_requirements(content.decode("utf-8-sig", "replace"), read, wanted, folder, depth)


def _next(rest: Iterator[str], flag: str) -> str:
    value = next(rest, None)
    if value is None:
        raise Unsupported(f"pip install {flag} without its value")
    return value
