"""What a good calibration reaches: a measurement plan through the apparatus' own physics, and its statistics.

Plan (6,100 of the 12,000 granted shots). Three atoms 40 um apart do not see each other and give three samples
a shot; two atoms at 7.5 to 9 um show the interaction. The readings are fitted together for six unknowns by maximum
likelihood. For 200 drawn machines the estimator is linearised at the truth (exact for this many shots); a few are
fitted in full from the data sheet's values, to show that the fit finds its way.

    python measurement_plan.py [machines] [full fits]

Needs numpy, scipy, and this package on the path; used to justify tolerances, not part of any grade.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np
from scipy.optimize import least_squares

FOLDER = Path(__file__).resolve().parents[1]
Setting = tuple  # (atoms, spacing_um, pulse, shots)
NAMES = ("rabi_scale", "detuning_offset_mhz", "c6_mhz_um6", "lifetime_us", "false_rydberg", "missed_rydberg")
SCALES = np.array([1e-3, 1e-3, 1e3, 1.0, 1e-3, 1e-3])  # steps of the numerical derivatives


def load(name: str):
    """Import a module of the task's folder by its file."""
    spec = importlib.util.spec_from_file_location(f"rydberg_{name}", FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


instruments, instance = load("instruments"), load("instance")


def plan(rabi: float) -> list[Setting]:
    """Return the settings at the panel value `rabi`. Every number is a panel value."""
    far, segment = 40.0, instruments.Segment
    half = 0.25 / rabi
    settings: list[Setting] = [(3, far, (), 300)]
    for time in (0.5, 1.0, 2.25, 2.5, 4.25, 4.5, 6.25, 6.5):  # resonant Rabi flops, by their phase
        settings.append((3, far, (segment(time / rabi, rabi, 0.0),), 150))
    for wait in (0.4, 0.9, 1.7, 3.0, 5.0):  # Ramsey, both quadratures
        for phase in (0.0, np.pi / 2):
            pulse = (segment(half, rabi, 0.0), segment(wait, 0.0, 0.0), segment(half, rabi, 0.0, phase))
            settings.append((3, far, pulse, 120))
    for wait in (0.0, 15.0, 30.0, 55.0):  # decay after a pi pulse
        settings.append((3, far, (segment(2 * half, rabi, 0.0), segment(wait, 0.0, 0.0)), 250))
    for spacing in (7.5, 8.5, 9.5):  # two atoms: weak and strong blockade, and the pair resonance near V / 2
        pair = instance.NOMINAL_C6_MHZ_UM6 / spacing**6
        for time in (0.8, 1.6, 2.4, 3.2):
            for detuning in (0.0, pair / 2):
                settings.append((2, spacing, (segment(time, rabi, detuning),), 100))
    return settings


def predict(theta: np.ndarray, settings: list[Setting]) -> list[np.ndarray]:
    """Return the outcome probabilities of every setting. Far atoms are propagated as one."""
    machine = instruments.Machine(**dict(zip(NAMES, map(float, theta), strict=True)))
    results = []
    for atoms, spacing, pulse, _ in settings:
        alone = spacing >= 40.0
        results.append(instruments.outcome_probabilities(machine, 1 if alone else atoms, spacing, pulse))
    return results


def samples(settings: list[Setting]) -> list[int]:
    return [shots * (atoms if spacing >= 40.0 else 1) for atoms, spacing, _, shots in settings]


def linearise(theta: np.ndarray, settings: list[Setting]) -> tuple[np.ndarray, np.ndarray]:
    """Return (derivatives, inverse variances) of all outcome probabilities, stacked."""
    centre = np.concatenate(predict(theta, settings))
    columns = []
    for index, step in enumerate(SCALES):
        shift = np.zeros(6)
        shift[index] = step
        up, down = (np.concatenate(predict(theta + sign * shift, settings)) for sign in (1, -1))
        columns.append((up - down) / 2)
    counts = np.concatenate(
        [np.full(len(p), n) for p, n in zip(predict(theta, settings), samples(settings), strict=True)]
    )
    return np.array(columns).T, counts / np.clip(centre, 1e-6, None)


def truth_of(parts) -> np.ndarray:
    hidden = parts.instruments["apparatus"]
    return np.array([hidden[name] for name in NAMES])


def draw_frequencies(theta: np.ndarray, settings: list[Setting], rng: np.random.Generator) -> np.ndarray:
    expected = predict(theta, settings)
    return np.concatenate([rng.multinomial(n, p) / n for p, n in zip(expected, samples(settings), strict=True)])


def estimate(theta: np.ndarray, settings: list[Setting], rng: np.random.Generator) -> np.ndarray:
    """Return one maximum-likelihood estimate, linearised at the truth."""
    derivatives, weights = linearise(theta, settings)
    surplus = draw_frequencies(theta, settings, rng) - np.concatenate(predict(theta, settings))
    normal = derivatives.T @ (weights[:, None] * derivatives)
    return theta + SCALES * np.linalg.solve(normal, derivatives.T @ (weights * surplus))


def fit(frequencies: np.ndarray, settings: list[Setting]) -> np.ndarray:
    """Return a full fit that starts from the data sheet: first one atom, then all readings."""
    counts = np.concatenate(
        [np.full(2 if s[1] >= 40 else 4, n) for s, n in zip(settings, samples(settings), strict=True)]
    )

    def residuals(x: np.ndarray, chosen: np.ndarray, used: list[Setting]) -> np.ndarray:
        expected = np.concatenate(predict(x * SCALES, used))
        return np.sqrt(counts[chosen] / (frequencies[chosen] + 2 / counts[chosen])) * (frequencies[chosen] - expected)

    sizes = [2 if s[1] >= 40 else 4 for s in settings]
    single = np.concatenate([np.full(n, n == 2) for n in sizes])
    bounds = (
        np.array([0.8, -0.4, 6e5, 10.0, 0.0, 0.0]) / SCALES,
        np.array([1.2, 0.4, 1.2e6, 300.0, 0.2, 0.3]) / SCALES,
    )
    best = None
    for offset in (-0.18, -0.09, 0.0, 0.09, 0.18):  # Ramsey fringes repeat: start from several offsets
        for scale in (0.94, 1.0, 1.06):
            start = np.array([scale, offset, instance.NOMINAL_C6_MHZ_UM6, 60.0, 0.02, 0.05]) / SCALES
            found = least_squares(
                residuals, start, bounds=bounds, args=(single, [s for s in settings if s[1] >= 40]), max_nfev=15
            )
            best = found if best is None or found.cost < best.cost else best
    outcomes = []
    for c6 in np.array([0.92, 1.0, 1.08]) * instance.NOMINAL_C6_MHZ_UM6:
        start = best.x.copy()
        start[2] = c6 / SCALES[2]
        outcomes.append(
            least_squares(residuals, start, bounds=bounds, args=(np.full(len(counts), True), settings), max_nfev=15)
        )
    return min(outcomes, key=lambda found: found.cost).x * SCALES


def answers(theta: np.ndarray, parts) -> dict[str, float]:
    """Return the named numbers that follow from an estimate, with the exact many-body theory."""
    chain = parts.instruments["apparatus"]["data_sheet"]["planned_chain"]
    rabi, v1 = theta[0] * chain["rabi_set_mhz"], theta[2] / chain["spacing_um"] ** 6
    critical, crossing = instance.critical_line(v1 / rabi)
    return {
        "rabi_frequency_mhz": rabi,
        "detuning_offset_mhz": theta[1],
        "interaction_v1_mhz": v1,
        "rydberg_lifetime_us": theta[3],
        "crossing_detuning_7_11_mhz": rabi * crossing + theta[1],
        "critical_detuning_mhz": rabi * critical + theta[1],
    }


def main(machines: int, full_fits: int) -> None:
    deviations: dict[str, list[float]] = {}
    passed = 0
    for seed in range(machines):
        rng = np.random.default_rng([seed, 7])
        parts = instance.make_instance(None if seed == 0 else np.random.default_rng(seed))
        settings = plan(parts.instruments["apparatus"]["data_sheet"]["planned_chain"]["rabi_set_mhz"])
        found = answers(estimate(truth_of(parts), settings, rng), parts)
        ratios = {
            name: (value - parts.references[name]["value"]) / parts.references[name]["tolerance"]
            for name, value in found.items()
        }
        passed += all(abs(ratio) <= 1 for ratio in ratios.values())
        for name, ratio in ratios.items():
            deviations.setdefault(name, []).append(ratio)
    print(f"shots: {sum(setting[3] for setting in settings)}; all within tolerance: {passed} of {machines}")
    for name, ratios in deviations.items():
        print(f"{name}: rms {np.std(ratios):.3f} tolerances, largest {np.max(np.abs(ratios)):.2f}")
    for seed in range(full_fits):
        parts = instance.make_instance(None if seed == 0 else np.random.default_rng(seed))
        settings = plan(parts.instruments["apparatus"]["data_sheet"]["planned_chain"]["rabi_set_mhz"])
        theta = fit(draw_frequencies(truth_of(parts), settings, np.random.default_rng([seed, 8])), settings)
        off = {
            name: round(float(value - parts.references[name]["value"]) / parts.references[name]["tolerance"], 2)
            for name, value in answers(theta, parts).items()
        }
        print(f"full fit of machine {seed}, in tolerances: {off}", flush=True)


if __name__ == "__main__":
    main(*(int(value) for value in (sys.argv[1:] + ["200", "3"][len(sys.argv) - 1 :])))
