"""The steps of a RUN instruction that need no shell: pip, mkdir, chmod, rm, touch, cd, true, joined by && or ;.

Anything else (apt-get install, a pipe, a redirection, a substitution, a loop) is named, not guessed at.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Callable, Mapping

from fpenv.package.image_files import ImageFiles
from fpenv.package.requirement_lines import Unsupported, Wanted, read_arguments

_PIP = re.compile(r"pip3?(\.[0-9]+)?")
_PYTHON = re.compile(r"python3?(\.[0-9]+)?")
_NOTHING = {"true", ":", "echo", "set", "sync"}
_NOTHING_PAIRS = {
    ("apt-get", "update"),
    ("apt-get", "clean"),
    ("apt-get", "autoremove"),
    ("apt", "update"),
    ("apt", "clean"),
}
_VARIABLE = re.compile(r"\\(.)|\$([A-Za-z_][A-Za-z0-9_]*)|\$\{([A-Za-z_][A-Za-z0-9_]*)(?:(:?[-+])([^}]*))?\}", re.ASCII)


def expand(text: str, variables: Mapping[str, str], *, shell: bool = False) -> str:
    """Fill in $NAME, ${NAME}, ${NAME:-default} and ${NAME:+other}; a name that is not set is empty."""

    def value(match: re.Match[str]) -> str:
        if match[1] is not None:
            return match[0] if shell or match[1] != "$" else "$"
        found = variables.get(match[2] or match[3], "")
        if match[4] and match[4].endswith("-"):
            return found or match[5]
        return (match[5] if found else "") if match[4] else found

    return _VARIABLE.sub(value, text)


def split_steps(command: str) -> list[list[str]]:
    """Cut a command line into its steps, each a list of words. Raises Unsupported."""
    if "`" in command or "$(" in command or "<<" in command:
        raise Unsupported("a substitution or a here-document")
    lexer = shlex.shlex(command.replace("\n", " "), posix=True, punctuation_chars="();<>|&")
    lexer.whitespace_split = True
    lexer.commenters = ""
    steps: list[list[str]] = [[]]
    try:
        for token in lexer:
            if token in ("&&", ";"):
                steps.append([])
            elif set(token) <= set("();<>|&"):
                raise Unsupported(f"{token!r} in a command")
            else:
                steps[-1].append(token)
    except ValueError as error:
        raise Unsupported(f"a command line that does not parse ({error})") from None
    return [step for step in steps if step]


class Steps:
    """Runs steps over an image's files, each RUN from the image's working directory."""

    def __init__(self, image: ImageFiles, wanted: Wanted) -> None:
        self._image, self._wanted = image, wanted
        self._cwd = "/"
        self._known: dict[str, Callable[[list[str]], None]] = {
            "mkdir": self._mkdir,
            "chmod": self._chmod,
            "chown": lambda words: None,  # there is one user
            "rm": self._rm,
            "rmdir": self._rm,
            "touch": self._touch,
            "cd": self._cd,
        }

    def start(self, cwd: str) -> None:
        self._cwd = cwd

    def run(self, step: list[str]) -> None:
        """Take one step. Raises Unsupported."""
        arguments = _pip_arguments(step)
        name = posixpath.basename(step[0])
        if arguments is not None:
            read_arguments(arguments, lambda path: self._image.read(self._path(path)), self._wanted)
        elif name in self._known:
            self._known[name](step[1:])
        elif name not in _NOTHING and (name, *step[1:2]) not in _NOTHING_PAIRS:
            raise Unsupported(" ".join(step)[:80])

    def _path(self, path: str) -> str:
        home = "/root" + path[1:] if path == "~" or path.startswith("~/") else path
        return posixpath.normpath(posixpath.join(self._cwd, home))

    def _mkdir(self, words: list[str]) -> None:
        for path in _operands(words, with_value=("-m",)):
            self._image.make_folder(self._path(path))

    def _chmod(self, words: list[str]) -> None:
        flags = [word for word in words if re.fullmatch(r"-[RvfcR]+|--recursive", word)]
        mode, *paths = [word for word in words if word not in flags] or [""]
        for path in paths:
            self._image.set_mode(mode, self._path(path), recursive=any("R" in f or f == "--recursive" for f in flags))

    def _rm(self, words: list[str]) -> None:
        for path in _operands(words):
            self._image.remove(self._path(path))

    def _touch(self, words: list[str]) -> None:
        for path in _operands(words):
            self._image.put(self._path(path), self._image.files.get(self._path(path), b""))

    def _cd(self, words: list[str]) -> None:
        self._cwd = self._path(words[0] if words else "/root")


def _pip_arguments(step: list[str]) -> list[str] | None:
    """The words after `pip install` in any of its spellings, or None."""
    words = [posixpath.basename(step[0]), *step[1:]]
    if _PYTHON.fullmatch(words[0]) and words[1:2] == ["-m"]:
        words = words[2:]
    if words[0:2] == ["uv", "pip"]:
        words = words[1:]
    if not words or not _PIP.fullmatch(words[0]):
        return None
    before = [word for word in words[1:] if word != "--no-cache-dir"]
    if before[:1] == ["install"]:
        return words[words.index("install") + 1 :]
    if before[:2] == ["cache", "purge"]:
        return []
    raise Unsupported(" ".join(step)[:80])


def _operands(words: list[str], with_value: tuple[str, ...] = ()) -> list[str]:
    found: list[str] = []
    rest = iter(words)
    for word in rest:
        if word in with_value:
            next(rest, None)
        elif not word.startswith("-"):
            found.append(word)
    return found
