"""The physics of rydberg-ising-critical-point: references, apparatus, instances, and the parser of its verifier.

The exact diagonalisation here is written anew and imports nothing of the task's `reference/`.
"""

from __future__ import annotations

import importlib.util
import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sparse
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse.linalg import eigsh

from fpenv.instruments.instrument import Refusal

TASK = Path(__file__).resolve().parents[2] / "tasks" / "rydberg-ising-critical-point"


def load(path: str):
    spec = importlib.util.spec_from_file_location("rydberg_physics_" + Path(path).stem, TASK / path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


instance = load("instance.py")
instruments = load("instruments.py")
verifier = load("verifier/test_outputs.py")

CLEAN = instruments.Machine(
    rabi_scale=1.0,
    detuning_offset_mhz=0.0,
    c6_mhz_um6=862_690.0,
    lifetime_us=1e9,
    false_rydberg=0.0,
    missed_rydberg=0.0,
)


# ---- the reference against exact diagonalisation -------------------------------------------------------------------


class Lattice:
    """An open chain or a ring of the full model; bit i = site i; units of the Rabi frequency."""

    def __init__(self, length: int, v1: float, *, ring: bool = False) -> None:
        self.occupied = (np.arange(2**length)[:, None] >> np.arange(length)) & 1
        self.excitations = self.occupied.sum(axis=1).astype(float)
        energies = np.zeros(2**length)
        for i in range(length):
            for j in range(i + 1, length):
                distance = min(j - i, length - j + i) if ring else j - i
                energies += v1 / distance**6 * (self.occupied[:, i] & self.occupied[:, j])
        half_x = sparse.csr_matrix(np.array([[0.0, 0.5], [0.5, 0.0]]))
        self.matrix = sparse.diags(energies).tocsr()
        for i in range(length):
            after = sparse.kron(half_x, sparse.identity(2**i), format="csr")
            self.matrix = self.matrix + sparse.kron(sparse.identity(2 ** (length - 1 - i)), after, format="csr")
        self.guess = np.random.default_rng(0).normal(size=2**length)  # overlaps every momentum

    def solve(self, delta: float, levels: int = 1):
        matrix = (self.matrix - delta * sparse.diags(self.excitations)).tocsr()
        values, vectors = eigsh(matrix, k=levels, which="SA", v0=self.guess, tol=1e-9)
        order = np.argsort(values)
        self.guess = vectors[:, order[0]]
        return values[order]

    def sigma_mid(self, delta: float) -> float:
        self.solve(delta)
        density, middle = self.guess**2 @ self.occupied, self.occupied.shape[1] // 2
        return abs(density[middle] - density[middle + 1])


def crossing(difference, low: float, high: float) -> float:
    """Secant root of a function that is nearly straight between `low` and `high`."""
    (x0, y0), (x1, y1) = (low, difference(low)), (high, difference(high))
    for _ in range(2):
        x0, y0, x1 = x1, y1, x1 - y1 * (x1 - x0) / (y1 - y0)
        y1 = difference(x1)
    return x1 - y1 * (x1 - x0) / (y1 - y0)


def scaled(length: int) -> float:
    return math.sin(math.pi / (length + 2)) ** -0.125


@pytest.fixture(scope="module")
def canonical():
    return instance.make_instance(None)


def true_parameters(canonical) -> tuple[float, float, float]:
    values = {name: reference["value"] for name, reference in canonical.references.items()}
    return values["rabi_frequency_mhz"], values["interaction_v1_mhz"], values["detuning_offset_mhz"]


def test_crossing_of_seven_and_eleven_atoms_lies_between_the_two_forms_of_exact_diagonalisation(canonical):
    rabi, v1, offset = true_parameters(canonical)
    seven, eleven = Lattice(7, v1 / rabi), Lattice(11, v1 / rabi)
    found = {}
    for name, scale in (("sine", scaled), ("strip", lambda n: (n + 2) ** 0.125), ("bulk", lambda n: n**0.125)):

        def difference(delta, scale=scale):
            return scale(7) * seven.sigma_mid(delta) - scale(11) * eleven.sigma_mid(delta)

        found[name] = rabi * crossing(difference, 1.14, 1.17) + offset
    reference = canonical.references["crossing_detuning_7_11_mhz"]
    assert (found["sine"] + found["strip"]) / 2 == pytest.approx(reference["value"], abs=2e-4)
    assert abs(found["sine"] - reference["value"]) < 0.3 * reference["tolerance"]
    assert abs(found["bulk"] - reference["value"]) > 3 * reference["tolerance"]


def test_open_chains_extrapolate_to_the_reference(canonical):
    rabi, v1, offset = true_parameters(canonical)
    values = []
    for small, large, guess in ((5, 9, 1.18), (9, 13, 1.153), (13, 17, 1.146)):
        pair, ends = (Lattice(small, v1 / rabi), Lattice(large, v1 / rabi)), []
        for delta in (guess - 0.004, guess + 0.004):
            one, two = (chain.sigma_mid(delta) for chain in pair)
            ends.append(scaled(small) * one - scaled(large) * two)
        values.append(guess - 0.004 - ends[0] * 0.008 / (ends[1] - ends[0]))
    sizes = np.sqrt([7 * 11, 11 * 15, 15 * 19])
    powers = np.linspace(1.5, 5, 3501)
    steps = (sizes[0] ** -powers - sizes[1] ** -powers) / (sizes[1] ** -powers - sizes[2] ** -powers)
    power = powers[np.argmin(np.abs(steps - (values[0] - values[1]) / (values[1] - values[2])))]
    gain = sizes[2] ** -power / (sizes[1] ** -power - sizes[2] ** -power)
    limit = values[2] - (values[1] - values[2]) * gain
    assert rabi * limit + offset == pytest.approx(canonical.references["critical_detuning_mhz"]["value"], abs=0.003)


def test_gaps_of_rings_cross_at_the_reference(canonical):
    rabi, v1, offset = true_parameters(canonical)

    rings, ends = (Lattice(12, v1 / rabi, ring=True), Lattice(16, v1 / rabi, ring=True)), []
    low, high = 1.134, 1.142
    for delta in (low, high):
        one, two = (ring.solve(delta, levels=2) for ring in rings)
        ends.append(12 * (one[1] - one[0]) - 16 * (two[1] - two[0]))
    found = low - ends[0] * (high - low) / (ends[1] - ends[0])
    assert rabi * found + offset == pytest.approx(canonical.references["critical_detuning_mhz"]["value"], abs=0.0015)


def test_table_agrees_with_the_long_chains_that_made_it():
    sys.path.insert(0, str(TASK / "reference"))
    try:
        import critical_line
    finally:
        sys.path.pop(0)
    computed = {
        ratio: critical_line.extrapolate(*critical_line.pair_crossings(chains))[0]
        for ratio, chains in critical_line.read_rows().items()
    }
    assert {row[0] for row in instance.CRITICAL_LINE} == set(computed)
    for ratio, critical, _ in instance.CRITICAL_LINE:
        assert critical == pytest.approx(computed[ratio], abs=2e-6)


@pytest.mark.parametrize("column", [1, 2])
def test_interpolation_reproduces_withheld_nodes(column):
    table = np.array(instance.CRITICAL_LINE)
    for index in range(1, len(table) - 1):
        kept = np.delete(table, index, axis=0)
        weights = [np.prod([(table[index, 0] - b) / (a - b) for b in kept[:, 0] if b != a]) for a in kept[:, 0]]
        assert np.dot(weights, kept[:, column]) == pytest.approx(table[index, column], abs=1e-4)


def test_ratios_outside_the_table_are_refused():
    with pytest.raises(ValueError, match=r"expected a ratio from 10\.0 to 18\.0, got 9\.9"):
        instance.critical_line(9.9)


# ---- the apparatus against formulas --------------------------------------------------------------------------------


def populations(atoms, spacing_um, *segments, machine=CLEAN):
    return instruments.outcome_probabilities(
        machine, atoms, spacing_um, tuple(instruments.Segment(*values) for values in segments)
    )


@pytest.mark.parametrize(("rabi", "detuning", "time"), [(1.2, 0.0, 0.3), (0.7, 0.9, 2.1), (2.5, -3.0, 5.0)])
def test_one_atom_follows_the_rabi_formula(rabi, detuning, time):
    general = math.hypot(rabi, detuning)
    expected = (rabi / general) ** 2 * math.sin(math.pi * general * time) ** 2
    assert populations(1, 10.0, (time, rabi, detuning))[1] == pytest.approx(expected, abs=1e-9)


def test_offset_and_scale_act_as_the_hamiltonian_says():
    machine = instruments.Machine(0.9, 0.15, 862_690.0, 1e9, 0.0, 0.0)
    shifted = populations(1, 10.0, (0.7, 1.0, 0.45), machine=machine)
    assert shifted == pytest.approx(populations(1, 10.0, (0.7, 0.9, 0.30)), abs=1e-10)


def test_ramsey_fringe_has_the_detuning_as_its_frequency():
    fast, wait, offset = 2.5, 3.0, 0.11
    machine = instruments.Machine(1.0, offset, 862_690.0, 1e9, 0.0, 0.0)
    half = 0.25 / fast
    # On resonance during the pulses, at panel value 0 (off by -offset) while the laser is off.
    for phase in (0.0, 1.0, 2.5):
        excited = populations(
            1, 10.0, (half, fast, offset), (wait, 0.0, 0.0), (half, fast, offset, phase), machine=machine
        )[1]
        fringe = [0.5 * (1 + math.cos(2 * math.pi * offset * wait + sign * phase)) for sign in (1, -1)]
        assert min(abs(excited - value) for value in fringe) < 1e-6


def test_blockaded_pair_oscillates_root_two_faster_and_never_doubly():
    time = 0.5 / (math.sqrt(2) * 0.2)
    table = populations(2, 4.0, (time, 0.2, 0.0))
    assert table[1] + table[2] == pytest.approx(1.0, abs=1e-3)
    assert table[3] < 1e-4


def test_distant_atoms_are_independent():
    alone = populations(1, 40.0, (0.31, 1.1, 0.2))
    assert populations(2, 40.0, (0.31, 1.1, 0.2)) == pytest.approx(np.kron(alone, alone), abs=1e-3)


def test_three_atoms_agree_with_a_plain_schroedinger_integration():
    rabi, detuning, v1, time = 1.0, 0.4, 862_690.0 / 7.5**6, 0.9
    bits = np.array([[(s >> (2 - k)) & 1 for k in range(3)] for s in range(8)])
    diagonal = -detuning * bits.sum(axis=1) + v1 * (
        bits[:, 0] * bits[:, 1] + bits[:, 1] * bits[:, 2] + bits[:, 0] * bits[:, 2] / 64
    )
    flips = np.array([[0.5 * rabi * (bin(a ^ b).count("1") == 1) for a in range(8)] for b in range(8)])
    levels, vectors = np.linalg.eigh(np.diag(diagonal) + flips)
    state = vectors @ (np.exp(-2j * math.pi * levels * time) * vectors[0])
    assert populations(3, 7.5, (time, rabi, detuning)) == pytest.approx(abs(state) ** 2, abs=1e-8)


def test_excitation_decays_with_the_lifetime():
    machine = instruments.Machine(1.0, 0.0, 862_690.0, 40.0, 0.0, 0.0)
    start = populations(1, 10.0, (0.2, 2.5, 0.0), machine=machine)[1]
    later = populations(1, 10.0, (0.2, 2.5, 0.0), (30.0, 0.0, 0.0), machine=machine)[1]
    assert later / start == pytest.approx(math.exp(-30.0 / 40.0), rel=1e-9)


def test_read_out_errs_in_both_directions():
    machine = instruments.Machine(1.0, 0.0, 862_690.0, 1e9, 0.02, 0.06)
    assert populations(1, 10.0, machine=machine)[1] == pytest.approx(0.02)
    assert populations(1, 10.0, (0.2, 2.5, 0.0), machine=machine)[0] == pytest.approx(0.06, abs=1e-6)
    assert populations(2, 40.0, machine=machine)[3] == pytest.approx(0.0004)


# ---- operating it --------------------------------------------------------------------------------------------------

GOOD = {
    "atoms": 2,
    "spacing_um": 8.0,
    "pulse": [{"duration_us": 0.4, "rabi_mhz": 1.2, "detuning_mhz": 0.1}],
    "shots": 100,
}


@pytest.fixture
def apparatus(canonical):
    (device,) = instruments.build(canonical.instruments)
    return device


def test_a_run_returns_counts_that_add_up_and_its_price(apparatus):
    reading = apparatus.call("run", GOOD, np.random.default_rng(1))
    assert list(reading.result["counts"]) == ["00", "01", "10", "11"]
    assert sum(reading.result["counts"].values()) == reading.shots == 100
    assert reading.lab_time_s == pytest.approx(45.0)
    json.dumps(reading.result, allow_nan=False)


def test_the_same_generator_gives_the_same_counts(apparatus):
    first, second = (apparatus.call("run", GOOD, np.random.default_rng(5)) for _ in range(2))
    assert first == second


def test_status_is_free_and_tells_only_the_data_sheet(apparatus, canonical):
    reading = apparatus.call("status", {}, np.random.default_rng(0))
    assert reading.shots == 0
    assert reading.lab_time_s == 0.0
    assert reading.result == json.loads(canonical.inputs["apparatus.json"])


def test_manual_and_data_sheet_hold_no_hidden_value(apparatus, canonical):
    text = apparatus.describe() + canonical.inputs["apparatus.json"].decode()
    hidden = canonical.instruments["apparatus"]
    for name in ("rabi_scale", "detuning_offset_mhz", "c6_mhz_um6", "lifetime_us", "false_rydberg", "missed_rydberg"):
        assert f"{hidden[name]:.6g}" not in text, name


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"atoms": 4}, "atoms: expected an integer from 1 to 3, got 4"),
        ({"atoms": True}, "atoms: expected an integer from 1 to 3, got bool"),
        ({"atoms": 2.0}, "atoms: expected an integer from 1 to 3, got float"),
        ({"shots": 0}, "shots: expected an integer from 1 to 2000, got 0"),
        ({"shots": 10**5000}, "shots: expected an integer from 1 to 2000, got a larger one"),
        ({"spacing_um": math.nan}, "spacing_um: expected a number from 4 to 40, got nan"),
        ({"spacing_um": "8"}, "spacing_um: expected a number from 4 to 40, got str"),
        ({"spacing_um": 10**400}, "spacing_um: expected a number from 4 to 40, got"),
        ({"pulse": "short"}, "pulse: expected a list of segments, got str"),
        ({"pulse": [{}] * 13}, "pulse: expected at most 12 segments, got 13"),
        ({"pulse": [3]}, r"pulse\[0\]: expected an object, got int"),
        ({"pulse": [{"duration_us": 1.0}]}, "missing rabi_mhz, detuning_mhz"),
        ({"pulse": [{**GOOD["pulse"][0], "rabi_mhz": -1}]}, r"rabi_mhz: expected a number from 0 to 2.5, got -1"),
        ({"pulse": [{**GOOD["pulse"][0], "detuning_mhz": math.inf}]}, "detuning_mhz: expected a number"),
        ({"pulse": [{**GOOD["pulse"][0], "duration_us": 31.0}] * 2}, "expected at most 60.0 us in all, got 62"),
        ({"pulse": [{**GOOD["pulse"][0], "colour": 1}]}, "got 'colour' as well"),
        ({"seed": 1}, "got 'seed' as well"),
    ],
)
def test_a_bad_argument_is_refused_with_what_was_expected(apparatus, change, message):
    with pytest.raises(Refusal, match=message):
        apparatus.call("run", {**GOOD, **change}, np.random.default_rng(0))


