"""Submits at once: the score that no work gets."""

from __future__ import annotations

from typing import Any

from fpenv.agents.agent import SUBMIT
from fpenv.env import Observation


class NoopAgent:
    name = "noop"

    def __init__(self) -> None:
        self.reset_options: dict[str, Any] = {}

    def act(self, observation: Observation, info: dict[str, Any]) -> dict[str, Any] | None:
        return SUBMIT
