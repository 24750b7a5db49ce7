"""A task: a folder with a question and a way to grade it, in one of the published package formats.

    task.md          frontmatter (metadata, verifier, agent, sandbox) and the prompt
    proposal.pdf     the brief, laid into /root with the instance's inputs
    environment/     Dockerfile and what it copies: the runtime, and inputs
    oracle/          a solution that does the research
    verifier/        test.sh, test_outputs.py, references.json and the rubric
    rubric.json      (or verifier/rubric.json)

or Harbor's older layout (`package/layout.py`); and, in files that an official loader ignores: `instance.py`,
`instruments.py`, `evidence.py`, `literature.json`, `expected.json` (the verifier's test ids) and `cases/`.

A `Task` is read once and is frozen. Only the prompt, the proposal and the environment ever reach an agent.
Names of inputs and deliverables are relative to `base`: /root, or / where a package works elsewhere too.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import posixpath
import re
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path, PurePosixPath
from types import ModuleType

from fpenv.errors import ConfigError, TaskError
from fpenv.names import NAMESPACE, list_tasks, tasks_root
from fpenv.package.digest import compare_with_registry, find_registry, package_digest
from fpenv.package.dockerfile import describe_image, read_dockerfile
from fpenv.package.frontmatter import Frontmatter, read_settings, resolve_env
from fpenv.package.layout import RUBRICS, Layout, find_layout, is_package, read_sheet
from fpenv.package.recipe import Recipe
from fpenv.package.rubrics import read_rubric
from fpenv.records import Criterion
from fpenv.sandbox.image_layer import HOME, ImageLayer
from fpenv.sandbox.sandbox import Limits

_DOWNLOADS = re.compile(r"\b(apt-get|apt|curl|wget|uvx|uv (?:pip|tool|run)|pip3? install|git clone|conda|npm|npx)\b")


@dataclass(frozen=True)
class Task:
    """A loaded package. `path` is its folder on the host; nothing of it but the brief reaches an agent."""

    name: str
    path: Path
    prompt: str
    front: Frontmatter
    layout: Layout = field(default_factory=Layout)
    found: tuple[str, ...] = ()
    """What was noticed while loading; `notes` has all of it."""

    @property
    def verifier(self) -> Path:
        """The folder of the hidden tests; inside a sandbox it is `layout.verifier_mount`."""
        return self.path / self.layout.verifier

    @property
    def oracle(self) -> Path:
        """The folder of the solution; inside a sandbox it is `layout.oracle_mount`."""
        return self.path / self.layout.oracle

    @cached_property
    def base(self) -> str:
        """The folder that names of inputs and deliverables are relative to: /root, or / if some lie elsewhere."""
        places = self._handed_in or (self.workdir,)
        return HOME if all(PurePosixPath(path).is_relative_to(HOME) for path in places) else "/"

    @property
    def deliverables(self) -> tuple[str, ...]:
        """Paths of what is to be handed in, relative to `base`; a final slash names all files of a folder.

        Empty where the package says nothing: then everything in `search_folders` that is no input is handed in.
        """
        return tuple(self.relative(path) + ("/" if path.endswith("/") else "") for path in self._handed_in)

    @property
    def search_folders(self) -> tuple[str, ...]:
        """Where files to hand in are looked for, absolute, if the package names none."""
        return tuple(dict.fromkeys((HOME, self.workdir)))

    def relative(self, path: str) -> str:
        """The name, relative to `base`, of an absolute path below it."""
        return str(PurePosixPath(path).relative_to(self.base))

    def absolute(self, name: str) -> str:
        """Where a file named relative to `base` lies inside a sandbox."""
        return str(PurePosixPath(self.base) / name)

    @property
    def time_limit_s(self) -> float:
        return self.front.agent.timeout_sec

    @property
    def verifier_timeout_s(self) -> float:
        return self.front.verifier.timeout_sec

    @property
    def limits(self) -> Limits:
        """What a sandbox of this task may use."""
        box = self.front.sandbox
        return Limits(memory_bytes=box.memory_mb << 20, disk_bytes=box.storage_mb << 20, cpus=box.cpus)

    @cached_property
    def rubric(self) -> tuple[Criterion, ...]:
        """The criteria, in the file's order; none where the package has no rubric."""
        return self._rubric_and_notes[0]

    @cached_property
    def image(self) -> Recipe:
        """What the package's Dockerfile comes to; see `Recipe.problems` for what could not be read."""
        folder = self.path / "environment"
        if (folder / "Dockerfile").is_file():
            return read_dockerfile(folder / "Dockerfile")
        image = self.front.sandbox.docker_image
        note, problem = describe_image(image) if image else ("", "")
        if not (image or (folder / "requirements.txt").is_file()) and any(folder.glob("*compose*.y*ml")):
            problem = "a docker-compose file without a Dockerfile"
        plain = folder / "requirements.txt"
        lines = tuple(plain.read_text(encoding="utf-8").splitlines()) if plain.is_file() else ()
        return Recipe(lines, notes=(note,) if note else (), problems=(problem,) if problem else ())

    @cached_property
    def requirements(self) -> str:
        """The runtime's Python packages, as requirements.txt lines, with pytest where the hidden tests need it.

        Raises TaskError where the local sandbox cannot build the environment, naming what stands in the way.
        """
        self.image.check(self.path / "environment" / "Dockerfile")
        lines = [*self.image.requirements, *(["pytest"] if self._lacks_pytest else [])]
        return "".join(f"{line}\n" for line in lines)

    @cached_property
    def workdir(self) -> str:
        """Where commands run."""
        said = self.front.sandbox.workdir or self.image.workdir or HOME
        workdir = posixpath.normpath(posixpath.join("/", said))
        return HOME if workdir in ("/", "//") else workdir

    @cached_property
    def layer(self) -> ImageLayer:
        """What the environment adds to a sandbox beside the runtime and the inputs."""
        image = self.image
        return ImageLayer(
            files={path: data for path, data in image.files.items() if not self._is_input(path)},
            executables=image.executables,
            folders=image.folders,
            env={**image.env, **resolve_env(self.front.sandbox.env)[0]},
            workdir=self.workdir,
        )

    @cached_property
    def image_inputs(self) -> dict[str, bytes]:
        """Files of the environment below `base`, by their name relative to it: handed out as inputs."""
        return {self.relative(path): data for path, data in self.image.files.items() if self._is_input(path)}

    @property
    def verifier_cwd(self) -> str:
        """Where test.sh starts: Harbor's start in the working directory, the official ones name their paths."""
        return self.workdir if self.layout.verifier == "tests" or self.workdir != HOME else "/"

    @property
    def verifier_env(self) -> dict[str, str]:
        return resolve_env(self.front.verifier.env)[0]

    @property
    def oracle_env(self) -> dict[str, str]:
        return resolve_env(self.front.oracle.env)[0]

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """What a user should know about the package: fields that are not known or not done, what differs."""
        return tuple(dict.fromkeys(self._all_notes()))

    @cached_property
    def expected_tests(self) -> tuple[str, ...] | None:
        """Ids of the hidden tests as the oracle's run reported them, or None where none were recorded yet."""
        file = self.path / "expected.json"
        if not file.is_file():
            return None
        try:
            return tuple(map(str, json.loads(file.read_bytes())["tests"]))
        except (ValueError, KeyError, TypeError) as error:
            raise TaskError(f'{file}: expected {{"tests": [ids]}}, got {type(error).__name__}: {error}') from error

    @cached_property
    def control(self) -> dict[str, bytes] | None:
        """The oracle's canonical deliverables, for the verifier's control run."""
        folder = self.path / "cases" / "accept" / "oracle" / "deliverables"
        if not folder.is_dir():
            return None
        return {str(f.relative_to(folder)): f.read_bytes() for f in sorted(folder.rglob("*")) if f.is_file()}

    @cached_property
    def digest(self) -> str:
        """SHA-256 over the sorted relative paths, each with a zero byte and its content's SHA-256."""
        return package_digest(self.path)

    def module(self, file: str) -> ModuleType | None:
        """Import one of the task's own Python files on the host, or None where the task has none."""
        return _import(self.path / file)

    @cached_property
    def _handed_in(self) -> tuple[str, ...]:
        """Absolute paths that the package names as deliverables, a folder with its slash."""
        return tuple(_named_paths(self.front, self.path))

    @cached_property
    def _rubric_and_notes(self) -> tuple[tuple[Criterion, ...], tuple[str, ...]]:
        file = next((self.path / name for name in RUBRICS if (self.path / name).is_file()), None)
        if file is None:
            return (), (
                "no rubric: S_final stays ungraded where the tests pass; train on reward='verifier' or 'tests'",
            )
        return read_rubric(file)

    @property
    def _lacks_pytest(self) -> bool:
        has = any(re.match(r"pytest\b(?!-)", line.strip(), re.IGNORECASE) for line in self.image.requirements)
        return not has and any(self.verifier.rglob("test_*.py"))

    def _is_input(self, path: str) -> bool:
        return PurePosixPath(path).is_relative_to(self.base)

    def _all_notes(self) -> Iterator[str]:
        yield from self.found
        yield from self._rubric_and_notes[1]
        yield from self.image.notes
        yield from (f"the local sandbox cannot build this, use Docker: {text}" for text in self.image.problems)
        yield from ("pytest is added to the runtime: the hidden tests need it",) if self._lacks_pytest else ()
        for env in (self.front.sandbox.env, self.front.verifier.env, self.front.oracle.env):
            yield from resolve_env(env)[1]
        unread = (*self.path.glob("environment/*compose*.y*ml"), *self.verifier.glob("verifier.md"))
        yield from (f"{file.relative_to(self.path)} is not read" for file in unread)
        if not self._handed_in:
            yield f"no deliverables named: every new file in {' and '.join(self.search_folders)} is handed in"
        script = (self.verifier / "test.sh").read_text(encoding="utf-8", errors="replace")
        for number, line in enumerate(map(str.strip, script.splitlines()), 1):
            if _DOWNLOADS.search(line) and not line.startswith("#"):
                yield f"{self.layout.verifier}/test.sh line {number} downloads; grading has no network: {line[:80]}"