def test_an_unknown_operation_and_a_missing_spacing_are_refused(apparatus):
    rng = np.random.default_rng(0)
    with pytest.raises(Refusal, match="operation: expected 'status' or 'run', got 'reset'"):
        apparatus.call("reset", {}, rng)
    without = {key: value for key, value in GOOD.items() if key != "spacing_um"}
    with pytest.raises(Refusal, match="spacing_um: expected a number for 2 atoms, got nothing"):
        apparatus.call("run", without, rng)


# ---- instances -----------------------------------------------------------------------------------------------------


def machines(count):
    return [instance.make_instance(np.random.default_rng(seed)) for seed in range(count)]


def test_the_same_seed_gives_the_same_bytes():
    for seed in (None, 0, 1, 77):
        first, second = (
            instance.make_instance(None if seed is None else np.random.default_rng(seed)) for _ in range(2)
        )
        assert first.inputs == second.inputs
        assert json.dumps(first.references) == json.dumps(second.references)
        assert json.dumps(first.instruments) == json.dumps(second.instruments)


def test_the_canonical_answer_fails_on_every_other_instance(canonical):
    for other in machines(200):
        gap = abs(
            canonical.references["critical_detuning_mhz"]["value"] - other.references["critical_detuning_mhz"]["value"]
        )
        assert gap > 2.5 * other.references["critical_detuning_mhz"]["tolerance"]


