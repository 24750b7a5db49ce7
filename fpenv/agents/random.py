"""Seeded random actions, well-formed and malformed, drawn from the tools' own schemas: for soak tests.

The same seed and tools give the same actions. It never submits before it has taken `actions` of them, so that
an episode is as long as it was asked to be. It measures robustness, not skill: expect a score of 0.
"""

from __future__ import annotations

import json
import random
import string
from collections.abc import Callable
from typing import Any

from fpenv.agents.agent import SUBMIT
from fpenv.env import Observation
from fpenv.errors import ConfigError

LONGEST_COMMAND_S = 2.0
SHARE_MALFORMED = 0.4
COMMANDS = (
    "ls -la /root",
    "echo x > notes.txt; cat notes.txt",
    "cat /nowhere",
    "exit 7",
    "kill -9 $$",
    "head -c 100000 /dev/urandom",
    "printf '\\033[2J\\377\\000\\n' >&2",
    "yes | head -n 20000",
    "sleep 60",
    'lab instrument \'{"operation": "manual"}\'',
    "lab instrument 'nonsense'",
    "setsid sleep 5 >/dev/null 2>&1 &",
)
TEXT = string.ascii_letters + string.digits + string.punctuation + " \n\t\0\x1b\x7fσ½\u202e\U0001f52c\ud800"


class RandomAgent:
    """Takes `actions` random actions, then submits."""

    name = "random"

    def __init__(self, seed: int = 0, actions: int = 200) -> None:
        if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
            raise ConfigError(f"random agent: expected a seed >= 0, got {seed!r}")
        self.reset_options: dict[str, Any] = {}
        self._random = random.Random(seed)
        self._left = actions
        self._tools: list[dict[str, Any]] = []

    def act(self, observation: Observation, info: dict[str, Any]) -> dict[str, Any] | None:
        """Return the next action; a malformed one may be of any type."""
        self._tools = info.get("tools", self._tools)
        if self._left <= 0:
            return SUBMIT
        self._left -= 1
        if self._random.random() < SHARE_MALFORMED:
            malformed: dict[str, Any] = self._random.choice(_MALFORMED)(self)
            return malformed
        return self._well_formed()

    def _well_formed(self) -> dict[str, Any]:
        tool = self._random.choice([tool for tool in self._tools if tool["name"] != SUBMIT["tool"]])
        arguments = self._value(tool["parameters"])
        if "timeout_s" in tool["parameters"].get("properties", {}):
            arguments["timeout_s"] = round(self._random.uniform(0.05, LONGEST_COMMAND_S), 3)
        if "command" in arguments and self._random.random() < 0.8:
            arguments["command"] = self._random.choice(COMMANDS)
        as_text = self._random.random() < 0.5
        return {"tool": tool["name"], "arguments": json.dumps(arguments) if as_text else arguments}

    def _value(self, schema: dict[str, Any]) -> Any:
        """A value that the schema allows; what it leaves open is drawn."""
        kind = schema.get("type")
        if kind == "object" and "properties" in schema:
            required = set(schema.get("required", ()))
            chosen = {k: v for k, v in schema["properties"].items() if k in required or self._random.random() < 0.5}
            return {key: self._value(entry) for key, entry in chosen.items()}
        if kind == "string":
            return self._text(schema.get("minLength", 0), min(schema.get("maxLength", 64), 64)).replace("\0", "0")
        if kind in ("integer", "number"):
            low, high = schema.get("minimum", 0), min(schema.get("maximum", 1000), 1000)
            return self._random.randint(low, high) if kind == "integer" else self._random.uniform(low, high)
        if kind == "boolean":
            return self._random.random() < 0.5
        return {"shots": self._random.randint(-5, 300)} if kind == "object" else self._anything()

    def _anything(self) -> Any:
        return self._random.choice((None, True, -1, 10**30, 0.5, "", self._text(0, 20), [], [1, [2]], {}, {"a": None}))

    def _text(self, low: int, high: int) -> str:
        return "".join(self._random.choices(TEXT, k=self._random.randint(low, high)))

    def _broken_field(self) -> dict[str, Any]:
        """A real tool with one field missing, unknown or of a wrong type."""
        tool = self._random.choice(self._tools)
        arguments = self._value(tool["parameters"])
        name = self._random.choice([*tool["parameters"].get("properties", {}), "unknown"])
        if name in arguments and self._random.random() < 0.3:
            del arguments[name]
        else:
            arguments[name] = self._anything()
        if "timeout_s" in arguments:
            arguments["timeout_s"] = self._random.choice((0, -1, 1e9, "soon", None, [1]))
        # A tool without arguments would take {} as it should be: submit must not be called by accident.
        if tool["name"] == SUBMIT["tool"]:
            arguments["unknown"] = self._anything()
        return {"tool": tool["name"], "arguments": arguments}

    def _broken_text(self) -> dict[str, Any]:
        """A real tool with arguments that are no JSON object."""
        tool = self._random.choice(self._tools)["name"]
        texts = (
            "{",
            "[]",
            "NaN",
            '{"a": Infinity}',
            "[" * 20_000,
            "null",
            '"text"',
            "{'a': 1}",
            "{} {}",
            "\0",
            "\ud800",
        )
        return {"tool": tool, "arguments": self._random.choice(texts)}


_MALFORMED: tuple[Callable[[RandomAgent], Any], ...] = (
    RandomAgent._anything,
    RandomAgent._broken_field,
    RandomAgent._broken_field,
    RandomAgent._broken_text,
    lambda self: {"tool": self._text(0, 100), "arguments": self._anything()},
    lambda self: {"tool": self._anything(), "arguments": "{}"},
    lambda self: {
        "tool": self._random.choice(self._tools)["name"],
        "arguments": self._random.choice((1, None, [], {1})),
    },
    lambda self: {"tool": self._random.choice(self._tools)["name"], "arguments": {"content": b"\xff", "path": {1, 2}}},
    lambda self: {"tool": "bash", "arguments": "{}", self._text(1, 5): 1},
    lambda self: {1: 2, None: 3},
)
