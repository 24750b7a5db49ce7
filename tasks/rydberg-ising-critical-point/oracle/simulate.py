"""Step 3: from the calibrated Hamiltonian to the critical point, by exact diagonalisation of open chains.

Reads work/calibration.json, writes work/simulation.json. Detunings `d` are in units of the calibrated Rabi
frequency, relative to resonance; the panel's detuning is Omega d + offset. Two worker processes, about a minute.
"""

from __future__ import annotations

import json
import os
import time
from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from chain import Chain, Curve, Ring, bulk_scale, crossing, ends_scale

WORK = Path.home() / "work"
STARTED = time.monotonic()
NODES = 5
REACH = {"second": 23, "full": 19, "first": 19}
COMPLETE_UP_TO = 15
Curves = dict[int, Curve]
Pairs = dict[tuple[int, int], float]


def say(text: str) -> None:
    print(f"[simulate {time.monotonic() - STARTED:5.1f} s] {text}", flush=True)


# ------------------------------------------------------------------------------ work for one process
def chain_curve(job: tuple) -> tuple:
    """ln sigma_mid of one chain over a window of detunings. Above L = 15, at most three neighbour pairs."""
    model, length, v, window, nodes = job
    chain = Chain(length, model, most_pairs=length if length <= COMPLETE_UP_TO else 3)
    return job, Curve(lambda d: np.log(chain.order_parameter(v, d)), *window, nodes), len(chain.basis)


def ring_curve(job: tuple) -> tuple:
    """L times the gap of one ring over a window of detunings."""
    length, most_pairs, v, window = job
    ring = Ring(length, most_pairs)
    return length, Curve(lambda d: ring.scaled_gap(v, d), *window, 4)


def chain_gap(job: tuple) -> tuple:
    """Gap of one chain at one detuning, in the sector that a sweep explores, and its bond profile."""
    length, v, d = job
    chain = Chain(length, "full", most_pairs=min(length, 3))
    energies, _ = chain.ground(v, d, levels=2)
    return length, float(energies[1] - energies[0]), chain.bond_profile(v, d).tolist()


def numerical_checks(job: tuple) -> dict:
    """Two errors of the numerics, seen directly: leaving out many-pair states, and interpolating in detuning."""
    length, v, d, curve = job
    exact = Chain(length, "full", most_pairs=length).order_parameter(v, d)
    truncated = Chain(length, "full", most_pairs=3).order_parameter(v, d)
    return {"length": length, "truncation": abs(truncated - exact), "interpolation": abs(np.exp(curve(d)) - exact)}


def solve(pool: ProcessPoolExecutor, jobs: list[tuple], label: str) -> dict[str, Curves]:
    """Run chain jobs and sort the curves by model and length."""
    found: dict[str, Curves] = {}
    for (model, length, *_), curve, size in pool.map(chain_curve, jobs):
        found.setdefault(model, {})[length] = curve
        if label:
            say(f"{label}{model} model, L = {length}, {size} states")
    return found


# ------------------------------------------------------------------------------ analysis
def crossings(curves: Curves, window: tuple[float, float], scale=ends_scale) -> Pairs:
    """Detunings at which sigma_mid / scale(L) agrees for successive lengths."""
    found = {}
    for a, b in pairwise(sorted(curves)):
        shift = float(np.log(scale(a) / scale(b)))
        found[a, b] = crossing(curves[a], lambda d, b=b, shift=shift: curves[b](d) + shift, *window)
    return found


def inverse_area(pair: tuple[int, int]) -> float:
    """1 / l^2 with l^2 = (L1 + 2)(L2 + 2): the leading finite-size correction of a crossing."""
    return 1.0 / ((pair[0] + 2) * (pair[1] + 2))


def limit(found: Pairs) -> tuple[float, float]:
    """Limit of infinite length, quadratic in 1 / l^2 through the three longest pairs.

    Its uncertainty is the change from the straight line through the two longest.
    """
    pairs = sorted(found)
    x, y = np.array([inverse_area(p) for p in pairs]), np.array([found[p] for p in pairs])
    straight = np.polyfit(x[-2:], y[-2:], 1)[-1]
    curved = np.polyfit(x[-3:], y[-3:], 2)[-1]
    return float(curved), abs(float(curved - straight))


def join(full: Pairs, second: Pairs) -> tuple[Pairs, Pairs]:
    """Carry the full model to the pairs that only second order reaches.

    The difference of the two, known on the shorter pairs, is a straight line in 1 / l^2.
    """
    offset = {p: full[p] - second[p] for p in full}
    line = np.polyfit([inverse_area(p) for p in offset], list(offset.values()), 1)
    carried = {p: second[p] + float(np.polyval(line, inverse_area(p))) for p in second if p not in full}
    return {**full, **carried}, offset


def local_exponents(curves: Curves, d: float, size=ends_scale) -> Pairs:
    """beta / nu between successive lengths: change of ln sigma_mid over that of 8 ln scale, so 1/8 at criticality."""
    found = {}
    for a, b in pairwise(sorted(curves)):
        found[a, b] = float((curves[a](d) - curves[b](d)) / (8 * np.log(size(a) / size(b))))
    return found


