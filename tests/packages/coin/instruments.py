"""The coin tosser."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fpenv.instruments.instrument import Reading, Refusal


class Coin:
    name = "coin"
    budget_shots = 2000

    def __init__(self, bias: float) -> None:
        self._bias = bias

    def describe(self) -> str:
        return "toss {shots: 1 to 5000}: returns the number of heads"

    def call(self, operation: str, arguments: Mapping[str, Any], rng: np.random.Generator) -> Reading:
        shots = arguments.get("shots")
        if operation == "jam":
            raise RuntimeError("the tosser jams")
        if operation != "toss":
            raise Refusal(f"operation: expected toss, got {operation}")
        if isinstance(shots, bool) or not isinstance(shots, int) or not 1 <= shots <= 5000:
            raise Refusal(f"shots: expected an integer from 1 to 5000, got {shots!r}")
        return Reading({"heads": int(rng.binomial(shots, self._bias))}, shots=shots, lab_time_s=float(shots))


def build(parameters: Mapping[str, Mapping[str, Any]]) -> list[Coin]:
    return [Coin(**parameters["coin"])]
