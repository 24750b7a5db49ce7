"""Instances of the task: what the machine really does, what its data sheet claims, and the numbers to be found.

Job: draw hidden parameters, write the data sheet, and work out the references from two tables that `reference/`
computed (README.md there: which Hamiltonian, which limit, how converged). Nothing heavy happens here: an instance is
made in under a millisecond, with the same bytes for the same generator.

The reference for the critical point is the infinite chain with the full Hamiltonian, no blockade projection, van der
Waals tails included. Panel (set) values are true value + offset for the detuning, true value / scale for the Rabi
frequency.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass

import numpy as np

from fpenv.instance import InstanceParts

# V1 / rabi, critical detuning / rabi of the infinite chain (reference/critical_line.py), and detuning / rabi at which
# the scaled sigma_mid of 7 and 11 sites cross: the mean of the two leading-order forms, sin(pi/(L+2))^(-1/8) and
# (L+2)^(1/8), which lie 0.0046 apart (reference/exact_chains.py).
CRITICAL_LINE = (
    (10.0, 1.052177, 1.078101),
    (11.0, 1.071009, 1.098143),
    (12.0, 1.091832, 1.120097),
    (13.0, 1.114210, 1.143521),
    (14.0, 1.137844, 1.168110),
    (15.0, 1.162518, 1.193649),
    (16.0, 1.188073, 1.219978),
    (17.0, 1.214393, 1.246981),
    (18.0, 1.241386, 1.274571),
)

CHAIN_LENGTHS = (7, 11, 15, 19)
BUDGET_SHOTS = 12_000  # 1.3 h of pulsing: half a day with alignment, what a shared machine grants a calibration
NOMINAL_C6_MHZ_UM6 = 862_690.0  # |C6| / h of the Rb 70S pair state, as published for commercial arrays
BETA_OVER_NU = 0.125  # order-parameter dimension of the two-dimensional Ising class

# Half-widths. reference/README.md has the budget of errors behind each.
TOLERANCES = {
    "rabi_frequency_mhz": 0.012,
    "detuning_offset_mhz": 0.008,
    "crossing_detuning_7_11_mhz": 0.012,
    "critical_detuning_mhz": 0.010,
    "beta_over_nu": 0.010,
}
RELATIVE_TOLERANCES = {"interaction_v1_mhz": 0.02, "rydberg_lifetime_us": 0.20}


@dataclass(frozen=True)
class Hidden:
    """The truth about one machine, and the two panel settings of the planned chain."""

    rabi_set_mhz: float
    spacing_um: float
    rabi_scale: float
    detuning_offset_mhz: float
    c6_scale: float  # true C6 and magnification together, as they act at a nominal spacing
    lifetime_us: float
    false_rydberg: float
    missed_rydberg: float

    @property
    def rabi_mhz(self) -> float:
        return self.rabi_scale * self.rabi_set_mhz

    @property
    def v1_mhz(self) -> float:
        return self.c6_scale * NOMINAL_C6_MHZ_UM6 / self.spacing_um**6

    @property
    def ratio(self) -> float:
        return self.v1_mhz / self.rabi_mhz


CANONICAL = Hidden(
    rabi_set_mhz=1.20,
    spacing_um=6.20,
    rabi_scale=0.942,
    detuning_offset_mhz=0.137,
    c6_scale=1.043,
    lifetime_us=52.0,
    false_rydberg=0.018,
    missed_rydberg=0.062,
)


def make_instance(rng: np.random.Generator | None) -> InstanceParts:
    """Return the canonical instance (None) or one drawn from `rng`."""
    hidden = CANONICAL if rng is None else _draw(rng)
    sheet = _data_sheet(hidden)
    return InstanceParts(
        inputs={"apparatus.json": (json.dumps(sheet, indent=2) + "\n").encode()},
        references=_references(hidden),
        instruments={
            "apparatus": {
                "rabi_scale": hidden.rabi_scale,
                "detuning_offset_mhz": hidden.detuning_offset_mhz,
                "c6_mhz_um6": hidden.c6_scale * NOMINAL_C6_MHZ_UM6,
                "lifetime_us": hidden.lifetime_us,
                "false_rydberg": hidden.false_rydberg,
                "missed_rydberg": hidden.missed_rydberg,
                "budget_shots": BUDGET_SHOTS,
                "data_sheet": sheet,
            }
        },
    )


def critical_line(ratio: float) -> tuple[float, float]:
    """Return (critical detuning, crossing of 7 and 11 sites), both over rabi, at V1 / rabi = `ratio`.

    The polynomial through the table, valid from 10 to 18. Error: 1e-5 (rounding of the table).
    """
    nodes = [row[0] for row in CRITICAL_LINE]
    if not nodes[0] <= ratio <= nodes[-1]:
        raise ValueError(f"expected a ratio from {nodes[0]} to {nodes[-1]}, got {ratio}")
    critical = crossing = 0.0
    for index, (node, critical_here, crossing_here) in enumerate(CRITICAL_LINE):
        others = nodes[:index] + nodes[index + 1 :]
        weight = math.prod((ratio - other) / (node - other) for other in others)
        critical += weight * critical_here
        crossing += weight * crossing_here
    return critical, crossing


def _draw(rng: np.random.Generator) -> Hidden:
    """Draw a machine within the range where the task bites, away from the canonical answer."""
    canonical = _critical_set_mhz(CANONICAL)
    while True:
        hidden = Hidden(
            rabi_set_mhz=round(float(rng.choice(np.arange(1.05, 1.36, 0.05))), 2),
            spacing_um=round(float(rng.uniform(6.0, 6.4)), 2),
            rabi_scale=1 + _off(rng, 0.03, 0.09),
            detuning_offset_mhz=_off(rng, 0.06, 0.20),
            c6_scale=1 + _off(rng, 0.03, 0.09),
            lifetime_us=round(float(rng.uniform(35.0, 80.0)), 3),
            false_rydberg=round(float(rng.uniform(0.010, 0.035)), 5),
            missed_rydberg=round(float(rng.uniform(0.035, 0.085)), 5),
        )
        biting = 12.0 <= hidden.ratio <= 15.5 and 1.0 <= hidden.rabi_mhz <= 1.35
        if biting and abs(_critical_set_mhz(hidden) - canonical) > 0.03:
            return hidden


def _off(rng: np.random.Generator, least: float, most: float) -> float:
    """Draw a miscalibration of either sign whose size is from `least` to `most`."""
    return round(float(rng.choice((-1.0, 1.0)) * rng.uniform(least, most)), 5)


def _critical_set_mhz(hidden: Hidden) -> float:
    return hidden.rabi_mhz * critical_line(hidden.ratio)[0] + hidden.detuning_offset_mhz


def _references(hidden: Hidden) -> dict[str, dict[str, float]]:
    """Return name -> {value, tolerance}, the content of verifier/references.json."""
    critical, crossing = critical_line(hidden.ratio)
    values = {
        "rabi_frequency_mhz": hidden.rabi_mhz,
        "detuning_offset_mhz": hidden.detuning_offset_mhz,
        "interaction_v1_mhz": hidden.v1_mhz,
        "rydberg_lifetime_us": hidden.lifetime_us,
        "crossing_detuning_7_11_mhz": hidden.rabi_mhz * crossing + hidden.detuning_offset_mhz,
        "critical_detuning_mhz": hidden.rabi_mhz * critical + hidden.detuning_offset_mhz,
        "beta_over_nu": BETA_OVER_NU,
    }
    return {
        name: {
            "value": round(value, 6),
            "tolerance": round(TOLERANCES.get(name, RELATIVE_TOLERANCES.get(name, 0.0) * value), 6),
        }
        for name, value in values.items()
    }


def _data_sheet(hidden: Hidden) -> dict[str, object]:
    """Return what the agent is told: nominal values, none of them checked lately."""
    return {
        "machine": "one-dimensional tweezer array, 87Rb, Rydberg state 70S",
        "last_calibration": "2025-11-03, before the laser was moved to a new reference cavity",
        "nominal": {
            "c6_mhz_um6": NOMINAL_C6_MHZ_UM6,
            "rabi_scale": 1.0,
            "detuning_offset_mhz": 0.0,
            "lifetime_us": None,
            "readout_errors": None,
            "remark": "null: not measured on this machine; spacings assume the design magnification",
        },
        "planned_chain": {
            "rabi_set_mhz": hidden.rabi_set_mhz,
            "spacing_um": hidden.spacing_um,
            "lengths": list(CHAIN_LENGTHS),
            "ends": "open",
        },
        "grant": {"shots": BUDGET_SHOTS, "seconds_per_shot": 0.4},
    }