def unbiased(curves: Curves, window: tuple[float, float]) -> tuple[dict, dict]:
    """Detuning and exponent without assuming either: where two successive local exponents agree."""

    def exponent_of(a: int, b: int):
        return lambda d: local_exponents({a: curves[a], b: curves[b]}, d)[a, b]

    d_star, exponent = {}, {}
    for (a, b), (_, c) in pairwise(pairwise(sorted(curves))):
        d_star[a, c] = crossing(exponent_of(a, b), exponent_of(b, c), *window)
        exponent[a, c] = exponent_of(b, c)(d_star[a, c])
    return d_star, exponent


def first_look(v: float, lengths: list[int]) -> float:
    """Where to look: crossing of the two shortest chains, moved by the usual finite-size shift."""
    short = {L: chain_curve(("full", L, v, (0.7, 1.5), 9))[1] for L in lengths[:3]}
    found = crossings(short, (0.7, 1.5))
    (a, at_a), (b, at_b) = sorted(found.items())
    xa, xb = inverse_area(a), inverse_area(b)
    return at_b - (at_a - at_b) * xb / (xa - xb)


def in_panel_units(d: float, derivative: float, calibration: dict) -> dict:
    """Panel detuning Omega d(V1 / Omega) + offset with the calibration's covariance carried through."""
    omega, v1 = calibration["rabi_mhz"]["value"], calibration["v1_mhz"]["value"]
    gradient = np.array([d - derivative * v1 / omega, 1.0, derivative])
    covariance = np.array(calibration["covariance"])[:3, :3]
    value = omega * d + calibration["offset_mhz"]["value"]
    parts = np.abs(gradient) * np.sqrt(np.diag(covariance))
    return {
        "value": value,
        "calibration": float(np.sqrt(gradient @ covariance @ gradient)),
        "parts": dict(zip(("rabi_mhz", "offset_mhz", "v1_mhz"), map(float, parts), strict=True)),
    }


def ramp_budget(gaps: list[tuple], curves: Curves, d: float, calibration: dict) -> list[dict]:
    """What decay does to an adiabatic preparation of each length in this machine.

    The detuning is swept over 2 Omega no faster than a quarter of 2 pi gap^2. On average (L + 1) / 4 atoms are
    excited during the sweep; one near the central bond decays with probability t / (2 T1).
    """
    omega, lifetime = calibration["rabi_mhz"]["value"], calibration["lifetime_us"]["value"]
    rows = []
    for length, gap, _ in gaps:
        sweep = 2 * omega * 4 / (2 * np.pi * (gap * omega) ** 2)
        steepness = float((curves[length](d + 1e-3) - curves[length](d - 1e-3)) / 2e-3)
        rows.append(
            {
                "length": length,
                "gap_mhz": gap * omega,
                "sweep_us": float(sweep),
                "no_decay": float(np.exp(-sweep * (length + 1) / 4 / lifetime)),
                "local_loss": float(sweep / (2 * lifetime)),
                "steepness": steepness,
            }
        )
    for row, after in pairwise(rows):
        lost = np.log1p(-after["local_loss"]) - np.log1p(-row["local_loss"])
        row["crossing_shift_mhz"] = float(-omega * lost / (after["steepness"] - row["steepness"]))
    return rows


