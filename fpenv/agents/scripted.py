"""A Python file as an agent: it defines `act(observation, info)` and returns an action, or None to submit."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from fpenv.env import Observation
from fpenv.errors import ConfigError


class ScriptedAgent:
    def __init__(self, file: Path) -> None:
        self.name = file.name
        self.reset_options: dict[str, Any] = {}
        self._act = _load(file)

    def act(self, observation: Observation, info: dict[str, Any]) -> dict[str, Any] | None:
        action: dict[str, Any] | None = self._act(observation, info)
        return action


def _load(file: Path) -> Any:
    if not file.is_file():
        raise ConfigError(f"--agent: expected oracle, noop or a Python file, found no file {file}")
    spec = importlib.util.spec_from_file_location("fpenv_agent_script", file)
    if spec is None or spec.loader is None:
        raise ConfigError(f"--agent: expected a Python file ending in .py, got {file}")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ConfigError(f"--agent: importing {file} raised {type(error).__name__}: {error}") from error
    act = getattr(module, "act", None)
    if not callable(act):
        raise ConfigError(f"--agent: expected {file} to define act(observation, info), found none")
    return act
