"""A simulated apparatus that lives on the host and is operated, metered, through calls.

The sandbox never holds an instrument: it sees a socket, a small command (`lab`) and a Python client.
A task's `instruments.py` defines `build(parameters) -> Sequence[Instrument]`, where `parameters` are the
hidden ones of the instance. `Bench` does the bookkeeping: budgets, the log, and one random generator a call,
derived from the instance and the call's number, so that an episode repeats byte for byte.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np


class Refusal(Exception):
    """The instrument rejects the call: what it expected, what came, what to do. Nothing was spent."""


@dataclass(frozen=True)
class Reading:
    """What one call gave: JSON-able result, shots taken, laboratory time in seconds."""

    result: Mapping[str, Any]
    shots: int = 0
    lab_time_s: float = 0.0


class Instrument(Protocol):
    """One apparatus. `budget_shots` is what the laboratory grants; overspending is possible and is recorded."""

    name: str
    budget_shots: int

    def describe(self) -> str:
        """Return the manual page: operations, arguments, units, limits. Never a hidden value."""
        ...

    def call(self, operation: str, arguments: Mapping[str, Any], rng: np.random.Generator) -> Reading:
        """Operate it once. Raises Refusal for a bad operation or argument."""
        ...
