"""Reads a Dockerfile of the kind that research tasks have into a `Recipe`, without a container engine.

FROM a Python or plain Linux image, COPY and ADD from the context, ENV, ARG, WORKDIR, and RUN of the steps in
`shell_steps`. The image itself is not used: the host's interpreter and tools stand in for it, and a note says
so. What is not understood becomes a problem with its line number, never a guess.
"""

from __future__ import annotations

import io
import json
import platform
import posixpath
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dockerfile_parse import DockerfileParser
from dockerfile_parse.util import extract_key_values

from fpenv.package.image_files import Context, ImageFiles
from fpenv.package.recipe import Recipe
from fpenv.package.requirement_lines import Unsupported, Wanted
from fpenv.package.shell_steps import Steps, expand, split_steps

_PYTHON_IMAGE = re.compile(r"python(?::(?P<version>[0-9]+(?:\.[0-9]+)?)?[A-Za-z0-9._-]*)?(?:@sha256:\w+)?")
_LINUX_IMAGES = {"ubuntu", "debian", "buildpack-deps"}
_LIBRARIES = (
    "docker.io/library/",
    "docker.io/",
    "library/",
    "public.ecr.aws/docker/library/",
    "mirror.gcr.io/library/",
)
_IGNORED = {
    "COMMENT",
    "LABEL",
    "MAINTAINER",
    "EXPOSE",
    "STOPSIGNAL",
    "SHELL",
    "VOLUME",
    "CMD",
    "ENTRYPOINT",
    "HEALTHCHECK",
}
_NOTED = {"CMD", "ENTRYPOINT", "HEALTHCHECK"}
_KEPT_BY_SANDBOX = ("PATH", "HOME", "TMPDIR")
_ARCHIVE = re.compile(r"\.(tar|tar\.\w+|tgz|tbz2?|txz)$")


def read_dockerfile(file: Path) -> Recipe:
    """Read one. Its folder is the build context. Never raises for what it holds; see `Recipe.problems`."""
    reader = _Reader(file.parent)
    for line in DockerfileParser(fileobj=io.BytesIO(file.read_bytes())).structure:
        reader.take(line)
    return reader.recipe()


def describe_image(image: str) -> tuple[str, str]:
    """What stands in for an image: a note, or else a problem."""
    name = image
    for prefix in _LIBRARIES:
        name = name.removeprefix(prefix)
    python = _PYTHON_IMAGE.fullmatch(name)
    own = platform.python_version()
    if python is None and re.split("[:@]", name)[0] not in _LINUX_IMAGES:
        return "", f"the image {image}"
    wanted = python["version"] if python else None
    differs = wanted is not None and own != wanted and not own.startswith(f"{wanted}.")
    other = f"; its Python {wanted} is replaced by {own}" if differs else f"; Python is {own}"
    return f"image {image} is not used: the host's system and interpreter stand in for it{other}", ""


