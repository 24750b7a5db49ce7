"""Step 4: write result.md and paper.pdf from what was measured, computed and read.

Every number of the paper comes from work/calibration.json and work/simulation.json, every reference from
work/literature.json. The layout is in paper.typ, whose fields `<<name>>` are filled here.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import figures
import typst

HERE, HOME = Path(__file__).parent, Path.home()
WORK = HOME / "work"


def pm(value: float, sigma: float, scale: float = 1.0) -> str:
    """A value with its uncertainty to two digits, as typst maths without dollars."""
    value, sigma = scale * value, scale * sigma
    digits = max(0, 1 - math.floor(math.log10(sigma))) if sigma > 0 else 4
    return f"{value:.{digits}f} plus.minus {sigma:.{digits}f}"


def power_of_ten(value: float) -> str:
    """A small number as typst maths, to one digit."""
    exponent = math.floor(math.log10(max(value, 1e-12)))
    return f"{value / 10.0**exponent:.0f} dot 10^({exponent})"


def bracket(pair: str) -> str:
    return pair.replace("/", "\u2013")


class Bibliography:
    """Numbers the works in the order of their first citation; only works that the search returned can be cited."""

    def __init__(self, works: dict[str, dict]) -> None:
        self.works = works
        self.order: list[str] = []

    def cite(self, match: re.Match[str]) -> str:
        keys = [key for key in match[1].split(",") if key in self.works]
        for key in keys:
            if key not in self.order:
                self.order.append(key)
        return "\u00a0[" + ", ".join(str(self.order.index(key) + 1) for key in keys) + "]" if keys else ""

    def listed(self) -> str:
        lines = []
        for key in self.order:
            work = self.works[key]
            people = work["authors"]
            names = people[0] + " et al." if len(people) > 4 else ", ".join(people)
            where = f"doi:{work['doi']}" if "doi" in work else f"arXiv:{work['arxiv']}"
            lines.append(
                f"+ {names}, #emph[{work['title'].replace('<=', '≤')}], {work['venue']} ({work['year']}), {where}"
            )
        return "\n".join(lines)


def fields(cal: dict, sim: dict) -> dict[str, str]:
    """All that the text needs, as strings."""
    plan, crit, pair = cal["plan"], sim["critical"], sim["first_pair"]
    omega = cal["rabi_mhz"]["value"]
    value = lambda name: cal[name]["value"]  # noqa: E731
    sigma = lambda name: cal[name]["sigma"]  # noqa: E731
    beta, free, rings, ramp = sim["beta_over_nu"], sim["unbiased"], sim["rings"], sim["ramp"]
    (r1, d1), (r2, d2) = sorted(rings.items(), key=lambda item: int(item[0].split("/")[0]))
    panel = lambda d: omega * d + value("offset_mhz")  # noqa: E731
    read_loss = value("false_rydberg") + value("missed_rydberg")
    checks = cal["checks"]
    khz = lambda x: f"{1e3 * x:+.1f}".replace("-", "\u2212")  # noqa: E731
    full = sim["crossings"]["full"]
    long_pair = list(full)[-1]
    return {
        "nominal_rabi": f"{plan['rabi_mhz']:.2f}",
        "spacing": f"{plan['spacing_um']:.2f}",
        "nominal_v1": f"{plan['v1_mhz']:.2f}",
        "rabi": pm(value("rabi_mhz"), sigma("rabi_mhz")),
        "offset": pm(value("offset_mhz"), sigma("offset_mhz")),
        "offset_khz": f"{1e3 * value('offset_mhz'):.1f}".replace("-", "\u2212"),
        "v1": pm(value("v1_mhz"), sigma("v1_mhz")),
        "lifetime": pm(value("lifetime_us"), sigma("lifetime_us")),
        "false": pm(value("false_rydberg"), sigma("false_rydberg")),
        "missed": pm(value("missed_rydberg"), sigma("missed_rydberg")),
        "ratio": f"{sim['v']:.2f}",
        "small": f"{1 / (4 * sim['v']):.3f}",
        "deviance": f"{cal['deviance']:.0f}",
        "freedom": str(cal["freedom"]),
        "wide_deviance": f"{checks['wide pair']['deviance']:.0f}",
        "wide_freedom": str(checks["wide pair"]["freedom"]),
        "three_deviance": f"{checks['three atoms']['deviance']:.0f}",
        "three_freedom": str(checks["three atoms"]["freedom"]),
        "shots": f"{cal['shots_total']}",
        "granted": f"{plan['budget_shots']}",
        "percent": f"{100 * cal['shots_total'] / plan['budget_shots']:.0f}",
        "hours": f"{cal['lab_time_h']:.1f}",
        "critical": pm(crit["value"], crit["sigma"]),
        "critical_true": pm(omega * sim["d_c"], crit["sigma"]),
        "d_c": pm(sim["d_c"], sim["d_c_error"]),
        "pair_value": pm(pair["value"], pair["sigma"]),
        "pair_lengths": f"{pair['lengths'][0]} and {pair['lengths'][1]}",
        "beta": pm(beta["value"], beta["sigma"]),
        "beta_pull": f"{abs(beta['value'] - 0.125) / beta['sigma']:.1f}",
        "free_beta": f"{free['limit_exponent']:.3f}",
        "free_d": f"{free['limit_d']:.3f}",
        "free_panel": f"{panel(free['limit_d']):.3f}",
        "ring_short": bracket(r1), "ring_long": bracket(r2),
        "ring_d_short": f"{d1:.4f}", "ring_d": f"{d2:.4f}", "ring_panel": f"{panel(d2):.4f}",
        "ring_difference": khz(panel(d2) - crit["value"]),
        "first_miss": f"{1e3 * omega * (sim['d_c'] - sim['limits']['first']):.0f}",
        "second_miss": khz(omega * (sim["limits"]["second"] - sim["d_c"])),
        "bulk_pair": f"{1e3 * omega * (full[pair_key(pair)] - sim['crossings']['bulk'][pair_key(pair)]):.0f}",
        "part_rabi": f"{1e3 * crit['parts']['rabi_mhz']:.2f}",
        "part_offset": f"{1e3 * crit['parts']['offset_mhz']:.2f}",
        "part_v1": f"{1e3 * crit['parts']['v1_mhz']:.2f}",
        "part_calibration": f"{1e3 * crit['calibration']:.2f}",
        "part_size": f"{1e3 * crit['finite_size']:.2f}",
        "part_model": f"{1e3 * crit['model']:.2f}",
        "part_total": f"{1e3 * crit['sigma']:.2f}",
        "ignore_decay": khz(sim["ignored_mhz"]["decay"]),
        "ignore_missed": khz(sim["ignored_mhz"]["missed Rydberg atoms"]),
        "ignore_false": khz(sim["ignored_mhz"]["false Rydberg atoms"]),
        "worse_decay": f"{checks['ignored']['decay']['deviance']:.0f}",
        "worse_missed": f"{checks['ignored']['missed Rydberg atoms']['deviance']:.0f}",
        "worse_false": f"{checks['ignored']['false Rydberg atoms']['deviance']:.0f}",
        "read_loss": f"{read_loss:.3f}", "read_loss_percent": f"{100 * read_loss:.0f}",
        "uncalibrated": f"{1e3 * (crit['value'] - naive_panel(sim, plan)):+.0f}".replace("-", "\u2212"),
        "long_pair": bracket(long_pair),
        "beyond": khz(omega * sim["beyond_second"][long_pair]),
        "ramp_short_len": str(ramp[0]["length"]), "ramp_long_len": str(ramp[-1]["length"]),
        "ramp_short_us": f"{ramp[0]['sweep_us']:.1f}", "ramp_long_us": f"{ramp[-1]['sweep_us']:.0f}",
        "ramp_short_ok": f"{ramp[0]['no_decay']:.2f}", "ramp_long_ok": f"{ramp[-1]['no_decay']:.2f}",
        "ramp_shift": f"{1e3 * ramp[0]['crossing_shift_mhz']:.0f}",
        "numerics_length": str(sim["numerics"]["length"]),
        "truncation": power_of_ten(sim["numerics"]["truncation"]),
        "interpolation": power_of_ten(sim["numerics"]["interpolation"]),
        "local_rows": rows_of_crossings(sim, panel),
        "ramp_rows": rows_of_ramp(ramp),
        "shot_rows": rows_of_shots(cal),
        "free_values": ", ".join(f"{e:.3f}" for e in free["exponent"].values()),
    }  # fmt: skip


def pair_key(pair: dict) -> str:
    return f"{pair['lengths'][0]}/{pair['lengths'][1]}"


def naive_panel(sim: dict, plan: dict) -> float:
    """The panel detuning somebody would set who believed the data sheet, to first order in V1 / Omega."""
    nominal = plan["v1_mhz"] / plan["rabi_mhz"]
    return plan["rabi_mhz"] * (sim["d_c"] + sim["derivative"] * (nominal - sim["v"]))


def rows_of_crossings(sim: dict, panel) -> str:
    rows = []
    for pair in sorted(sim["crossings"]["joined"], key=lambda k: int(k.split("/")[0])):
        cells = [bracket(pair)]
        for name in ("first", "second", "full", "bulk"):
            d = sim["crossings"][name].get(pair)
            if d is None and name == "full":
                cells.append(f"{sim['crossings']['joined'][pair]:.4f}#super[\\*]")
            else:
                cells.append("\u2014" if d is None else f"{d:.4f}")
        rows.append(", ".join(f"[{cell}]" for cell in cells) + ",")
    limits = [
        f"{sim['limits'][n]:.4f}" if n != "full" else f"*{sim['d_c']:.4f}*" for n in ("first", "second", "full", "bulk")
    ]
    rows.append("table.hline(stroke: 0.4pt), [$infinity$], " + ", ".join(f"[{cell}]" for cell in limits) + ",")
    return "\n".join(rows)


def rows_of_ramp(ramp: list[dict]) -> str:
    cells = (
        (
            r["length"],
            f"{r['gap_mhz']:.2f}",
            f"{r['sweep_us']:.1f}",
            f"{r['no_decay']:.2f}",
            f"{100 * r['local_loss']:.0f}",
        )
        for r in ramp
    )
    return "\n".join(", ".join(f"[{cell}]" for cell in row) + "," for row in cells)


def rows_of_shots(cal: dict) -> str:
    labels = {
        "dark": "no pulse", "spectrum": "coarse spectrum", "rabi": "Rabi oscillation", "ramsey": "Ramsey fringes",
        "lifetime": "π pulse and wait", "pair": "pair spectrum", "wide pair": "pair at wider spacing (check)",
        "three atoms": "three atoms (check)",
    }  # fmt: skip
    return ", ".join(f"{labels[name]} {shots}" for name, shots in cal["shots_by_purpose"].items())


RESULTS = (
    ("rabi_frequency_mhz", "rabi_mhz", "true Rabi frequency at the planned panel setting"),
    ("detuning_offset_mhz", "offset_mhz", "panel detuning at which a single atom is resonant"),
    ("interaction_v1_mhz", "v1_mhz", "nearest-neighbour interaction at the planned spacing"),
    ("rydberg_lifetime_us", "lifetime_us", "1/e lifetime of the Rydberg state"),
)


def result_lines(cal: dict, sim: dict) -> str:
    lines = ["# Results", "", "Detunings are panel values; uncertainties are one standard deviation.", ""]
    rows = [(name, cal[key]["value"], cal[key]["sigma"], note) for name, key, note in RESULTS]
    pair, crit, beta = sim["first_pair"], sim["critical"], sim["beta_over_nu"]
    rows.append(
        (
            "crossing_detuning_7_11_mhz",
            pair["value"],
            pair["sigma"],
            "rescaled order parameters of 7 and 11 atoms cross",
        )
    )
    rows.append(("critical_detuning_mhz", crit["value"], crit["sigma"], "infinite chain"))
    rows.append(("beta_over_nu", beta["value"], beta["sigma"], "from open chains at the critical point"))
    for name, value, sigma, note in rows:
        digits = 2 if name.endswith("_us") else 4
        lines.append(f"{name}: {value:.{digits}f} +/- {sigma:.{digits}f} ({note})")
    lines += ["", f"Shots used: {cal['shots_total']} of {cal['plan']['budget_shots']} granted."]
    return "\n".join(lines) + "\n"


def main() -> None:
    cal = json.loads((WORK / "calibration.json").read_text())
    sim = json.loads((WORK / "simulation.json").read_text())
    works = json.loads((WORK / "literature.json").read_text())
    (HOME / "result.md").write_text(result_lines(cal, sim))
    print((HOME / "result.md").read_text(), flush=True)
    figures.calibration(cal, WORK / "calibration.pdf")
    figures.scaling(sim, WORK / "scaling.pdf")
    figures.profile(sim, WORK / "profile.pdf")
    source = (HERE / "paper.typ").read_text()
    filled = fields(cal, sim)
    missing = sorted(set(re.findall(r"<<(\w+)>>", source)) - set(filled) - {"references"})
    if missing:
        raise SystemExit(f"paper.typ names fields that nothing fills: {missing}")
    source = re.sub(r"<<(\w+)>>", lambda m: filled.get(m[1], m[0]), source)
    bibliography = Bibliography(works)
    source = re.sub(r"\s?#cite\[([\w,]+)\]", bibliography.cite, source)
    source = source.replace("<<references>>", bibliography.listed())
    (WORK / "paper.typ").write_text(source)
    typst.compile(str(WORK / "paper.typ"), output=str(HOME / "paper.pdf"))
    print(f"paper.pdf written, {len(bibliography.order)} works cited", flush=True)


if __name__ == "__main__":
    main()
