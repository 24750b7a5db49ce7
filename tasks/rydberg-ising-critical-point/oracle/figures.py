"""The paper's figures, drawn from the measured counts and the computed curves."""

from __future__ import annotations

import os
from pathlib import Path

os.environ.setdefault("MPLCONFIGDIR", "/tmp/matplotlib")

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np

BLUE, RED, GREY, GREEN, GOLD = "#1d3557", "#c8553d", "#8d99ae", "#2a9d8f", "#e9a23b"
WIDE, NARROW = (6.9, 3.9), (3.35, 2.5)
plt.rcParams.update(
    {
        "font.family": "STIXGeneral", "mathtext.fontset": "stix", "font.size": 8.5, "axes.labelsize": 8.5,
        "legend.fontsize": 7.2, "legend.frameon": False, "axes.linewidth": 0.7, "lines.linewidth": 1.1,
        "xtick.direction": "in", "ytick.direction": "in", "xtick.top": True, "ytick.right": True,
        "savefig.bbox": "tight", "savefig.pad_inches": 0.03, "pdf.fonttype": 42,
    }
)  # fmt: skip


def points(axis, x, counts, outcome: int) -> None:
    """Measured fractions with binomial error bars."""
    n = np.array([sum(c) for c in counts], float)
    p = np.array([c[outcome] for c in counts]) / n
    error = np.sqrt(np.maximum(p * (1 - p), 1 / n) / n)
    axis.errorbar(x, p, error, fmt="o", ms=2.8, color=BLUE, elinewidth=0.7, zorder=3)


def calibration(data: dict, path: Path) -> None:
    """Four panels: Rabi oscillation, Ramsey fringe, decay, pair spectrum."""
    runs = {purpose: [r for r in data["runs"] if r["purpose"] == purpose] for purpose in data["shots_by_purpose"]}
    curve, offset = data["curves"], data["offset_mhz"]["value"]
    figure, axes = plt.subplots(2, 2, figsize=WIDE, layout="constrained")

    axis = axes[0, 0]
    axis.plot(*curve["rabi"], color=RED)
    points(axis, [r["pulse"][0][0] for r in runs["rabi"]], [r["counts"] for r in runs["rabi"]], 1)
    axis.set(xlabel="pulse duration (µs)", ylabel="read as Rydberg", ylim=(-0.02, 1.02))

    axis = axes[0, 1]
    long = [r for r in runs["ramsey"] if r["pulse"][1][0] > 5]
    axis.plot(1e3 * np.array(curve["ramsey"][0]), curve["ramsey"][1], color=RED)
    points(axis, [1e3 * (r["pulse"][1][2] - offset) for r in long], [r["counts"] for r in long], 1)
    axis.set(xlabel="panel detuning − fitted offset (kHz)", ylabel="read as Rydberg", ylim=(-0.02, 1.02))

    axis = axes[1, 0]
    axis.plot(*curve["lifetime"], color=RED)
    points(axis, [r["pulse"][1][0] for r in runs["lifetime"]], [r["counts"] for r in runs["lifetime"]], 1)
    axis.set(xlabel="wait after a π pulse (µs)", ylabel="read as Rydberg", ylim=(-0.02, 1.02))

    axis = axes[1, 1]
    axis.plot(*curve["pair"], color=RED)
    points(axis, [r["pulse"][1][2] - offset for r in runs["pair"]], [r["counts"] for r in runs["pair"]], 3)
    axis.axvline(data["v1_mhz"]["value"], color=GREY, lw=0.8, ls=":")
    axis.set(xlabel="detuning of the second pulse (MHz)", ylabel="both read as Rydberg")
    for axis, letter in zip(axes.flat, "abcd", strict=False):
        axis.set_title(f"({letter})", loc="left", fontsize=8.5, pad=3)
    figure.savefig(path, metadata={"CreationDate": None})  # same data, same bytes
    plt.close(figure)


