"""From the rows of `long_chains.csv` to the critical line of the infinite chain, with its error.

For each ratio V1 / rabi: sigma_mid(delta) is a parabola through three detunings; the scaled values of successive
lengths cross at delta(L1, L2); with l^2 = (L1 + 2)(L2 + 2) the crossings of the last three pairs are solved for
delta = delta_c + a / l^2 + b / l^3. The error quoted is the distance to the value without b.

    python critical_line.py          # the table, then the interpolation error of instance.py's polynomial

Needs numpy only.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from pathlib import Path

import numpy as np

ROWS = Path(__file__).with_name("long_chains.csv")


LONGEST = 49  # longer chains, where there are any, only check the extrapolation


def read_rows(path: Path = ROWS, longest: int = LONGEST) -> dict[float, dict[int, np.ndarray]]:
    """Return ratio -> length -> array of (detuning, sigma_mid), complete triples only."""
    found: dict[float, dict[int, list]] = defaultdict(lambda: defaultdict(list))
    with path.open(encoding="ascii") as lines:
        for row in csv.DictReader(lines):
            point = (float(row["detuning_over_rabi"]), float(row["sigma_mid"]))
            found[float(row["v1_over_rabi"])][int(row["length"])].append(point)
    return {
        ratio: {n: np.array(points) for n, points in sorted(lengths.items()) if len(points) == 3 and n <= longest}
        for ratio, lengths in sorted(found.items())
    }


def pair_crossings(chains: dict[int, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return (l^2, crossing) of successive lengths under the open-chain scaling."""
    squares, crossings = [], []
    for first, second in zip(list(chains)[:-1], list(chains)[1:], strict=True):
        one, two = (np.sin(np.pi / (n + 2)) ** -0.125 * chains[n][:, 1] for n in (first, second))
        origin = chains[first][1, 0]
        roots = np.roots(np.polyfit(chains[first][:, 0] - origin, one - two, 2))
        crossings.append(float(roots[np.argmin(np.abs(roots))].real) + origin)
        squares.append((first + 2) * (second + 2))
    return np.array(squares, dtype=float), np.array(crossings)


def extrapolate(squares: np.ndarray, crossings: np.ndarray) -> tuple[float, float]:
    """Return (delta_c, distance to the extrapolation by the last two pairs in 1 / l^2 alone)."""
    last, values = squares[-3:], crossings[-3:]
    terms = np.column_stack([np.ones(3), last**-1, last**-1.5])
    full = float(np.linalg.solve(terms, values)[0])
    plain = float(np.polyfit(1 / last[-2:], values[-2:], 1)[1])
    return full, abs(full - plain)


def interpolate(ratios: np.ndarray, values: np.ndarray, at: float) -> float:
    """Return the polynomial through all points, as instance.py has it."""
    weights = [np.prod([(at - b) / (a - b) for b in ratios if b != a]) for a in ratios]
    return float(np.dot(weights, values))


def main() -> None:
    table = {ratio: extrapolate(*pair_crossings(chains)) for ratio, chains in read_rows().items()}
    print("v1_over_rabi,critical_detuning_over_rabi,error")
    for ratio, (value, error) in table.items():
        print(f"{ratio},{value:.6f},{error:.6f}")
    for ratio, chains in read_rows(longest=1000).items():
        if max(chains) > LONGEST:
            value = extrapolate(*pair_crossings(chains))[0]
            print(f"# up to {max(chains)} sites, {ratio}: {value:.6f}, shift {value - table[ratio][0]:+.1e}")
    ratios = np.array(list(table))
    values = np.array([value for value, _ in table.values()])
    for left_out in ratios[1:-1]:
        keep = ratios != left_out
        error = interpolate(ratios[keep], values[keep], left_out) - values[~keep][0]
        print(f"# polynomial without the node {left_out}: off by {error:+.1e} there")


if __name__ == "__main__":
    main()
