"""What one to three driven, decaying, imperfectly detected atoms should show: the model that the calibration fits.

Frequencies in MHz (E / h), times in us. Written for the fit: density matrices, exact exponentials of the
Lindblad generator, and a read-out that treats each atom alone.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import lru_cache

import numpy as np
from scipy.linalg import expm


@dataclass(frozen=True)
class Machine:
    """The unknowns. `v1_mhz` is the interaction at `spacing_um`, and goes with the sixth power of the distance."""

    rabi_scale: float
    offset_mhz: float
    v1_mhz: float
    lifetime_us: float
    false_rydberg: float
    missed_rydberg: float
    spacing_um: float

    NAMES = ("rabi_scale", "offset_mhz", "v1_mhz", "lifetime_us", "false_rydberg", "missed_rydberg")

    def vector(self) -> np.ndarray:
        return np.array([getattr(self, name) for name in self.NAMES])

    def moved(self, vector: np.ndarray) -> Machine:
        return replace(self, **dict(zip(self.NAMES, map(float, vector), strict=True)))


@dataclass(frozen=True)
class Run:
    """One call of the apparatus and what it counted."""

    purpose: str
    atoms: int
    spacing_um: float
    pulse: tuple[tuple[float, float, float], ...]
    counts: tuple[int, ...]

    @property
    def shots(self) -> int:
        return sum(self.counts)


@lru_cache(maxsize=8)
def operators(atoms: int) -> tuple[np.ndarray, ...]:
    """Return sum of X/2, sum of n, the pair terms weighted by distance^-6, and the decay superoperator."""

    def site(op: np.ndarray, i: int) -> np.ndarray:
        parts = [op if k == i else np.eye(2) for k in range(atoms)]
        out = parts[0]
        for part in parts[1:]:
            out = np.kron(out, part)
        return out

    x, n, down = np.array([[0, 0.5], [0.5, 0]]), np.diag([0.0, 1.0]), np.array([[0.0, 1.0], [0.0, 0.0]])
    ns = [site(n, i) for i in range(atoms)]
    size = 2**atoms
    interaction = np.zeros((size, size))
    for i in range(atoms):
        for j in range(i + 1, atoms):
            interaction += ns[i] @ ns[j] / (j - i) ** 6
    one = np.eye(size)
    decay = np.zeros((size * size, size * size))
    for i in range(atoms):
        jump = site(down, i)
        decay += np.kron(jump, jump) - 0.5 * (np.kron(ns[i], one) + np.kron(one, ns[i]))
    return sum(site(x, i) for i in range(atoms)), sum(ns), interaction, decay


def probabilities(machine: Machine, atoms: int, spacing_um: float, pulse: tuple) -> np.ndarray:
    """Probabilities of the read-outs, in binary order, first atom leftmost."""
    drive, number, interaction, decay = operators(atoms)
    one = np.eye(2**atoms)
    rho = np.zeros(4**atoms, dtype=complex)
    rho[0] = 1.0
    v = machine.v1_mhz * (machine.spacing_um / spacing_um) ** 6
    for duration, rabi, detuning in pulse:
        h = machine.rabi_scale * rabi * drive - (detuning - machine.offset_mhz) * number + v * interaction
        generator = -2j * np.pi * (np.kron(h, one) - np.kron(one, h.T)) + decay / machine.lifetime_us
        rho = expm(generator * duration) @ rho
    p = np.clip(np.real(np.diag(rho.reshape(one.shape))), 0, 1)
    e, m = machine.false_rydberg, machine.missed_rydberg
    confusion = full = np.array([[1 - e, m], [e, 1 - m]])
    for _ in range(atoms - 1):
        full = np.kron(full, confusion)
    return full @ p


def residuals(machine: Machine, runs: list[Run]) -> np.ndarray:
    """Signed square roots of the deviance, one per outcome: least squares of these is maximum likelihood."""
    out = []
    for run in runs:
        p = np.clip(probabilities(machine, run.atoms, run.spacing_um, run.pulse), 1e-9, 1)
        n, expected = np.array(run.counts, float), run.shots * p
        term = expected - n + np.where(n > 0, n * np.log(np.where(n > 0, n, 1) / expected), 0.0)
        out.append(np.sign(n - expected) * np.sqrt(np.clip(2 * term, 0, None)))
    return np.concatenate(out)


assert [f.name for f in fields(Machine)][:6] == list(Machine.NAMES)