class _Reader:
    """Takes one instruction after another."""

    def __init__(self, context: Path) -> None:
        self._context = Context(context)
        self._image = ImageFiles()
        self._wanted = Wanted()
        self._steps = Steps(self._image, self._wanted)
        self._env: dict[str, str] = {}
        self._arguments: dict[str, str] = {}
        self._notes: list[str] = []
        self._problems: list[str] = []
        self._workdir = ""
        self._stages = 0
        self._known: dict[str, Callable[[str], None]] = {
            "FROM": self._take_from,
            "ARG": self._take_arg,
            "ENV": self._take_env,
            "WORKDIR": self._take_workdir,
            "USER": self._take_user,
            "COPY": self._take_copy,
            "ADD": self._take_add,
            "RUN": self._take_run,
        }

    def take(self, line: dict[str, Any]) -> None:
        name, value = str(line["instruction"]).upper(), str(line["value"])
        where = f"line {line['startline'] + 1}: {name}"
        if name in _IGNORED:
            self._notes += [f"{where} is not run"] if name in _NOTED else []
            return
        try:
            if name not in self._known:
                raise Unsupported(value[:80])
            self._known[name](value)
        except Unsupported as reason:
            self._problems.append(f"{where} {reason}".rstrip())

    def recipe(self) -> Recipe:
        return Recipe(
            requirements=tuple(self._wanted.lines),
            files=self._image.laid_down(),
            executables=frozenset(self._image.executables),
            folders=tuple(self._image.folders),
            env={name: value for name, value in self._env.items() if name not in _KEPT_BY_SANDBOX},
            workdir=self._workdir,
            notes=(*self._notes, *dict.fromkeys(self._wanted.notes)),
            problems=tuple(self._problems),
        )

    @property
    def _variables(self) -> dict[str, str]:
        return {**self._arguments, **self._env}

    def _take_from(self, value: str) -> None:
        words = [word for word in expand(value, self._arguments).split() if not word.startswith("--platform")]
        self._stages += 1
        if self._stages > 1:
            raise Unsupported(f"{value}: a build of several stages")
        note, problem = describe_image(words[0] if words else "")
        self._notes += [note] if note else []
        if problem:
            raise Unsupported(problem)

    def _take_arg(self, value: str) -> None:
        name, given, default = value.partition("=")
        if given:
            self._arguments.setdefault(name.strip(), expand(default.strip().strip("\"'"), self._variables))

    def _env_pairs(self, value: str) -> dict[str, str]:
        if "=" not in value.split(maxsplit=1)[0]:
            name, _, text = value.partition(" ")
            return {name: text.strip()}
        try:
            return dict(extract_key_values(env_replace=False, args={}, envs={}, instruction_value=value))
        except ValueError as error:
            raise Unsupported(str(error)) from None

    def _take_env(self, value: str) -> None:
        pairs = self._env_pairs(value) if value.strip() else {}
        kept = [name for name in pairs if name in _KEPT_BY_SANDBOX]
        self._notes += [f"variable {name} is not set: it is the sandbox's own" for name in kept]
        self._env |= {name: expand(text, self._variables) for name, text in pairs.items()}

    def _take_workdir(self, value: str) -> None:
        path = expand(value.strip().strip("\"'"), self._variables)
        workdir = posixpath.normpath(posixpath.join(self._workdir or "/", path))
        self._image.make_folder(workdir)
        self._workdir = workdir

    def _take_user(self, value: str) -> None:
        if value.split(":")[0] not in ("root", "0"):
            self._notes.append(f"user {value} is not made: commands run as the sandbox's one user")

    def _take_copy(self, value: str) -> None:
        flags, words = self._operands(value)
        if len(words) < 2:
            raise Unsupported(f"{value[:80]}: expected sources and a destination")
        *sources, target = words
        executable = next((int(f.split("=")[1][-3], 8) & 1 for f in flags if re.fullmatch(r"--chmod=[0-7]{3,4}", f)), 0)
        folder = target.endswith(("/", "/.")) or target in (".", "..") or len(sources) > 1
        place = posixpath.normpath(posixpath.join(self._workdir or "/", target))
        folder = folder or place in self._image.folders or place in ("/", "/root", "/tmp")
        for source in sources:
            found = self._context.find(source)
            single = len(found) == 1 and not folder and not self._context.is_folder(source)
            for name, (content, own_bit) in found.items():
                path = place if single else posixpath.join(place, name)
                self._image.put(path, content, executable=bool(executable) or own_bit)
        if not single:
            self._image.make_folder(place)

    def _take_add(self, value: str) -> None:
        _, words = self._operands(value)
        for source in words[:-1]:
            if "://" in source or source.startswith("git@"):
                raise Unsupported(f"{source}: a download")
            if _ARCHIVE.search(source):
                raise Unsupported(f"{source}: an archive to unpack")
        self._take_copy(value)

    def _operands(self, value: str) -> tuple[list[str], list[str]]:
        """Flags and paths of COPY and ADD, in both of their forms."""
        flags: list[str] = []
        rest = expand(value.strip(), self._variables)
        while match := re.match(r"--\S+\s+", rest):
            flags.append(match[0].strip())
            rest = rest[match.end() :]
        if bad := [f for f in flags if not f.startswith(("--chown=", "--chmod=", "--link"))]:
            raise Unsupported(f"{bad[0]}")
        if "<<" in rest:
            raise Unsupported("a here-document")
        if not rest.startswith("["):
            return flags, rest.split()
        try:
            return flags, [str(word) for word in json.loads(rest)]
        except ValueError:
            raise Unsupported(f"{rest[:80]}: expected a JSON list") from None

    def _take_run(self, value: str) -> None:
        text = re.sub(r"^(--mount=type=(cache|tmpfs)\S*\s+)+", "", value.strip())
        if text.startswith("--"):
            raise Unsupported(text[:80])
        steps = [json.loads(text)] if _is_json_list(text) else split_steps(expand(text, self._variables, shell=True))
        self._steps.start(self._workdir or "/")
        failures = []
        for step in steps:
            try:
                self._steps.run(step)
            except Unsupported as reason:
                failures.append(str(reason))
        if failures:
            raise Unsupported(", ".join(failures))


def _is_json_list(text: str) -> bool:
    """Whether a RUN has the form that no shell reads."""
    try:
        words = json.loads(text)
    except ValueError:
        return False
    return isinstance(words, list) and bool(words) and all(isinstance(word, str) for word in words)
