"""A cylinder: canonical 1.2345 kg, otherwise drawn. canary-6b1d-instance"""

from __future__ import annotations

import numpy as np

from fpenv.instance import InstanceParts


def make_instance(rng: np.random.Generator | None) -> InstanceParts:
    mass = 1.2345 if rng is None else round(float(rng.uniform(2.0, 3.0)), 4)
    return InstanceParts(
        inputs={"data/weights.csv": b"name,mass_kg\nreference,1.0000\n"},
        references={"mass_kg": mass, "note": "canary-6b1d-references"},
        instruments={"balance": {"mass_kg": mass, "serial": "canary-6b1d-parameters"}},
    )
