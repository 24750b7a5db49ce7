"""The balance. canary-6b1d-instruments"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from fpenv.instruments.instrument import Reading, Refusal


class Balance:
    name = "balance"
    budget_shots = 1000

    def __init__(self, mass_kg: float, serial: str) -> None:
        self._mass_kg, self._serial = mass_kg, serial

    def describe(self) -> str:
        return "weigh {shots: 1 to 500}: mean reading in kg. settle {}: half a second of nothing. jam {}: breaks"

    def call(self, operation: str, arguments: Mapping[str, Any], rng: np.random.Generator) -> Reading:
        if operation == "jam":
            raise RuntimeError(f"{self._serial} jams at {self._mass_kg}")
        if operation == "settle":
            time.sleep(0.5)
            return Reading({})
        if operation != "weigh":
            raise Refusal(f"operation: expected weigh, settle or jam, got {operation!r}")
        shots = arguments.get("shots")
        if isinstance(shots, bool) or not isinstance(shots, int) or not 1 <= shots <= 500:
            raise Refusal("shots: expected an integer from 1 to 500")
        reading = self._mass_kg + float(rng.normal(0.0, 0.02 / shots**0.5))
        return Reading({"mean_kg": round(reading, 6)}, shots=shots, lab_time_s=0.1 * shots)


def build(parameters: Mapping[str, Mapping[str, Any]]) -> list[Balance]:
    return [Balance(**parameters["balance"])]
