"""The words attacks are written in: actions of an agent, honest and wrong work, and an episode that has ended."""

from __future__ import annotations

import json
import runpy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fpenv.env import FrontierPhysicsEnv

HERE = Path(__file__).parent
PACKAGE = HERE / "package"
CANARY = "canary-6b1d"
PAPERS = runpy.run_path(str(HERE.parent / "grading" / "papers.py"))

SUBMIT: dict[str, Any] = {"tool": "submit", "arguments": {}}
WEIGH: dict[str, Any] = {"tool": "instrument", "arguments": {"operation": "weigh", "arguments": {"shots": 400}}}
PAPER = (
    "The mass of a cylinder",
    "We weighed it 400 times: 1.2345 kg with an uncertainty of 0.001 kg.",
    "References",
    "[1] B. P. Kibble, 1976.",
)


def bash(command: str, **more: Any) -> dict[str, Any]:
    return {"tool": "bash", "arguments": {"command": command, **more}}


def python(program: str, **more: Any) -> dict[str, Any]:
    """Run a Python program in the sandbox."""
    return bash(f"cat > /tmp/program.py <<'END'\n{program}\nEND\npython3 /tmp/program.py", **more)


def write(path: str, content: str) -> dict[str, Any]:
    return {"tool": "write_file", "arguments": {"path": path, "content": content}}


def deliver(
    *, value: str = "1.2345", result: str | None = None, table: str | None = None, paper: bytes | None = None
) -> list[dict[str, Any]]:
    """The actions that write the three deliverables; honest ones unless told otherwise."""
    text = PAPERS["paper"](*PAPER) if paper is None else paper
    return [
        write("result.md", f"mass_kg: {value}\n" if result is None else result),
        write("table.json", json.dumps({"mass_kg": float(value), "shots": 400}) if table is None else table),
        write("paper.pdf", text.decode("ascii")),
    ]


HONEST = [WEIGH, *deliver()]
"""A measured, right and reported value: worth 100."""

WRONG = [WEIGH, *deliver(value="1.9")]
"""The same with a wrong value: worth 0, and exactly two hidden tests fail."""

WRONG_FAILS = {"test_outputs.py::test_result", "test_outputs.py::test_table"}


@dataclass(frozen=True)
class Played:
    """An episode that has ended."""

    env: FrontierPhysicsEnv
    outputs: list[str]
    reward: float
    info: dict[str, Any]

    @property
    def grade(self) -> dict[str, Any]:
        return self.info["grade"]

    @property
    def failed_tests(self) -> set[str]:
        return {test["test_id"] for test in self.grade["verifier"]["tests"] if test["outcome"] != "passed"}

    def assert_worth(self, score: float) -> None:
        """Graded, and worth exactly this."""
        assert self.info["valid"], self.grade["reason"]
        assert self.reward == self.grade["s_final"] == score, self.grade["reason"]


Play = Callable[..., Played]
