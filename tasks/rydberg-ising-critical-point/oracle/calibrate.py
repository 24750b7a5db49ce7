"""Step 2: measure what the machine really does, with one, two and three atoms.

Order: read-out, Rabi frequency, resonance (spectroscopy, then Ramsey), lifetime, interaction; then one joint
maximum-likelihood fit of all data to the master equation, and a three-atom run that the fit must predict.
Writes work/calibration.json.
"""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import lab
import numpy as np
from atoms import Machine, Run, probabilities, residuals
from scipy.optimize import least_squares

HOME = Path.home()
WORK = HOME / "work"
CHECKS = ("wide pair", "three atoms")
PANEL_LIMIT_MHZ = 20.0  # the manual's largest detuning
STARTED = time.monotonic()
RUNS: list[Run] = []
METER = {"shots": 0, "lab_time_s": 0.0}


def say(text: str) -> None:
    print(f"[calibrate {time.monotonic() - STARTED:5.1f} s] {text}", flush=True)


def measure(purpose: str, atoms: int, spacing_um: float, pulse: list, shots: int) -> Run:
    """Operate the apparatus once and keep the counts."""
    segments = [{"duration_us": round(t, 5), "rabi_mhz": r, "detuning_mhz": round(d, 5)} for t, r, d in pulse]
    arguments = {"atoms": atoms, "pulse": segments, "shots": shots}
    if atoms > 1:
        arguments["spacing_um"] = spacing_um
    reply = lab.call("instrument", {"instrument": "apparatus", "operation": "run", "arguments": arguments})
    counts = reply["result"]["counts"]
    METER["shots"] = reply["shots_total"]
    METER["lab_time_s"] += reply["lab_time_s"]
    played = tuple((s["duration_us"], s["rabi_mhz"], s["detuning_mhz"]) for s in segments)
    run = Run(purpose, atoms, spacing_um, played, tuple(counts[k] for k in sorted(counts)))
    RUNS.append(run)
    return run


def excited(run: Run) -> float:
    return run.counts[1] / run.shots


def fit(start: Machine, free: tuple[str, ...], purposes: tuple[str, ...] | None = None):
    """Maximum likelihood over the runs of some purposes; returns the machine, its covariance and the result."""
    runs = [r for r in RUNS if (purposes is None or r.purpose in purposes) and r.purpose not in CHECKS]
    places = [Machine.NAMES.index(name) for name in free]
    scale = np.array([0.01, 0.01, 0.1, 5.0, 0.01, 0.01])[places]
    base = start.vector()

    def machine(x: np.ndarray) -> Machine:
        vector = base.copy()
        vector[places] = base[places] + x * scale
        vector[3:] = np.maximum(vector[3:], [1.0, 1e-4, 1e-4])
        return start.moved(vector)

    found = least_squares(lambda x: residuals(machine(x), runs), np.zeros(len(places)), diff_step=1e-2, x_scale=1.0)
    covariance = np.linalg.pinv(found.jac.T @ found.jac) * np.outer(scale, scale)
    independent = sum(len(r.counts) - 1 for r in runs)
    return machine(found.x), covariance, 2 * found.cost, independent - len(places)


def best_of_scan(start: Machine, name: str, values: np.ndarray, purposes: tuple[str, ...]) -> Machine:
    """Start a fit in the right valley: the value of one unknown with the largest likelihood."""
    runs = [r for r in RUNS if r.purpose in purposes]
    place = Machine.NAMES.index(name)

    def at(value: float) -> Machine:
        vector = start.vector()
        vector[place] = value
        return start.moved(vector)

    cost = [np.sum(residuals(at(value), runs) ** 2) for value in values]
    return at(values[int(np.argmin(cost))])


