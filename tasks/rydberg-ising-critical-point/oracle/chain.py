"""Ground states of open Rydberg chains by sparse exact diagonalisation, in units of the Rabi frequency.

    H / Omega = (1/2) sum_i X_i - d sum_i n_i + v sum_{i<j} n_i n_j / |i - j|^6

Models: `full` keeps every state; `second` is the Schrieffer-Wolff Hamiltonian to second order in the
subspace without neighbouring excitations; `first` is the bare projection (PXP with tails). All are
diagonalised in the reflection-even sector, where the ground state lies.
"""

from __future__ import annotations

import numpy as np
import scipy.optimize as opt
import scipy.sparse as sp
import scipy.sparse.linalg as sla


def reflect(states: np.ndarray, length: int) -> np.ndarray:
    """Reverse the order of the sites in each bit pattern."""
    out = np.zeros_like(states)
    for i in range(length):
        out |= ((states >> i) & 1) << (length - 1 - i)
    return out


def pairs(states: np.ndarray, distance: int) -> np.ndarray:
    """Count the excited pairs at a distance."""
    return np.bitwise_count(states & (states >> distance)).astype(float)


def states_with_pairs(length: int, most: int) -> np.ndarray:
    """Bit patterns with at most `most` pairs of neighbouring excitations, in ascending order."""
    if most >= length - 1:
        return np.arange(1 << length, dtype=np.int64)
    grown = [(np.array([0, 1], dtype=np.int64), np.zeros(2, dtype=np.int64))]
    states, count = grown[0]
    for n in range(1, length):
        joined = count + (states >> (n - 1))
        fits = joined <= most
        states = np.concatenate([states, states[fits] | (1 << n)])
        count = np.concatenate([count, joined[fits]])
    return states


class Basis:
    """Reflection-even orbits of a set of bit patterns that is closed under reflection."""

    def __init__(self, states: np.ndarray, length: int):
        mirrored = reflect(states, length)
        self.length = length
        self.states = np.sort(states[states <= mirrored])
        self.orbit = np.where(self.states == reflect(self.states, length), 1.0, 2.0)

    def __len__(self) -> int:
        return len(self.states)

    def index(self, states: np.ndarray) -> np.ndarray:
        """Return the number of each pattern's orbit, or -1 outside the basis."""
        smallest = np.minimum(states, reflect(states, self.length))
        where = np.minimum(np.searchsorted(self.states, smallest), len(self.states) - 1)
        return np.where(self.states[where] == smallest, where, -1)


def flips(rows: Basis, columns: Basis) -> sp.csr_matrix:
    """Matrix of sum_i X_i from the orbits of `columns` to those of `rows`."""
    row, column, value = [], [], []
    for site in range(rows.length):
        target = rows.index(columns.states ^ (1 << site))
        (inside,) = np.nonzero(target >= 0)
        row.append(target[inside])
        column.append(inside)
        value.append(np.sqrt(columns.orbit[inside] / rows.orbit[target[inside]]))
    entries = np.concatenate(value), (np.concatenate(row), np.concatenate(column))
    return sp.csr_matrix(entries, shape=(len(rows), len(columns)))


