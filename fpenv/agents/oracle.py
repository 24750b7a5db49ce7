"""Plays a task's own solution, laid into the sandbox for it alone, through the same tools as any agent.

`oracle/solve.sh` is one action; with the comment `# fpenv: one action a line` each of its commands is.
"""

from __future__ import annotations

import json
from typing import Any

from fpenv.env import Observation
from fpenv.errors import TaskError
from fpenv.task import Task

ONE_A_LINE = "# fpenv: one action a line"
TIMEOUT_S = 3600


class OracleAgent:
    name = "oracle"

    def __init__(self, task: Task) -> None:
        self.reset_options: dict[str, Any] = {"oracle": True}
        self._commands = _commands(task)

    def act(self, observation: Observation, info: dict[str, Any]) -> dict[str, Any] | None:
        if not self._commands:
            return None
        arguments = {"command": self._commands.pop(0), "timeout_s": TIMEOUT_S}
        return {"tool": "bash", "arguments": json.dumps(arguments)}


def _commands(task: Task) -> list[str]:
    script = task.oracle / "solve.sh"
    if not script.is_file():
        raise TaskError(f"{task.path}: expected {task.layout.oracle}/solve.sh, found none; it has no oracle to play")
    text = script.read_text(encoding="utf-8")
    if ONE_A_LINE not in text.splitlines():
        return [f"bash {task.layout.oracle_mount}/solve.sh"]
    return [line for line in text.splitlines() if line.strip() and not line.startswith(("#", "set "))]
