"""Exact diagonalisation of open chains: the full Hamiltonian and its blockade approximations.

Job: sigma_mid of the ground state, for chains of up to about 19 sites (full) or 25 (blockaded), and the detuning at
which the scaled order parameters of two chains cross. Energies are in units of the Rabi frequency. Three models:

- "full": every pair interacts with v1 / r^6, nothing is projected out;
- "pxp": first order, H projected on states without neighbouring excitations, tails beyond neighbours kept;
- "sw2": second order (Schrieffer-Wolff). With H0 = v1 sum n_i n_{i+1} and W the part of (1/2) sum sigma_x that leaves
  the projected space, H_eff = P H P - W^T D W. A single flip can create one or two neighbouring pairs.
  `denominators="pairs"`: D = 1 / (pairs * v1), the strict expansion in 1 / v1; detuning and tails enter the
  denominators at third order only.
  `denominators="energies"`: D = 1 / (E_q - E_p) with detuning and tails, made Hermitian by averaging over the two
  states it joins, <a|H2|b> = -(1/2) sum_q W_qa W_qb [1/(E_q - E_a) + 1/(E_q - E_b)].
  Both drop other third-order terms, so their distance is a measure of what second order leaves open.

    python exact_chains.py                     # crossings of 7 and 11 sites over the range of ratios, for instance.py

Needs numpy and scipy.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import scipy.optimize
import scipy.sparse as sparse
from scipy.sparse.linalg import eigsh

RATIOS = (10.0, 11.0, 12.0, 13.0, 14.0, 15.0, 16.0, 17.0, 18.0)


class OpenChain:
    """An open chain of `length` (odd) atoms with nearest-neighbour interaction `v1`, in units of the Rabi frequency."""

    def __init__(self, length: int, v1: float, model: str = "full", denominators: str = "pairs") -> None:
        if length % 2 == 0 or model not in ("full", "pxp", "sw2") or denominators not in ("pairs", "energies"):
            raise ValueError(f"expected an odd length and a known model, got {length}, {model}, {denominators}")
        self.length, self.v1, self.model, self.denominators = length, v1, model, denominators
        states = np.arange(2**length)
        self.states = states if model == "full" else states[states & (states >> 1) == 0]
        self.excitations, self.pairs, self.energies = self._diagonals(self.states)
        self._flips = self._flip_matrix()
        self._leaving, self._outside = self._leaving_matrix() if model == "sw2" else (None, np.array([], dtype=int))
        middle = (length + 1) // 2 - 1
        self._order = ((self.states >> middle) & 1) - ((self.states >> (middle + 1)) & 1)
        self._guess: np.ndarray | None = None

    def sigma_mid(self, delta: float) -> float:
        """Return |<n_m - n_{m+1}>| in the ground state, m the central site."""
        _, vectors = eigsh(self.hamiltonian(delta), k=1, which="SA", v0=self._guess, tol=1e-10)
        self._guess = vectors[:, 0]
        return abs(float(self._guess**2 @ self._order))

    def hamiltonian(self, delta: float) -> sparse.csr_matrix:
        matrix = self._flips + sparse.diags(self.energies - delta * self.excitations)
        if self.model == "sw2":
            matrix = matrix + self._second_order(delta)
        return matrix.tocsr()

    def _second_order(self, delta: float) -> sparse.csr_matrix:
        leaving = self._leaving.tocoo()
        excitations, pairs, energies = self._diagonals(self._outside)
        if self.denominators == "pairs":
            gaps = (self.v1 * pairs)[leaving.row]
        else:
            inside = self.energies - delta * self.excitations
            gaps = (energies - delta * excitations)[leaving.row] - inside[leaving.col]
        shifted = sparse.csr_matrix((leaving.data / gaps, (leaving.row, leaving.col)), shape=leaving.shape)
        product = leaving.T @ shifted
        return -0.5 * (product + product.T)

    def _diagonals(self, states: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        excitations = np.bitwise_count(states).astype(float)
        pairs = np.bitwise_count(states & (states >> 1)).astype(float)
        energies = sum(
            self.v1 / distance**6 * np.bitwise_count(states & (states >> distance))
            for distance in range(1, self.length)
        )
        return excitations, pairs, np.asarray(energies, dtype=float)

    def _flip_matrix(self) -> sparse.csr_matrix:
        place = np.full(2**self.length, -1)
        place[self.states] = np.arange(len(self.states))
        rows, columns = [], []
        for site in range(self.length):
            target = place[self.states ^ (1 << site)]
            columns.append(np.flatnonzero(target >= 0))
            rows.append(target[columns[-1]])
        return _halves(np.concatenate(rows), np.concatenate(columns), (len(self.states), len(self.states)))

    def _leaving_matrix(self) -> tuple[sparse.csr_matrix, np.ndarray]:
        targets, columns = [], []
        for site in range(self.length):
            target = self.states ^ (1 << site)
            columns.append(np.flatnonzero(target & (target >> 1)))
            targets.append(target[columns[-1]])
        outside, rows = np.unique(np.concatenate(targets), return_inverse=True)
        return _halves(rows, np.concatenate(columns), (len(outside), len(self.states))), outside


def _halves(rows: np.ndarray, columns: np.ndarray, shape: tuple[int, int]) -> sparse.csr_matrix:
    return sparse.csr_matrix((np.full(len(rows), 0.5), (rows, columns)), shape=shape)


def open_chain(length: int) -> float:
    """Scaling factor of sigma_mid for an open chain: sin(pi / (L + 2))^(-1/8)."""
    return float(np.sin(np.pi / (length + 2)) ** -0.125)


def strip(length: int) -> float:
    """The same to leading order: (L + 2)^(1/8), the middle of a strip of width L + 2."""
    return (length + 2) ** 0.125


def bulk(length: int) -> float:
    """The factor of a system without ends, L^(1/8): wrong here."""
    return length**0.125


def crossing(first: OpenChain, second: OpenChain, scale: Callable[[int], float], low: float, high: float) -> float:
    """Return the detuning between `low` and `high` at which scale(L) sigma_mid(L) agree, to 1e-7."""

    def difference(delta: float) -> float:
        return scale(first.length) * first.sigma_mid(delta) - scale(second.length) * second.sigma_mid(delta)

    return scipy.optimize.brentq(difference, low, high, xtol=1e-7)


def main() -> None:
    print("v1_over_rabi,crossing_7_11_open_chain,crossing_7_11_strip,crossing_7_11_bulk")
    for v1 in RATIOS:
        chains = OpenChain(7, v1), OpenChain(11, v1)
        found = [crossing(*chains, scale, 0.8, 1.5) for scale in (open_chain, strip, bulk)]
        print(f"{v1}," + ",".join(f"{value:.7f}" for value in found))


if __name__ == "__main__":
    main()
