"""The bench: the instruments of one episode, metered. Every call is kept, refused ones too.

Each call draws from a generator of its own, seeded by the instance and the number of the call, so an
episode repeats byte for byte. The seed stays on the host.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fpenv.errors import TaskError
from fpenv.instruments.instrument import Instrument, Reading, Refusal
from fpenv.records import InstrumentCall

MAX_CALLS = 20_000
MAX_KEPT_BYTES = 2 << 20


class Bench:
    """Operates the instruments and keeps the account. Not thread-safe."""

    def __init__(self, instruments: Sequence[Instrument], *, seed: int) -> None:
        self._instruments = {device.name: device for device in instruments}
        self._seed = seed
        self._log: list[InstrumentCall] = []
        self._shots = 0
        self._refused_bytes = 0

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._instruments)

    @property
    def budget_shots(self) -> int:
        """Shots that the laboratory grants, all instruments together."""
        return sum(device.budget_shots for device in self._instruments.values())

    @property
    def shots_left(self) -> int:
        """Negative when overspent: a laboratory's clock does not stop an experimenter, its audit does."""
        return self.budget_shots - self._shots

    @property
    def log(self) -> tuple[InstrumentCall, ...]:
        return tuple(self._log)

    def manual(self) -> str:
        """The manual pages of all instruments."""
        return "\n\n".join(f"# {device.name}\n{device.describe().strip()}" for device in self._instruments.values())

    def call(self, instrument: object, operation: object, arguments: object) -> InstrumentCall:
        """Operate an instrument once. A refusal is a record, not an exception, and costs nothing.

        What is kept is bounded, because refused calls cost an agent nothing: beyond MAX_CALLS every call is
        refused and none is kept; of refused calls, arguments beyond MAX_KEPT_BYTES in all are left out.
        """
        refusal, reading = None, Reading(result={})
        known = {} if not isinstance(arguments, Mapping) else dict(arguments)
        full = len(self._log) >= MAX_CALLS
        try:
            if full:
                raise Refusal(f"this episode's {MAX_CALLS:,} instrument calls are used up")
            reading = self._operate(instrument, operation, arguments)
        except Refusal as error:
            refusal = str(error)
            known = self._kept(known)
        self._shots += reading.shots
        record = InstrumentCall(
            instrument=str(instrument)[:100],
            operation=str(operation)[:100],
            arguments=known,
            result=None if refusal else dict(reading.result),
            refusal=refusal,
            shots=reading.shots,
            lab_time_s=reading.lab_time_s,
            shots_total=self._shots,
        )
        if not full:
            self._log.append(record)
        return record

    def _kept(self, arguments: dict[str, Any]) -> dict[str, Any]:
        self._refused_bytes += len(json.dumps(arguments))
        return arguments if self._refused_bytes <= MAX_KEPT_BYTES else {}

    def _operate(self, instrument: object, operation: object, arguments: object) -> Reading:
        device = self._instruments.get(instrument) if isinstance(instrument, str) else None
        if device is None:
            raise Refusal(f"instrument: expected one of {', '.join(self._instruments)}, got {instrument!r}")
        if not isinstance(operation, str):
            raise Refusal(f"operation: expected a string, got {type(operation).__name__}")
        if not isinstance(arguments, Mapping):
            raise Refusal(f"arguments: expected an object, got {type(arguments).__name__}")
        rng = np.random.default_rng([self._seed, len(self._log)])
        try:
            reading = device.call(operation, arguments, rng)
            json.dumps(dict(reading.result), allow_nan=False)
        except Refusal:
            raise
        except Exception as error:
            raise TaskError(
                f"instrument {device.name}: operation {operation} raised {type(error).__name__}: {error}; "
                "its code must refuse bad arguments with Refusal and return JSON-able results"
            ) from error
        return reading


def describe_call(call: InstrumentCall) -> dict[str, Any]:
    """What the agent sees of a call: the result or the refusal, and the meter."""
    if call.refusal is not None:
        return {"error": call.refusal}
    return {
        "result": call.result,
        "shots": call.shots,
        "lab_time_s": call.lab_time_s,
        "shots_total": call.shots_total,
    }