def main() -> None:
    sheet = json.loads((HOME / "apparatus.json").read_text())
    plan = read_plan(sheet)
    rabi, spacing = plan["rabi_mhz"], plan["spacing_um"]
    machine = Machine(1.0, 0.0, plan["v1_mhz"], 60.0, 0.02, 0.05, spacing)
    say(f"planned: panel Rabi frequency {rabi} MHz, spacing {spacing} um, nominal V1 {plan['v1_mhz']:.2f} MHz")

    dark = measure("dark", 1, spacing, [], 600)
    machine = machine.moved(np.array([*machine.vector()[:4], max(excited(dark), 1e-3), 0.05]))
    say(f"no pulse: {dark.counts[1]} of {dark.shots} shots read Rydberg")

    for detuning in np.linspace(-0.6, 0.6, 9):
        measure("spectrum", 1, spacing, [(0.5 / 0.4, 0.4, float(detuning))], 30)
    first = ("dark", "spectrum")
    machine = best_of_scan(machine, "offset_mhz", np.linspace(-0.5, 0.5, 101), first)
    machine, *_ = fit(machine, ("offset_mhz", "missed_rydberg"), first)
    say(f"spectrum: resonance near {1e3 * machine.offset_mhz:+.0f} kHz on the panel")

    for t in np.linspace(0.1, 1.3, 9):
        measure("rabi", 1, spacing, [(float(t) / rabi, rabi, machine.offset_mhz)], 80)
    machine = best_of_scan(machine, "rabi_scale", np.linspace(0.85, 1.15, 121), ("rabi",))
    machine, *_ = fit(machine, ("rabi_scale", "missed_rydberg", "false_rydberg"), ("dark", "rabi"))
    omega = machine.rabi_scale * rabi
    for cycles in (6.25, 6.5, 6.75, 7.0, 7.25):
        measure("rabi", 1, spacing, [(cycles / omega, rabi, machine.offset_mhz)], 160)
    machine, *_ = fit(machine, ("rabi_scale", "missed_rydberg", "false_rydberg"), ("dark", "rabi"))
    omega = machine.rabi_scale * rabi
    say(f"Rabi oscillation: {omega:.4f} MHz at the planned setting")

    quarter = 0.25 / omega
    for wait, shots in ((1.5, 40), (9.0, 90)):
        for phase in (-0.4, -0.25, -0.1, 0.1, 0.25, 0.4):
            probe = machine.offset_mhz + phase / wait
            pulse = [(quarter, rabi, machine.offset_mhz), (wait, 0.0, probe), (quarter, rabi, machine.offset_mhz)]
            measure("ramsey", 1, spacing, pulse, shots)
        machine = best_of_scan(machine, "offset_mhz", machine.offset_mhz + np.linspace(-0.04, 0.04, 81), ("ramsey",))
        machine, *_ = fit(machine, ("offset_mhz",), ("ramsey",))
    say(f"Ramsey: resonance at {1e3 * machine.offset_mhz:+.1f} kHz on the panel")

    half = 0.5 / omega
    for wait, shots in ((0.0, 900), (12.0, 150), (30.0, 400), (57.0, 600)):
        measure("lifetime", 1, spacing, [(half, rabi, machine.offset_mhz), (wait, 0.0, machine.offset_mhz)], shots)
    machine, *_ = fit(machine, ("lifetime_us", "missed_rydberg"), ("dark", "lifetime"))
    say(f"decay in the dark: lifetime {machine.lifetime_us:.1f} us, missed Rydberg {machine.missed_rydberg:.3f}")

    pair = 0.5 / (np.sqrt(2) * omega)
    low = 0.4
    up = 0.5 / (np.sqrt(2) * machine.rabi_scale * low)
    for factor in np.linspace(0.88, 1.12, 9):
        probe = min(machine.offset_mhz + factor * plan["v1_mhz"], PANEL_LIMIT_MHZ)
        measure("pair", 2, spacing, [(pair, rabi, machine.offset_mhz), (up, low, probe)], 40)
    machine = best_of_scan(machine, "v1_mhz", plan["v1_mhz"] * np.linspace(0.85, 1.15, 181), ("pair",))
    machine, *_ = fit(machine, ("v1_mhz",), ("pair",))
    say(f"pair resonance: V1 near {machine.v1_mhz:.2f} MHz")
    for shift in (-0.5, -0.33, -0.2, 0.2, 0.33, 0.5):
        probe = min(machine.offset_mhz + machine.v1_mhz + shift, PANEL_LIMIT_MHZ)
        measure("pair", 2, spacing, [(pair, rabi, machine.offset_mhz), (up, low, probe)], 110)

    everything = Machine.NAMES
    machine, covariance, deviance, freedom = fit(machine, everything)
    sigma = np.sqrt(np.diag(covariance))
    say(f"joint fit of {len(RUNS)} runs: deviance {deviance:.0f} for {freedom} degrees of freedom")

    wide = 1.45 * spacing
    for t in (0.35, 0.8, 1.25, 1.7):
        measure("wide pair", 2, wide, [(t / omega, rabi, machine.offset_mhz)], 100)
    for t in (0.4, 0.9, 1.6):
        measure("three atoms", 3, spacing, [(t / omega, rabi, machine.offset_mhz + omega)], 150)
    checks = {}
    for purpose in CHECKS:
        runs = [r for r in RUNS if r.purpose == purpose]
        checks[purpose] = {
            "deviance": float(np.sum(residuals(machine, runs) ** 2)),
            "freedom": sum(len(r.counts) - 1 for r in runs),
            "shots": sum(r.shots for r in runs),
        }
        c = checks[purpose]
        say(f"predicted, not fitted: {purpose}: deviance {c['deviance']:.1f} for {c['freedom']} outcomes")

    ignored = {}
    for name, place, value in (("decay", 3, 1e6), ("missed Rydberg atoms", 5, 1e-4), ("false Rydberg atoms", 4, 1e-4)):
        vector = machine.vector()
        vector[place] = value
        free = tuple(n for n in Machine.NAMES if n != Machine.NAMES[place])
        naive, _, worse, _ = fit(machine.moved(vector), free)
        ignored[name] = {
            "rabi_mhz": naive.rabi_scale * rabi,
            "offset_mhz": naive.offset_mhz,
            "v1_mhz": naive.v1_mhz,
            "deviance": float(worse),
        }
        say(f"a fit that ignores {name} has deviance {worse:.0f}")

    write(machine, covariance, sigma, deviance, freedom, checks | {"ignored": ignored}, plan)
    say(f"{METER['shots']} shots of {plan['budget_shots']} granted")