def main() -> None:
    calibration = json.loads((WORK / "calibration.json").read_text())
    omega, v1 = calibration["rabi_mhz"]["value"], calibration["v1_mhz"]["value"]
    lengths = sorted(calibration["plan"]["lengths"])
    v = v1 / omega
    guess = first_look(v, lengths)
    window, low = (guess - 0.05, guess + 0.06), (guess - 0.16, guess - 0.03)
    say(f"V1 / Omega = {v:.3f}; short chains point at Delta / Omega = {guess:.3f}")

    longer = range(lengths[-1] + 4, max(REACH.values()) + 1, 4)  # one step beyond the plan, same class modulo 4
    every = [*lengths, *longer]
    jobs = [(m, L, v, low if m == "first" else window, NODES) for m, top in REACH.items() for L in every if top >= L]
    jobs.sort(key=lambda job: -job[1] - 4 * (job[0] == "full"))
    near = (guess - 0.03, guess + 0.05)
    step = 0.02 * v
    short = [L for L in lengths if L <= COMPLETE_UP_TO]
    with ProcessPoolExecutor(2) as pool:
        curves = solve(pool, jobs, "")
        say("open chains solved: full to L = 19, second order to L = 23, first order to L = 19")
        moved = [solve(pool, [("full", L, v + s, window, NODES) for L in short], "")["full"] for s in (-step, step)]
        rings = dict(pool.map(ring_curve, [(L, 3, v, near) for L in (16, 14, 12, 10)]))
        say("closed chains solved: L = 10 to 16")
        crossing_of = {name: crossings(curves[name], low if name == "first" else window) for name in curves}
        joined, beyond_second = join(crossing_of["full"], crossing_of["second"])
        d_c, d_c_error = limit(joined)
        checks = next(iter(pool.map(numerical_checks, [(COMPLETE_UP_TO, v, d_c, curves["full"][COMPLETE_UP_TO])])))
        gaps = list(pool.map(chain_gap, [(L, v, d_c) for L in lengths if REACH["full"] >= L]))

    bulk = crossings(curves["full"], (window[0] - 0.06, window[1]), bulk_scale)
    limits = {name: limit(crossing_of[name])[0] for name in crossing_of} | {"bulk": limit(bulk)[0]}
    say("crossings " + ", ".join(f"{a}/{b}: {joined[a, b]:.4f}" for a, b in sorted(joined)))
    say(f"critical point d = {d_c:.4f} +- {d_c_error:.4f}; first order {limits['first']:.4f}")

    moved_limits = [crossings(m, window) for m in moved]
    slopes = {p: (moved_limits[1][p] - moved_limits[0][p]) / (2 * step) for p in moved_limits[0]}
    shortest, longest = min(slopes), max(slopes)
    critical = in_panel_units(d_c, slopes[longest], calibration)
    first_pair = in_panel_units(joined[shortest], slopes[shortest], calibration)
    critical["finite_size"] = omega * d_c_error
    critical["model"] = omega * 0.5 * float(np.ptp(list(beyond_second.values())))
    first_pair["finite_size"], first_pair["model"] = 0.0, 0.0
    for number in (critical, first_pair):
        number["sigma"] = float(np.sqrt(sum(number[k] ** 2 for k in ("calibration", "finite_size", "model"))))

    local = local_exponents(curves["second"], limits["second"])
    beta, beta_error = limit(local)
    nearby = limit(local_exponents(curves["second"], limits["second"] + d_c_error))[0]
    beta_sigma = float(np.hypot(beta_error, nearby - beta))
    d_star, free = unbiased(curves["second"], window)
    bulk_local = local_exponents(curves["second"], limits["second"], bulk_scale)
    say(f"beta/nu = {beta:.4f} +- {beta_sigma:.4f} at the critical point")

    ring_pairs = {(a, b): crossing(rings[a], rings[b], *near) for a, b in ((10, 14), (12, 16))}
    say("rings: " + ", ".join(f"{a}/{b}: {d:.4f}" for (a, b), d in ring_pairs.items()))

    ignored = {
        name: omega_d(other, d_c, slopes[longest], calibration) - critical["value"]
        for name, other in calibration["checks"]["ignored"].items()
    }
    result = {
        "v": v,
        "d_c": d_c,
        "d_c_error": d_c_error,
        "crossings": {name: text(found) for name, found in {**crossing_of, "joined": joined, "bulk": bulk}.items()},
        "beyond_second": text(beyond_second),
        "limits": limits,
        "critical": critical,
        "first_pair": {**first_pair, "lengths": list(shortest)},
        "derivative": slopes[longest],
        "beta_over_nu": {"value": beta, "sigma": beta_sigma, "local": text(local), "bulk_local": text(bulk_local)},
        "unbiased": {"d": text(d_star), "exponent": text(free), "limit_d": edge(d_star), "limit_exponent": edge(free)},
        "rings": text(ring_pairs),
        "numerics": checks,
        "ramp": ramp_budget(gaps, curves["full"], d_c, calibration),
        "profile": {str(length): profile for length, _, profile in gaps},
        "ignored_mhz": ignored,
        "curves": {
            model: {str(L): [list(x), [float(np.exp(c(d))) for d in x]] for L, c in family.items()}
            for model, family in curves.items()
            for x in [np.linspace(*(low if model == "first" else window), 41).tolist()]
        },
    }
    (WORK / "simulation.json").write_text(json.dumps(result))
    say(f"critical detuning on the panel {critical['value']:.4f} +- {critical['sigma']:.4f} MHz")


def text(found: Pairs) -> dict[str, float]:
    """Pairs of lengths as JSON keys."""
    return {f"{a}/{b}": value for (a, b), value in sorted(found.items())}


def edge(found: Pairs) -> float:
    """Straight line in 1 / l^2 through the two longest triples, where there are two."""
    pairs = sorted(found)[-2:]
    if len(pairs) < 2:
        return float(found[pairs[0]])
    return float(np.polyfit([inverse_area(p) for p in pairs], [found[p] for p in pairs], 1)[-1])


def omega_d(other: dict, d: float, derivative: float, calibration: dict) -> float:
    """The panel detuning that another fit of the same data would have given, to first order in V1 / Omega."""
    v = calibration["v1_mhz"]["value"] / calibration["rabi_mhz"]["value"]
    moved = d + derivative * (other["v1_mhz"] / other["rabi_mhz"] - v)
    return other["rabi_mhz"] * moved + other["offset_mhz"]


if __name__ == "__main__":
    main()