def load_task(path: Path | str, *, strict: bool = False) -> Task:
    """Read a package folder. Raises TaskError naming the file and the key that is wrong.

    Where a `registry.json` lies above the folder, the content's digest is compared with it: a difference is
    a warning, and a note on the task. strict: there must be a registry, and it must agree, or TaskError.
    """
    folder = Path(path).resolve()
    sheet = read_sheet(folder)
    front, notes = read_settings(sheet.settings, str(sheet.file))
    task = Task(folder.name, folder, sheet.prompt, front, find_layout(folder), (*notes, *_compare(folder, strict)))
    _ = task._handed_in  # a path that cannot be is an error now, not at the end of an episode
    return task


def find_task(name_or_path: str | Path) -> Task:
    """Load a task by its name, by its id `FrontierPhysics/NAME`, or by its folder. Raises ConfigError."""
    text = str(name_or_path)
    name = text.removeprefix("fpenv:").removeprefix(f"{NAMESPACE}/")
    if name in list_tasks():
        return _shipped(name)
    if is_package(Path(text)):
        return load_task(text)
    raise ConfigError(
        f"expected a task's name or the folder of a package, got {text!r}; "
        f"the tasks here are: {', '.join(list_tasks()) or 'none'}"
    )


@lru_cache(maxsize=64)
def _shipped(name: str) -> Task:
    return load_task(tasks_root() / name)


