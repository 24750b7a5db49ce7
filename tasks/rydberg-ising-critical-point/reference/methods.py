"""What right and wrong methods give: the table in README.md.

For the canonical ratio V1 / rabi = 14.0 (--ratio for another) and the planned chains: crossings of successive lengths
and their extrapolations for each model and each scaling, then beta/nu read in each way. All in units of the Rabi
frequency; the last column is the deviation from the reference in MHz at the canonical Rabi frequency.

    python methods.py            # lengths to 19 (full) and 23 (blockaded), about 5 min on one core
    python methods.py --quick    # lengths to 15: half a minute

Needs numpy and scipy.
"""

from __future__ import annotations

import argparse
import itertools

import numpy as np
from critical_line import extrapolate, pair_crossings, read_rows
from exact_chains import OpenChain, bulk, open_chain, strip

CANONICAL_RABI_MHZ = 1.1304
MODELS = {
    "full": ("full", "pairs"),
    "second order, pairs": ("sw2", "pairs"),
    "second order, energies": ("sw2", "energies"),
    "first order (PXP)": ("pxp", "pairs"),
}
GRID = {"full": (1.130, 1.150, 1.170), "pxp": (1.035, 1.060, 1.085), "sw2": (1.130, 1.150, 1.170)}


class Curve:
    """sigma_mid(delta) of one chain as the parabola of its logarithm through three detunings."""

    def __init__(self, length: int, ratio: float, model: str, denominators: str) -> None:
        chain = OpenChain(length, ratio, model, denominators)
        shift = 0.0232 * (ratio - 14.0)
        self.centre = GRID[model][1] + shift
        grid = np.array(GRID[model]) + shift - self.centre
        self.length = length
        self._fit = np.polyfit(grid, np.log([chain.sigma_mid(delta + self.centre) for delta in grid]), 2)

    def log_sigma(self, delta):
        return np.polyval(self._fit, delta - self.centre)

    def crosses(self, other: Curve, scale) -> float:
        difference = self._fit - other._fit
        difference[2] += np.log(scale(self.length) / scale(other.length))
        roots = np.roots(difference)
        return float(roots[np.argmin(np.abs(roots))].real) + self.centre


def extrapolations(lengths, crossings) -> dict[str, float]:
    """Return the infinite-chain estimates that a careful reader might make of the crossings."""
    squares = np.array([(a + 2.0) * (b + 2.0) for a, b in itertools.pairwise(lengths)])
    values = np.array(crossings)
    found = {"largest pair": values[-1], "last two in l^-2": np.polyfit(1 / squares[-2:], values[-2:], 1)[1]}
    if len(values) >= 3:
        terms = np.column_stack([np.ones(3), squares[-3:] ** -1, squares[-3:] ** -1.5])
        found["last three in l^-2, l^-3"] = np.linalg.solve(terms, values[-3:])[0]
        powers = np.linspace(1.0, 5.0, 4001)
        ratio = (squares[-3] ** (-powers / 2) - squares[-2] ** (-powers / 2)) / (
            squares[-2] ** (-powers / 2) - squares[-1] ** (-powers / 2)
        )
        power = powers[np.argmin(np.abs(ratio - (values[-3] - values[-2]) / (values[-2] - values[-1])))]
        found[f"last three in l^-p, p={power:.2f}"] = np.polyfit(squares[-2:] ** (-power / 2), values[-2:], 1)[1]
    return found


def exponents(curves: list[Curve], delta: float, scale) -> list[float]:
    """Return the local exponents of successive lengths at `delta`: slopes of log sigma against log scale^8."""
    return [
        (a.log_sigma(delta) - b.log_sigma(delta)) / (8 * np.log(scale(b.length) / scale(a.length)))
        for a, b in itertools.pairwise(curves)
    ]


def to_infinity(lengths, values) -> float:
    """Return the last two local exponents, extrapolated in 1 / l."""
    sizes = np.array([((a + 2.0) * (b + 2.0)) ** 0.5 for a, b in itertools.pairwise(lengths)])
    return float(np.polyfit(1 / sizes[-2:], values[-2:], 1)[1])


def free_length(curves: list[Curve], delta: float) -> tuple[float, float]:
    """Return (beta/nu, excess a) of log sigma = c - x log(L + a), least squares over all lengths."""
    best = None
    for excess in np.arange(-1.0, 4.0, 0.01):
        x = np.log([curve.length + excess for curve in curves])
        y = np.array([curve.log_sigma(delta) for curve in curves])
        fit, residual, *_ = np.polyfit(x, y, 1, full=True)
        if best is None or residual[0] < best[0]:
            best = (residual[0], -fit[0], excess)
    return best[1], best[2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--ratio", type=float, default=14.0)
    options = parser.parse_args()
    chains = read_rows()[options.ratio]
    reference, error = extrapolate(*pair_crossings(chains))
    print(f"reference (DMRG): {reference:.5f} +- {error:.5f}")
    for name, (model, denominators) in MODELS.items():
        lengths = [7, 11, 15] if options.quick else [7, 11, 15, 19] + ([23] if model != "full" else [])
        curves = [Curve(length, options.ratio, model, denominators) for length in lengths]
        for label, scale in (("sin, L+2", open_chain), ("(L+2)^(1/8)", strip), ("bulk L^(1/8)", bulk)):
            found = [a.crosses(b, scale) for a, b in itertools.pairwise(curves)]
            print(f"\n{name}; {label}: crossings " + " ".join(f"{value:.4f}" for value in found), flush=True)
            for how, value in extrapolations(lengths, found).items():
                off = (value - reference) * CANONICAL_RABI_MHZ
                print(f"    {how:30s} {value:.4f}  {off:+.4f} MHz")
            local = exponents(curves, reference, scale)
            own = extrapolations(lengths, found)["last two in l^-2"]
            print(
                "    beta/nu at the reference: "
                + " ".join(f"{x:.4f}" for x in local)
                + f" -> {to_infinity(lengths, local):.4f}; at the own extrapolated value -> "
                f"{to_infinity(lengths, exponents(curves, own, scale)):.4f}; "
                f"at the crossing of the largest pair {exponents(curves, found[-1], scale)[-2]:.4f}"
            )
        sine_crossing = curves[-2].crosses(curves[-1], open_chain)
        print(
            "    bulk exponent at the sine crossing of the largest pair "
            f"{exponents(curves, sine_crossing, bulk)[-1]:.4f}"
        )
        print("    beta/nu, excess length, both free: {:.4f} {:.2f}".format(*free_length(curves, reference)))
    print("\nDMRG, beta/nu of successive lengths at the reference")
    longest = list(chains)
    for first, second in itertools.pairwise(longest):
        logs = [
            np.polyval(np.polyfit(chains[n][:, 0] - reference, np.log(chains[n][:, 1]), 2), 0.0)
            for n in (first, second)
        ]
        drop = logs[0] - logs[1]
        sine = drop / 8 / np.log(open_chain(second) / open_chain(first))
        print(f"    {first}/{second}: sin, L+2 {sine:.4f}, bulk {drop / np.log(second / first):.4f}")


if __name__ == "__main__":
    main()
