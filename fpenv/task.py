"""A task: a folder with a question and a way to grade it, in the official FrontierPhysics package format.

    task.md          frontmatter (metadata, verifier, agent, sandbox) and the prompt
    proposal.pdf     the brief, laid into /root with the instance's inputs
    environment/     Dockerfile, requirements.txt: the runtime
    oracle/          a solution that does the research
    verifier/        test.sh, test_outputs.py, references.json and the rubric
    rubric.json      (or verifier/rubric.json)

and, in files that an official loader ignores: `instance.py`, `instruments.py`, `evidence.py`,
`literature.json`, `expected.json` (the verifier's test ids) and `cases/`.

A `Task` is read once and is frozen. Only the prompt, the proposal and the environment ever reach an agent.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import sys
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fpenv.errors import ConfigError, TaskError
from fpenv.names import NAMESPACE, list_tasks, tasks_root
from fpenv.records import Criterion
from fpenv.rubric import load_rubric
from fpenv.sandbox.sandbox import Limits


class _Section(BaseModel):
    """A part of the frontmatter. Fields that are not fpenv's business are kept, unread."""

    model_config = ConfigDict(frozen=True, extra="allow")


class Metadata(_Section):
    title: str = ""
    domain: str = ""
    deliverables: tuple[str, ...] = ("result.md", "paper.pdf")


class VerifierSection(_Section):
    timeout_sec: float = Field(default=300, gt=0)


class AgentSection(_Section):
    timeout_sec: float = Field(default=36_000, gt=0)


class SandboxSection(_Section):
    cpus: float = Field(default=2, gt=0)
    memory_mb: int = Field(default=4096, gt=0)
    storage_mb: int = Field(default=2048, gt=0)
    gpus: int = 0
    allow_internet: bool = False


class Frontmatter(_Section):
    schema_version: str = "1.3"
    metadata: Metadata = Metadata()
    verifier: VerifierSection = VerifierSection()
    agent: AgentSection = AgentSection()
    sandbox: SandboxSection = SandboxSection()


@dataclass(frozen=True)
class Task:
    """A loaded package. `path` is its folder on the host; nothing of it but the brief reaches an agent."""

    name: str
    path: Path
    prompt: str
    front: Frontmatter

    @property
    def deliverables(self) -> tuple[str, ...]:
        """Paths of what is to be handed in, relative to /root."""
        return self.front.metadata.deliverables

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
        """The criteria, in the file's order."""
        return load_rubric(self._one_of("rubric.json", "verifier/rubric.json"))

    @cached_property
    def requirements(self) -> str:
        """The runtime's Python packages, as requirements.txt lines."""
        file = self.path / "environment" / "requirements.txt"
        return file.read_text(encoding="utf-8") if file.is_file() else ""

    @cached_property
    def expected_tests(self) -> tuple[str, ...] | None:
        """Ids of the hidden tests as the oracle's run reported them, or None where none were recorded yet."""
        file = self.path / "expected.json"
        return tuple(json.loads(file.read_text(encoding="utf-8"))["tests"]) if file.is_file() else None

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
        total = hashlib.sha256()
        for file in sorted(self.path.rglob("*"), key=lambda f: f.relative_to(self.path).as_posix()):
            if file.is_symlink() or not file.is_file() or "__pycache__" in file.parts:
                continue
            total.update(file.relative_to(self.path).as_posix().encode() + b"\0")
            total.update(hashlib.sha256(file.read_bytes()).digest())
        return total.hexdigest()

    def module(self, file: str) -> ModuleType | None:
        """Import one of the task's own Python files on the host, or None where the task has none."""
        return _import(self.path / file)

    def _one_of(self, *names: str) -> Path:
        for name in names:
            if (self.path / name).is_file():
                return self.path / name
        raise TaskError(f"{self.path}: expected one of {', '.join(names)}, found none; add the rubric")


def load_task(path: Path | str) -> Task:
    """Read a package folder. Raises TaskError naming the file and the key that is wrong."""
    folder = Path(path).resolve()
    file = folder / "task.md"
    if not file.is_file():
        raise TaskError(f"{folder}: expected a task package with task.md, found none; name its folder")
    front, prompt = _split(file)
    if not (folder / "verifier" / "test.sh").is_file():
        raise TaskError(f"{folder}: expected verifier/test.sh, found none; add the hidden tests")
    return Task(name=folder.name, path=folder, prompt=prompt, front=front)


def find_task(name_or_path: str | Path) -> Task:
    """Load a task by its name, by its id `FrontierPhysics/NAME`, or by its folder. Raises ConfigError."""
    text = str(name_or_path)
    name = text.removeprefix("fpenv:").removeprefix(f"{NAMESPACE}/")
    if name in list_tasks():
        return _shipped(name)
    if (Path(text) / "task.md").is_file():
        return load_task(text)
    raise ConfigError(
        f"expected a task's name or the folder of a package, got {text!r}; "
        f"the tasks here are: {', '.join(list_tasks()) or 'none'}"
    )


@lru_cache(maxsize=64)
def _shipped(name: str) -> Task:
    return load_task(tasks_root() / name)


def _split(file: Path) -> tuple[Frontmatter, str]:
    text = file.read_text(encoding="utf-8")
    parts = text.split("\n---\n", 1)
    if not text.startswith("---\n") or len(parts) != 2:
        raise TaskError(f"{file}: expected YAML frontmatter between two lines '---', found none")
    try:
        raw: Any = yaml.safe_load(parts[0].removeprefix("---\n"))
    except yaml.YAMLError as error:
        raise TaskError(f"{file}: the frontmatter is not YAML: {error}") from error
    if not isinstance(raw, dict):
        raise TaskError(f"{file}: expected a mapping in the frontmatter, got {type(raw).__name__}")
    if "sandbox" not in raw and "environment" in raw:
        raw["sandbox"] = raw.pop("environment")
    try:
        return Frontmatter.model_validate(raw), parts[1].strip() + "\n"
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise TaskError(f"{file}: frontmatter key {key}: {first['msg']}, got {first['input']!r}") from error


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