def _compare(folder: Path, strict: bool) -> tuple[str, ...]:
    if not strict and find_registry(folder) is None:
        return ()
    wrong = compare_with_registry(folder)
    if wrong and strict:
        raise TaskError(f"{wrong}; expected the published content")
    if wrong:
        warnings.warn(wrong, stacklevel=3)
    return (wrong,) if wrong else ()


def _named_paths(front: Frontmatter, folder: Path) -> Iterator[str]:
    """Deliverables by `metadata.deliverables`, or else by Harbor's `artifacts`, as absolute paths."""
    artifacts = [item if isinstance(item, str) else str(item.get("source", "")) for item in front.artifacts]
    for said in front.metadata.deliverables or artifacts:
        path = posixpath.normpath(posixpath.join(HOME, said))
        if path.startswith("/logs/"):
            continue  # Harbor's own log folder
        if not said.isprintable() or path in ("/", "//") or ".." in said.split("/") or any(c in said for c in "*?\\"):
            raise TaskError(f"{folder}: deliverable {said!r}: expected a plain path, relative to /root or absolute")
        yield path + ("/" if said.endswith("/") or path == HOME else "")


@lru_cache(maxsize=256)
def _import(file: Path) -> ModuleType | None:
    if not file.is_file():
        return None
    name = f"fpenv_task_{hashlib.sha256(str(file).encode()).hexdigest()[:16]}_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up by name
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise TaskError(f"{file}: importing it raised {type(error).__name__}: {error}") from error
    return module
