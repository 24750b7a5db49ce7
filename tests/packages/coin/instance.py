"""A coin: canonical 0.7, otherwise drawn."""

from __future__ import annotations

import numpy as np

from fpenv.instance import InstanceParts


def make_instance(rng: np.random.Generator | None) -> InstanceParts:
    bias = 0.7 if rng is None else round(float(rng.uniform(0.1, 0.5)), 4)
    return InstanceParts(
        inputs={"data/sheet.txt": b"a coin\n"}, references={"bias": bias}, instruments={"coin": {"bias": bias}}
    )
