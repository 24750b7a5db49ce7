"""Cross-check of the critical line by another observable and other boundaries: the gap of a ring.

On a ring of L atoms (L a multiple of 4) L times the lowest gap is independent of L at an Ising critical point. Its
crossings approach the critical detuning of the infinite chain as a power of 1/L; nothing is shared with sigma_mid, with
open ends or with DMRG. Energies are in units of the Rabi frequency; each pair interacts at its shorter distance.

    python ring_gaps.py 14.0          # rings of 8, 12, 16, 20 sites, about 3 min on one core
    python ring_gaps.py 14.0 --quick  # 8, 12, 16: ten seconds

Needs numpy and scipy.
"""

from __future__ import annotations

import argparse
import itertools

import numpy as np
import scipy.optimize
import scipy.sparse as sparse
from scipy.sparse.linalg import eigsh


class Ring:
    """A periodic chain; lazily caches its gaps."""

    def __init__(self, length: int, v1: float) -> None:
        self.length = length
        states = np.arange(2**length)
        self._excitations = np.bitwise_count(states).astype(float)
        self._energies = np.zeros(len(states))
        for distance in range(1, length // 2 + 1):
            turned = ((states >> distance) | (states << (length - distance))) & (2**length - 1)
            once = 0.5 if 2 * distance == length else 1.0
            self._energies += once * v1 / distance**6 * np.bitwise_count(states & turned)
        rows = np.tile(states, length)
        columns = np.concatenate([states ^ (1 << site) for site in range(length)])
        self._flips = sparse.csr_matrix((np.full(len(rows), 0.5), (rows, columns)))
        self._gaps: dict[float, float] = {}

    def gap(self, delta: float) -> float:
        if delta not in self._gaps:
            matrix = self._flips + sparse.diags(self._energies - delta * self._excitations)
            levels = np.sort(eigsh(matrix.tocsr(), k=2, which="SA", tol=1e-11, ncv=24)[0])
            self._gaps[delta] = float(levels[1] - levels[0])
        return self._gaps[delta]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("ratio", type=float)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    lengths = (8, 12, 16) if options.quick else (8, 12, 16, 20)
    rings = [Ring(length, options.ratio) for length in lengths]
    for small, large in itertools.pairwise(rings):

        def difference(delta: float, small: Ring = small, large: Ring = large) -> float:
            return small.length * small.gap(delta) - large.length * large.gap(delta)

        found = scipy.optimize.brentq(difference, 0.95, 1.4, xtol=2e-6, rtol=1e-6)
        print(f"{options.ratio},{small.length},{large.length},{found:.6f}", flush=True)


if __name__ == "__main__":
    main()
