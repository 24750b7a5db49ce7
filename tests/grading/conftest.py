"""A tiny package to grade, and the machines to grade it on."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from fpenv.errors import SandboxError
from fpenv.grading.reviewer import ReviewCase
from fpenv.grading.verifier import VerifierJob
from fpenv.sandbox.local import LocalBackend
from fpenv.sandbox.runtime import provide
from fpenv.sandbox.sandbox import Backend, Collected, ExecResult, SandboxSpec
from fpenv.task import Task, load_task

TEST_SH = """\
python3 -m pytest /verifier/test_outputs.py -rA --ctrf /logs/verifier/ctrf.json
if [ $? -eq 0 ]; then echo 1 > /logs/verifier/reward.txt; else echo 0 > /logs/verifier/reward.txt; fi
"""
TASK_MD = """\
---
schema_version: '1.3'
metadata: {deliverables: [result.md]}
verifier:
  timeout_sec: 20
---
Measure x.
"""
TEST_OUTPUTS = """\
import json
from pathlib import Path

def test_value():
    expected = json.loads(Path("/verifier/references.json").read_text())["x"]
    assert float(Path("/root/result.md").read_text().split(":")[1]) == expected

def test_input_is_as_handed_out():
    assert Path("/root/data.txt").read_text() == "data"
"""
EVIDENCE = """\
from review import Case, Finding, Quote

def no_fabrication(case: Case) -> Finding:
    return Finding(bool(case.instrument_calls), "measured with the instrument", [case.find_result("x")])

def literature(case: Case) -> Finding:
    found = case.paper.find_all(r"Slagle|Fendley")
    return Finding(min(2, len(found)), case.paper.problem or "works cited", found)
"""
RUBRIC = {
    "criteria": [
        {"name": "no-fabrication", "blocker": 1, "weight": 10, "description": "Numbers were measured."},
        {
            "name": "literature",
            "blocker": 0,
            "weight": 3,
            "description": "Cites the literature.",
            "guidance": "0, 1, 2",
        },
    ]
}
EXPECTED = ("test_outputs.py::test_value", "test_outputs.py::test_input_is_as_handed_out")
INPUTS = {"data.txt": b"data"}
REFERENCES = {"x": 1.5}
RIGHT = {"result.md": b"x: 1.5\n"}


@dataclass(frozen=True)
class Package:
    """A task package under construction."""

    folder: Path
    backend: Backend
    runtime: Path

    def write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def task(self) -> Task:
        return load_task(self.folder)

    def job(self, deliverables: Mapping[str, bytes], **changes: object) -> VerifierJob:
        given: dict[str, object] = {
            "inputs": INPUTS,
            "references": REFERENCES,
            "expected": EXPECTED,
            "control": RIGHT,
            "timeout_s": 20,
        }
        return VerifierJob(
            folder=self.folder / "verifier", deliverables=deliverables, runtime=self.runtime, **{**given, **changes}
        )

    def case(self, deliverables: Mapping[str, bytes], steps: tuple = (), backend: Backend | None = None) -> ReviewCase:
        collected = Collected(deliverables, {})
        machine = backend or self.backend
        return ReviewCase(self.task(), steps, collected, machine, self.runtime, INPUTS, REFERENCES)


@pytest.fixture(scope="session")
def runtime() -> Path:
    return provide("pytest\npypdf\n").path


@pytest.fixture
def package(tmp_path: Path, runtime: Path) -> Package:
    built = Package(tmp_path / "tiny", LocalBackend(), runtime)
    built.write("task.md", TASK_MD)
    built.write("verifier/test.sh", TEST_SH)
    built.write("verifier/test_outputs.py", TEST_OUTPUTS)
    built.write("rubric.json", json.dumps(RUBRIC))
    built.write("evidence.py", EVIDENCE)
    return built


@dataclass
class FakeSandbox:
    """Answers every command with `result` and every collection with `files` of whatever is asked for."""

    files: Callable[[str], bytes | None]
    result: ExecResult = field(default_factory=lambda: ExecResult(0, b"", b"", False, 0.0))

    def exec(self, argv: object, **_: object) -> ExecResult:
        return self.result

    def collect(self, paths: tuple[str, ...], *, max_bytes: int = 0) -> Collected:
        found = {path: self.files(path) for path in paths}
        return Collected({p: d for p, d in found.items() if d is not None}, {})

    def close(self) -> None:
        pass

    def __enter__(self) -> "FakeSandbox":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass
class FakeBackend:
    """Starts fake sandboxes, or none: `broken` is what it raises instead."""

    files: Callable[[str], bytes | None] = lambda path: None
    broken: SandboxError | None = None
    name: str = "fake"

    def start(self, spec: SandboxSpec, serve: object = None) -> FakeSandbox:
        if self.broken is not None:
            raise self.broken
        return FakeSandbox(self.files)


@pytest.fixture
def fake() -> type[FakeBackend]:
    return FakeBackend


@pytest.fixture
def right() -> dict[str, bytes]:
    """Deliverables that pass every test."""
    return dict(RIGHT)