def scaling(sim: dict, path: Path) -> None:
    """Three panels: rescaled curves, crossings against 1 / l^2, local exponents."""
    figure, axes = plt.subplots(1, 3, figsize=(6.9, 2.35), layout="constrained")
    axis = axes[0]
    for (length, (x, y)), color in zip(
        sorted(sim["curves"]["full"].items(), key=lambda item: int(item[0])),
        (GREY, GOLD, GREEN, BLUE, RED),
        strict=False,
    ):
        scale = np.sin(np.pi / (int(length) + 2)) ** -0.125
        axis.plot(x, scale * np.array(y), color=color, label=f"$L={length}$")
    axis.axvline(sim["d_c"], color=RED, lw=0.8, ls=":")
    axis.set(xlabel="detuning $\\Delta/\\Omega$", ylabel="$\\sin(\\pi/(L+2))^{-1/8}\\,\\sigma_\\mathrm{mid}$")
    axis.legend(loc="upper left", handlelength=1.4)

    axis = axes[1]
    for name, marker, color, label in (("joined", "o", BLUE, "full"), ("second", "s", GREEN, "second order")):
        x, y = pairs(sim["crossings"][name])
        axis.plot(x, y, marker, ms=3.2, color=color, label=label)
        fit = np.polyfit(x[-3:], y[-3:], 2)
        axis.plot(np.linspace(0, max(x), 50), np.polyval(fit, np.linspace(0, max(x), 50)), color=color, lw=0.8)
    carried = [k for k in sim["crossings"]["joined"] if k not in sim["crossings"]["full"]]
    for key in carried:
        x, y = pairs({key: sim["crossings"]["joined"][key]})
        axis.plot(x, y, "o", ms=3.2, mfc="white", color=BLUE, zorder=4)
    x, y = pairs(sim["crossings"]["bulk"])
    axis.plot(x, y, "^", ms=3.2, color=RED, label="full, $L^{1/8}$")
    axis.set(xlabel="$1/(L_1+2)(L_2+2)$", ylabel="crossing $\\Delta/\\Omega$", xlim=(-3e-4, None))
    axis.legend(loc="upper left", handlelength=1.0)
    low, high = axis.get_ylim()
    axis.set_ylim(low, high + 0.3 * (high - low))

    axis = axes[2]
    for name, marker, color, label in (
        ("local", "o", BLUE, "$\\sin(\\pi/(L+2))$"),
        ("bulk_local", "^", RED, "$1/L$"),
    ):
        x, y = pairs(sim["beta_over_nu"][name])
        axis.plot(x, y, marker, ms=3.2, color=color, label=label)
        fit = np.polyfit(x[-3:], y[-3:], 2)
        axis.plot(np.linspace(0, max(x), 50), np.polyval(fit, np.linspace(0, max(x), 50)), color=color, lw=0.8)
    axis.axhline(0.125, color=GREY, lw=0.8, ls=":")
    axis.set(xlabel="$1/(L_1+2)(L_2+2)$", ylabel="local exponent at $\\Delta_c$", xlim=(-3e-4, None))
    axis.legend(loc="upper left", handlelength=1.0)
    for axis, letter in zip(axes, "abc", strict=False):
        axis.set_title(f"({letter})", loc="left", fontsize=8.5, pad=3)
    figure.savefig(path, metadata={"CreationDate": None})  # same data, same bytes
    plt.close(figure)


def profile(sim: dict, path: Path) -> None:
    """The order parameter along the chain at the critical point, against the strip's profile."""
    figure, axis = plt.subplots(figsize=NARROW, layout="constrained")
    for (length, values), color in zip(list(sim["profile"].items())[-3:], (GOLD, GREEN, BLUE), strict=False):
        n = int(length)
        y = (np.arange(1, n) + 1) / (n + 2)
        shape = (np.sin(np.pi * y) / np.sin(np.pi / (n + 2))) ** -0.125
        axis.plot(shape, values, "o", ms=2.8, color=color, label=f"$L={n}$")
    axis.set(
        xlabel="$[\\sin(\\pi y/(L+2))\\,/\\sin(\\pi/(L+2))]^{-1/8},\\; y=b+1$",
        ylabel="$\\sigma_b$ at $\\Delta_c$",
    )
    axis.legend(loc="upper left", handlelength=0.8)
    figure.savefig(path, metadata={"CreationDate": None})  # same data, same bytes
    plt.close(figure)


def pairs(found: dict[str, float]) -> tuple[np.ndarray, np.ndarray]:
    """Turn {"7/11": value} into arrays of 1 / (L1 + 2)(L2 + 2) and values, shortest pair first."""
    keys = sorted(found, key=lambda k: int(k.split("/")[0]))
    x = [1 / np.prod([int(part) + 2 for part in k.split("/")]) for k in keys]
    return np.array(x, float), np.array([found[k] for k in keys])