def write(machine, covariance, sigma, deviance, freedom, checks, plan) -> None:
    """Keep the numbers, the covariance of (Rabi frequency, offset, V1), and the data behind each figure."""
    rabi = plan["rabi_mhz"]
    names = ("rabi_mhz", "offset_mhz", "v1_mhz", "lifetime_us", "false_rydberg", "missed_rydberg")
    scale = np.array([rabi, 1, 1, 1, 1, 1])
    values = machine.vector() * scale
    covariance = covariance * np.outer(scale, scale)
    shots = defaultdict(int)
    for run in RUNS:
        shots[run.purpose] += run.shots
    result = {
        **{n: {"value": float(v), "sigma": float(s)} for n, v, s in zip(names, values, sigma * scale, strict=True)},
        "covariance": covariance.tolist(),
        "rabi_scale": float(machine.rabi_scale),
        "deviance": float(deviance),
        "freedom": int(freedom),
        "checks": checks,
        "shots_total": METER["shots"],
        "shots_by_purpose": dict(shots),
        "lab_time_h": METER["lab_time_s"] / 3600,
        "plan": plan,
        "runs": [
            {
                "purpose": r.purpose,
                "atoms": r.atoms,
                "spacing_um": r.spacing_um,
                "pulse": [list(s) for s in r.pulse],
                "counts": list(r.counts),
                "model": [float(p) for p in probabilities(machine, r.atoms, r.spacing_um, r.pulse)],
            }
            for r in RUNS
        ],
        "curves": curves(machine, plan),
    }
    (WORK / "calibration.json").write_text(json.dumps(result))


def curves(machine: Machine, plan: dict) -> dict:
    """Fitted curves through the data, for the figure."""
    rabi, spacing = plan["rabi_mhz"], plan["spacing_um"]
    omega, offset = machine.rabi_scale * rabi, machine.offset_mhz
    one = lambda pulse: float(probabilities(machine, 1, spacing, tuple(pulse))[1])  # noqa: E731
    times = np.linspace(0, 7.4 / omega, 500)
    phases = np.linspace(-0.5, 0.5, 61)
    quarter = 0.25 / omega
    pair, low = 0.5 / (np.sqrt(2) * omega), 0.4
    up = 0.5 / (np.sqrt(2) * machine.rabi_scale * low)
    probes = np.linspace(0.87, 1.13, 161) * plan["v1_mhz"]
    two = [probabilities(machine, 2, spacing, ((pair, rabi, offset), (up, low, offset + p)))[3] for p in probes]
    waits = np.linspace(0, 60, 61)
    return {
        "rabi": [times.tolist(), [one([(t, rabi, offset)]) for t in times]],
        "ramsey": [
            (phases / 9.0).tolist(),
            [one([(quarter, rabi, offset), (9.0, 0.0, offset + p / 9.0), (quarter, rabi, offset)]) for p in phases],
        ],
        "lifetime": [waits.tolist(), [one([(0.5 / omega, rabi, offset), (w, 0.0, offset)]) for w in waits]],
        "pair": [probes.tolist(), [float(p) for p in two]],
    }


def read_plan(sheet: dict) -> dict:
    """The planned chain from the data sheet, with the interaction that its nominal values give."""
    chain = sheet["planned_chain"]
    return {
        "rabi_mhz": chain["rabi_set_mhz"],
        "spacing_um": chain["spacing_um"],
        "lengths": chain["lengths"],
        "v1_mhz": sheet["nominal"]["c6_mhz_um6"] / chain["spacing_um"] ** 6,
        "budget_shots": sheet["grant"]["shots"],
    }


if __name__ == "__main__":
    main()