def test_trusting_the_panel_fails_on_every_instance(canonical):
    for parts in [canonical, *machines(200)]:
        chain = json.loads(parts.inputs["apparatus.json"])["planned_chain"]
        nominal = {
            "rabi_frequency_mhz": chain["rabi_set_mhz"],
            "detuning_offset_mhz": 0.0,
            "interaction_v1_mhz": 862_690.0 / chain["spacing_um"] ** 6,
        }
        for name, value in nominal.items():
            reference = parts.references[name]
            assert abs(value - reference["value"]) > 1.4 * reference["tolerance"], name


def test_an_instance_is_made_in_milliseconds():
    code = (
        "import sys, time; sys.path.insert(0, sys.argv[1]); import numpy, fpenv.instance, instance;"
        "t = time.process_time(); [instance.make_instance(numpy.random.default_rng(s)) for s in range(20)];"
        "print((time.process_time() - t) / 20); assert 'scipy' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code, str(TASK)], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 0.02


def test_stored_references_are_those_of_the_canonical_instance(canonical):
    stored = json.loads((TASK / "verifier" / "references.json").read_text())
    assert stored == canonical.references


# ---- the parser of result.md ---------------------------------------------------------------------------------------

NAMES = ("critical_detuning_mhz", "beta_over_nu", "rydberg_lifetime_us")


@pytest.mark.parametrize(
    "line",
    [
        "critical_detuning_mhz: 1.42",
        "critical_detuning_mhz = 1.42",
        "- critical_detuning_mhz: 1.42 MHz",
        "* **critical_detuning_mhz**: `1.42`",
        "- **critical_detuning_mhz:** 1.42",
        "3. `critical_detuning_mhz` = +1.42e0",
        "| critical_detuning_mhz | 1.42 | 0.003 | MHz |",
        "| `critical_detuning_mhz` | **1.42 MHz** |",
        "critical_detuning_mhz: 1.42 +/- 0.003 MHz",
        "critical_detuning_mhz: 1.42 MHz ± 0.003 MHz",
        "critical_detuning_mhz: 1.42 (panel value)",
    ],
)
def test_a_value_is_read_in_the_layouts_that_people_write(line):
    text = f"# Results\n\nSome prose: with colons.\n{line}\n"
    assert verifier.parse_results(text, NAMES) == {"critical_detuning_mhz": 1.42}


def test_a_typeset_minus_is_a_minus():
    text = "critical_detuning_mhz: \N{MINUS SIGN}0.5"
    assert verifier.parse_results(text, NAMES) == {"critical_detuning_mhz": -0.5}


@pytest.mark.parametrize(
    "value",
    [
        "1,42", "1_000", "nan", "inf", "-Infinity", "1.4 or 1.5", "1.4 1.5", "1.4-1.5", "1.4, 1.5", "1.4/1.5", "0x1p3",
        "１.42", "1.٤2", "1e999", "--1.4", "1.4 GHz", "about 1.42", "", "1.42 MHz MHz MHz", "[1.42]", "1.4\u200b2",
        "1.42 (or) (1.5)", "\N{EN DASH}1.42", "1.42 \u00b1 0.1 \u00b1 0.2", "9" * 5000,
    ],
)  # fmt: skip
def test_a_value_that_is_not_one_plain_number_is_refused(value):
    with pytest.raises(verifier.Malformed, match=r"expected one decimal number|expected at most 1000 characters"):
        verifier.parse_results(f"critical_detuning_mhz: {value}", NAMES)


def test_a_name_given_twice_is_refused():
    with pytest.raises(verifier.Malformed, match="line 3: beta_over_nu is given twice"):
        verifier.parse_results("beta_over_nu: 0.12\n\n| beta_over_nu | 0.13 |", NAMES)


def test_a_look_alike_name_is_refused():
    with pytest.raises(verifier.Malformed, match="expected the name beta_over_nu, got a look-alike"):
        verifier.parse_results("ｂeta_over_nu: 0.125", NAMES)


@given(st.decimals(min_value=-(10**6), max_value=10**6, places=9))
def test_every_decimal_number_is_read_back(value):
    assert verifier.parse_results(f"beta_over_nu: {value:f}", NAMES) == {"beta_over_nu": float(value)}


@settings(max_examples=300)
@given(st.text(alphabet=st.sampled_from("0123456789.,_+-eE xX٣３±−–|*`()\u200b\u00a0naif/"), max_size=24))
def test_hostile_literals_are_refused_or_are_one_ascii_number(literal):
    try:
        values = verifier.parse_results(f"beta_over_nu: {literal}", NAMES)
    except verifier.Malformed:
        return
    head = literal.replace("\N{MINUS SIGN}", "-").strip("*` ,;\u00a0")
    assert math.isfinite(values["beta_over_nu"])
    assert head[:1] in "+-.0123456789`*"
    assert "_" not in literal.split("(")[0]


@settings(max_examples=300)
@given(st.text(max_size=200))
def test_any_text_is_read_or_refused_without_another_error(text):
    try:
        values = verifier.parse_results(text, NAMES)
    except verifier.Malformed:
        return
    assert all(math.isfinite(value) for value in values.values())


# ---- the verifier as it runs ---------------------------------------------------------------------------------------


def grade(tmp_path: Path, canonical, **changes: str) -> tuple[str, str]:
    """Run verifier/test.sh over deliverables; return (reward, output)."""
    root, logs = tmp_path / "root", tmp_path / "logs"
    root.mkdir()
    values = {name: f"{reference['value']:.5f}" for name, reference in canonical.references.items()} | changes
    (root / "result.md").write_text("".join(f"{name}: {value}\n" for name, value in values.items() if value))
    (root / "paper.pdf").write_bytes(b"%PDF-1.7\n%%EOF\n")
    done = subprocess.run(
        ["/bin/bash", str(TASK / "verifier" / "test.sh")],
        env={
            "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
            "DELIVERABLES": str(root),
            "VERIFIER_LOGS": str(logs),
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode == 0) == ((logs / "reward.txt").read_text().strip() == "1")
    return (logs / "reward.txt").read_text().strip(), done.stdout


def test_right_numbers_are_rewarded(tmp_path, canonical):
    assert grade(tmp_path, canonical)[0] == "1"


def test_a_wrong_number_fails_its_own_test_and_the_reference_is_not_told(tmp_path, canonical):
    reward, output = grade(tmp_path, canonical, critical_detuning_mhz="1.30")
    assert reward == "0"
    assert "critical_detuning_mhz: outside tolerance" in output
    assert output.count("PASSED") == len(canonical.references)
    assert f"{canonical.references['critical_detuning_mhz']['value']:.4f}" not in output


def test_a_missing_number_fails(tmp_path, canonical):
    reward, output = grade(tmp_path, canonical, beta_over_nu="")
    assert reward == "0"
    assert "expected a line `beta_over_nu: value`, found none" in output