class Chain:
    """One open chain of odd length; `order_parameter(v, d)` is sigma on its central bond."""

    def __init__(self, length: int, model: str = "full", reach: int | None = None, most_pairs: int = 2):
        self.length, self.model = length, model
        states = states_with_pairs(length, most_pairs if model == "full" else 0)
        self.basis = Basis(states, length)
        self.kinetic = 0.5 * flips(self.basis, self.basis)
        self.reach = min(reach or length - 1, length - 1)
        self.count, self.tail = self._diagonals(self.basis)
        if model == "second":
            self._couple_outside()
        centre = length // 2
        bit = lambda i: ((self.basis.states >> i) & 1).astype(float)  # noqa: E731
        self.sigma = abs_sign(centre) * (bit(centre) - 0.5 * (bit(centre - 1) + bit(centre + 1)))
        self.profile = np.array([0.5 * (bit(i) + bit(length - 1 - i)) for i in range(length)])
        self._start = np.random.default_rng(length).normal(size=len(self.basis))

    def _diagonals(self, basis: Basis) -> tuple[np.ndarray, np.ndarray]:
        tail = sum(pairs(basis.states, r) / r**6 for r in range(1, self.reach + 1))
        return np.bitwise_count(basis.states).astype(float), tail

    def _couple_outside(self) -> None:
        outside = [self.basis.states ^ (1 << i) for i in range(self.length)]
        outside = np.unique(np.concatenate(outside))
        outside = outside[pairs(outside, 1) > 0]
        outside = np.unique(np.concatenate([outside, reflect(outside, self.length)]))
        excited = Basis(outside, self.length)
        self.coupling = (0.5 * flips(excited, self.basis)).tocoo()
        self.excited_count, self.excited_tail = self._diagonals(excited)

    def hamiltonian(self, v: float, d: float) -> sp.csr_matrix:
        energy = v * self.tail - d * self.count
        matrix = self.kinetic + sp.diags(energy)
        if self.model == "second":
            c = self.coupling
            above = v * self.excited_tail - d * self.excited_count
            weighted = sp.csr_matrix((c.data / (energy[c.col] - above[c.row]), (c.row, c.col)), c.shape)
            half = 0.5 * (weighted.T @ c.tocsr())
            matrix = matrix + half + half.T
        return matrix.tocsr()

    def ground(self, v: float, d: float, levels: int = 1) -> tuple[np.ndarray, np.ndarray]:
        matrix = self.hamiltonian(v, d)
        energies, vectors = sla.eigsh(matrix, k=levels, which="SA", v0=self._start, tol=1e-8, ncv=24)
        order = np.argsort(energies)
        self._start = vectors[:, order[0]].copy()
        return energies[order], vectors[:, order]

    def order_parameter(self, v: float, d: float) -> float:
        return float(self.sigma @ self.ground(v, d)[1][:, 0] ** 2)

    def bond_profile(self, v: float, d: float) -> np.ndarray:
        density = self.profile @ self.ground(v, d)[1][:, 0] ** 2
        return (-1.0) ** np.arange(self.length - 1) * (density[:-1] - density[1:])


class Ring:
    """One closed chain of even length: no ends, hence no order parameter, but a gap that closes as 1 / L."""

    def __init__(self, length: int, most_pairs: int = 2):
        self.length = length
        states = states_with_pairs(length, most_pairs)
        wrapped = pairs(states, 1) + ((states & 1) & (states >> (length - 1)))
        states = states[wrapped <= most_pairs]
        row, column = [], []
        for site in range(length):
            flipped = states ^ (1 << site)
            where = np.minimum(np.searchsorted(states, flipped), len(states) - 1)
            (inside,) = np.nonzero(states[where] == flipped)
            row.append(where[inside])
            column.append(inside)
        index = np.concatenate(row), np.concatenate(column)
        self.kinetic = sp.csr_matrix((np.full(len(index[0]), 0.5), index), shape=(len(states),) * 2)
        self.count = np.bitwise_count(states).astype(float)
        self.tail = np.zeros(len(states))
        for r in range(1, length // 2 + 1):
            turned = ((states >> r) | (states << (length - r))) & ((1 << length) - 1)
            weight = 0.5 if 2 * r == length else 1.0
            self.tail += weight * np.bitwise_count(states & turned) / r**6

    def scaled_gap(self, v: float, d: float) -> float:
        """L times the distance of the two lowest levels, which is constant at the critical point."""
        matrix = (self.kinetic + sp.diags(v * self.tail - d * self.count)).tocsr()
        start = np.random.default_rng(self.length).normal(size=len(self.count))
        energies = sla.eigsh(matrix, k=2, which="SA", v0=start, tol=1e-9, ncv=24, return_eigenvectors=False)
        return self.length * float(np.ptp(energies))


class Curve:
    """A smooth function of the detuning, known at Chebyshev nodes of a window and interpolated between."""

    def __init__(self, function, low: float, high: float, nodes: int):
        angle = np.pi * (np.arange(nodes) + 0.5) / nodes
        self.low, self.high = low, high
        self.d = 0.5 * (low + high) + 0.5 * (high - low) * np.cos(angle)
        self.y = np.array([function(d) for d in self.d])
        self.fit = np.polynomial.Chebyshev.fit(self.d, self.y, nodes - 1, domain=[low, high])

    def __call__(self, d):
        return self.fit(d)


def crossing(first, second, low: float, high: float) -> float:
    """Detuning at which two functions agree, within a window."""
    return float(opt.brentq(lambda d: first(d) - second(d), low, high, xtol=1e-9))


def abs_sign(centre: int) -> float:
    """Sublattice sign: the end sites of an odd open chain are favoured, so even sites are excited."""
    return 1.0 if centre % 2 == 0 else -1.0


def ends_scale(length: int) -> float:
    """Size of sigma_mid at criticality between two ordered ends: sin(pi / (L + 2))^(1/8)."""
    return float(np.sin(np.pi / (length + 2)) ** 0.125)


def bulk_scale(length: int) -> float:
    """The same for a system without ends, L^(-1/8): for contrast."""
    return float(length**-0.125)
