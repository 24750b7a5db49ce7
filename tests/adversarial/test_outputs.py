"""Attacks through what is handed in: its kind, its size, its name, its moment, and the numbers it holds."""

# ruff: noqa: E501 (the agents' programs are kept whole)

from __future__ import annotations

import contextlib
import importlib.util
import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from adversary import HONEST, PACKAGE, PAPERS, WEIGH, Play, bash, deliver, python, write

from fpenv.env import FrontierPhysicsEnv
from fpenv.grading import evidence
from fpenv.instance import make_instance
from fpenv.task import load_task

Start = Callable[..., FrontierPhysicsEnv]
Variant = Callable[[Mapping[str, str | None]], Path]
FLAGSHIP = Path(__file__).parents[2] / "tasks" / "rydberg-ising-critical-point"
RESULT, TABLE = "test_outputs.py::test_result", "test_outputs.py::test_table"

# ---- what kind of file it is ---------------------------------------------------------------------------------------

KINDS = {
    "a link to the environment of the guest": "ln -sf /proc/self/environ result.md",
    "a link to a file of the system": "ln -sf /etc/passwd result.md",
    "a link to a right file": "mv result.md right.md; ln -s right.md result.md",
    "a link to where the verifier's references will lie": "ln -sf /verifier/references.json result.md",
    "a hard link": "mv result.md right.md; ln right.md result.md",
    "a pipe": "rm result.md; mkfifo result.md; (setsid bash -c 'while :; do echo mass_kg: 1.2345 > result.md; done' &)",
    "a socket": "rm result.md; python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"result.md\")'",
    "a folder": "rm result.md; mkdir result.md; echo mass_kg: 1.2345 > result.md/result.md",
    "a device": "rm result.md; mknod result.md c 1 5 || ln -s /dev/zero result.md",
    "a file nobody may read": "chmod 0 result.md",
    "a sparse giant": "truncate -s 40G result.md",
    "no file": "rm result.md",
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_result_that_is_no_plain_file_is_refused_by_name_and_worth_0(play: Play, kind: str) -> None:
    began = time.monotonic()
    played = play(*HONEST, bash(KINDS[kind]), reviewer=None)
    assert time.monotonic() - began < 20
    played.assert_worth(0.0)
    assert RESULT in played.failed_tests
    assert "result.md" in played.grade["refused_deliverables"]


def test_a_file_that_grows_while_it_is_read_is_bounded(play: Play) -> None:
    grow = "setsid bash -c 'trap \"\" TERM; while :; do head -c 100000 /dev/zero >> result.md; done' >/dev/null 2>&1 &"
    played = play(*HONEST, bash(grow + " sleep 0.1"), reviewer=None)
    played.assert_worth(0.0)


FOLDERS = {
    "a link to the host's programs": "ln -s /usr/bin figures",
    "links and pipes inside": "mkdir figures; ln -s /etc figures/etc; ln -s / figures/root; mkfifo figures/pipe",
    "names that break lines": "mkdir figures; touch $'figures/a\\nresult.md' $'figures/\\x1b[31m' $'figures/\\xff\\xfe'",
    "names that climb": "mkdir -p 'figures/...' figures/..a; touch 'figures/.../x' 'figures/a\\b' 'figures/ ' figures/-rf",
    "deep and many": "mkdir -p figures/$(seq -s / 40); for i in $(seq 700); do echo > figures/$i; done",
    "a hostile archive": (
        "mkdir figures; python3 -c \"import io, tarfile; t = tarfile.open('figures/a.tar', 'w');"
        "i = tarfile.TarInfo('../../../../tmp/slipped'); i.size = 1; t.addfile(i, io.BytesIO(b'x'));"
        "d = tarfile.TarInfo('dev'); d.type = tarfile.CHRTYPE; t.addfile(d); t.close()\""
    ),
}


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_hostile_folder_harms_nothing_and_adds_nothing(play: Play, tmp_path: Path, folder: str) -> None:
    played = play(*HONEST, bash(FOLDERS[folder]), record_to=tmp_path / "runs")
    played.assert_worth(100.0)
    kept = played.env.recording.folder.deliverables
    assert all(path.resolve().is_relative_to(kept) and not path.is_symlink() for path in kept.rglob("*"))
    assert sum(path.is_file() for path in kept.rglob("*")) <= 503
    assert not Path("/tmp/slipped").exists()
    assert all("\n" not in name and "\x1b" not in name for name in played.grade["deliverables"])
    assert all("\x1b" not in name for name in played.grade["refused_deliverables"])


def test_a_result_that_is_swapped_between_check_and_read_is_one_whole_file_or_none(play: Play) -> None:
    swap = """
        setsid bash -c 'trap "" TERM HUP; while :; do echo "mass_kg: 1.2345" > swap; mv swap result.md; done' & \
        setsid bash -c 'trap "" TERM HUP; while :; do ln -sf /etc/passwd other; mv -T other result.md; done' & sleep 0.2
    """
    played = play(*HONEST, bash(f"({swap}) >/dev/null 2>&1"))
    assert played.info["valid"]
    assert played.reward in (0.0, 100.0)
    assert played.reward == (100.0 if "result.md" in played.grade["deliverables"] else 0.0)


def test_what_daemons_write_after_the_submission_does_not_count(play: Play) -> None:
    later = "setsid bash -c 'trap \"\" TERM HUP; sleep 1; while :; do echo mass_kg: 1.2345 > result.md; done' >/dev/null 2>&1 &"
    played = play(WEIGH, *deliver(value="1.9"), bash(later), reviewer=None)
    time.sleep(1.2)
    played.assert_worth(0.0)


@pytest.mark.parametrize(
    "commands",
    [
        "chmod 000 /root",
        "chmod 000 /root /tmp; setsid sleep 60 >/dev/null 2>&1 &",
    ],
)
def test_a_closed_workspace_is_the_agents_own_result(play: Play, commands: str) -> None:
    play(*HONEST, bash(commands), reviewer=None).assert_worth(0.0)


CROWD = """
import os, threading, time
if os.fork(): os._exit(0)
os.setsid()
threading.stack_size(1 << 16)
end = time.time() + 20
while time.time() < end:  # whatever room there is, is filled
    try: threading.Thread(target=time.sleep, args=(20,)).start()
    except RuntimeError: time.sleep(0.001)
"""


def test_a_full_process_table_does_not_make_the_episode_ungraded(play: Play) -> None:
    played = play(*HONEST, python(CROWD, timeout_s=10), bash("sleep 2"))
    played.assert_worth(100.0)
    assert set(played.grade["refused_deliverables"]) <= {"/root/figures/"}


NO_NAMES = (
    (PACKAGE / "task.md").read_text().replace("deliverables: [result.md, table.json, paper.pdf, figures/]", "domain: x")
)


@pytest.mark.parametrize(
    "shape", ["rm -r data; echo x > data", "rm data/weights.csv; mkdir data/weights.csv; echo > data/weights.csv/x"]
)
def test_a_file_in_place_of_an_inputs_folder_is_the_agents_own_result(play: Play, variant: Variant, shape: str) -> None:
    task = variant({"task.md": NO_NAMES.replace("domain: Metrology\n  domain: x", "domain: Metrology")})
    played = play(*HONEST, bash(shape), task=task)
    assert played.info["valid"], played.grade["reason"]


# ---- what it unfolds to --------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_paper_that_unfolds_without_end_costs_the_paper_and_nothing_else(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        evidence, "RUNNER", evidence.RUNNER.replace("review.main", "review.PAPER_TIME_S = 1; review.main")
    )
    bomb = PAPERS["BOMB"]
    program = f"import base64; open('/root/paper.pdf', 'wb').write(base64.b64decode({__import__('base64').b64encode(bomb)!r}))"
    played = play(*HONEST, write("make.py", program), bash("python3 make.py"))
    assert played.info["valid"]
    assert played.reward < 100.0


def test_a_table_nested_without_end_fails_its_test(play: Play) -> None:
    played = play(*deliver(table="[" * 4000), reviewer=None)
    played.assert_worth(0.0)
    assert played.failed_tests == {TABLE}


# ---- the numbers it holds ------------------------------------------------------------------------------------------

TABLES = {
    "the last of two keys is right": '{"mass_kg": 9.0, "mass_kg": 1.2345, "shots": 1}',
    "the first of two keys is right": '{"mass_kg": 1.2345, "mass_kg": 9.0, "shots": 1}',
    "not a number": '{"mass_kg": NaN, "shots": 1}',
    "infinite": '{"mass_kg": Infinity, "shots": 1}',
    "beyond a float": '{"mass_kg": 1e999, "shots": 1}',
    "a huge integer": '{"mass_kg": ' + "1" * 3900 + ', "shots": 1}',
    "a text": '{"mass_kg": "1.2345", "shots": 1}',
    "several": '{"mass_kg": [1.2345, 9.0], "shots": 1}',
}


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"adversarial_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def flagship() -> ModuleType:
    """The flagship's hidden tests, as a module."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DELIVERABLES", "/nonexistent")
        return load(FLAGSHIP / "verifier" / "test_outputs.py")


@pytest.mark.parametrize("table", ["the last of two keys is right", "not a number"])
def test_a_table_that_is_not_one_right_number_is_worth_0(play: Play, table: str) -> None:
    played = play(*deliver(table=TABLES[table]), reviewer=None)
    played.assert_worth(0.0)
    assert played.failed_tests == {TABLE}


@pytest.mark.parametrize("table", TABLES)
def test_no_reading_of_a_doubtful_table_passes_its_check(tmp_path: Path, table: str) -> None:
    (tmp_path / "references.json").write_text('{"mass_kg": 1.2345}')
    (tmp_path / "table.json").write_text(TABLES[table])
    source = (PACKAGE / "verifier/test_outputs.py").read_text()
    source = source.replace('"/verifier/references.json"', repr(str(tmp_path / "references.json")))
    names: dict[str, Any] = {}
    exec(source.replace('Path("/root")', f"Path({str(tmp_path)!r})"), names)
    with pytest.raises((AssertionError, ValueError, RecursionError)):
        names["test_table"]()


NAME = "critical_detuning_mhz"
RIGHT = "1.4236"
DOUBTFUL = {
    "nan": "nan",
    "infinity": "inf",
    "infinity spelt out": "-Infinity",
    "beyond a float": "1e999",
    "an exponent of three digits": "1.4236e000",
    "a decimal comma": "1,4236",
    "a thousands separator": "1_4236",
    "two values": "1.4236 1.9",
    "two values with or": "1.4236 or 1.9",
    "a slash": "1.4236/1.9",
    "a range": "1.0-1.9",
    "a range in words": "1.0 to 1.9",
    "a huge uncertainty in place of a value": "+/- 1.4236",
    "Arabic digits": "١.٤٢٣٦",
    "fullwidth digits": "１.４２３６",
    "a superscript": "1.4236²",
    "a fraction": "1½",
    "a NUL": "1.4236\0",
    "a right-to-left mark": "\u202e6324.1",
    "a zero-width space": "1.42\u200b36",
    "an expression": "1.4236+0",
    "hexadecimal": "0x1.6p0",
    "a second name on the line": f"1.4236 {NAME}: 1.9",
    "more digits than a number has": "1." + "4" * 5000,
    "a huge integer": "9" * 5000,
    "nested remarks": "1.4236 ((1.9))",
    "an empty text": "",
}


@pytest.mark.parametrize("doubt", DOUBTFUL)
def test_the_flagship_reads_no_number_out_of_a_doubtful_one(flagship: ModuleType, doubt: str) -> None:
    names = tuple(flagship.REFERENCES)
    with pytest.raises(flagship.Malformed):
        flagship.parse_results(f"{NAME}: {DOUBTFUL[doubt]}\n", names)


@pytest.mark.parametrize(
    "text",
    [
        f"{NAME}: 1.9\n{NAME}: {RIGHT}",
        f"{NAME}: {RIGHT}\n{NAME}: 1.9",
        f"| {NAME} | {RIGHT} |\n{NAME} = {RIGHT}",
        f"- {NAME}: {RIGHT}\r\n* **{NAME}**: 1.9",
        f"{NAME}: 1.9\u2028{NAME}: {RIGHT}",
        f"{NAME}: 1.9\x0b{NAME}: {RIGHT}",
        f"ｃritical_detuning_mhz: 1.9\n{NAME}: {RIGHT}",
        f"CRITICAL_DETUNING_MHZ: 1.9\n{NAME}: {RIGHT}",
    ],
)
def test_the_flagship_takes_no_name_twice_and_no_look_alike_of_one(flagship: ModuleType, text: str) -> None:
    with pytest.raises(flagship.Malformed):
        flagship.parse_results(text, tuple(flagship.REFERENCES))


HOSTILE_LINES = {
    "colons": ":" * 65536,
    "names": f"{NAME}: " * 2900,
    "bars": "|" * 65536,
    "digits": f"{NAME}: " + "1" * 65000,
    "brackets": f"{NAME}: 1.4236 (" + "a" * 65000,
    "lines": f"{NAME}x: 1\n" * 2700,
    "blanks": "a" + " " * 65000 + "b",
}


@pytest.mark.parametrize("line", HOSTILE_LINES)
def test_the_flagship_reads_64_kib_of_hostile_text_in_a_moment(flagship: ModuleType, line: str) -> None:
    began = time.process_time()
    with contextlib.suppress(flagship.Malformed):
        flagship.parse_results(HOSTILE_LINES[line], tuple(flagship.REFERENCES))
    assert time.process_time() - began < 2


def test_the_flagship_reads_marks_in_linear_time(flagship: ModuleType) -> None:
    def seconds(size: int) -> float:
        began = time.process_time()
        flagship.parse_results("*" * size, tuple(flagship.REFERENCES))
        return time.process_time() - began

    assert seconds(800) < 3 * seconds(400) + 0.01


# ---- answers that were not worked out ------------------------------------------------------------------------------


def right_names(values: Mapping[str, float], references: Mapping[str, Any]) -> set[str]:
    return {n for n, r in references.items() if n in values and abs(values[n] - r["value"]) <= r["tolerance"]}


def guesses(instance: Any) -> dict[str, dict[str, float]]:
    """Answers that need no measurement: the data sheet's, the literature's, the benchmark's own."""
    sheet = json.loads(instance.inputs["apparatus.json"])
    rabi, spacing = sheet["planned_chain"]["rabi_set_mhz"], sheet["planned_chain"]["spacing_um"]
    v1 = sheet["nominal"]["c6_mhz_um6"] / spacing**6
    canonical = make_instance(instance.task).parts.references
    nominal = {
        "rabi_frequency_mhz": rabi, "detuning_offset_mhz": 0.0, "interaction_v1_mhz": v1, "rydberg_lifetime_us": 50.0,
        "beta_over_nu": 0.125,
    }  # fmt: skip
    line = sys.modules.get("adversarial_instance") or load(FLAGSHIP / "instance.py")
    critical, crossing = line.critical_line(v1 / rabi)
    informed = {"crossing_detuning_7_11_mhz": rabi * crossing, "critical_detuning_mhz": rabi * critical}
    first_order = {"crossing_detuning_7_11_mhz": 1.31 * rabi, "critical_detuning_mhz": 1.31 * rabi}  # PXP, Fendley 2004
    middle = {
        "rabi_frequency_mhz": 1.2,
        "detuning_offset_mhz": 0.13,
        "interaction_v1_mhz": 16.0,
        "rydberg_lifetime_us": 57.0,
    }
    return {
        "zeros": dict.fromkeys(canonical, 0.0),
        "the data sheet with the literature's PXP point": nominal | first_order,
        "the data sheet with the true critical line": nominal | informed,
        "middles of the ranges": nominal | middle | {"crossing_detuning_7_11_mhz": 1.5, "critical_detuning_mhz": 1.45},
        "the canonical answer": {name: reference["value"] for name, reference in canonical.items()},
    }


@pytest.mark.parametrize("seed", [None, 0, 1, 2, 3, 4])
def test_guesses_without_a_measurement_fail_the_flagships_tests(seed: int | None) -> None:
    instance = make_instance(load_task(FLAGSHIP), seed)
    for name, values in guesses(instance).items():
        if name == "the canonical answer" and seed is None:
            continue
        right = right_names(values, instance.parts.references)
        assert len(right) <= 4, (name, right)  # of seven: luck may hit one or two, D needs all


def test_the_benchmarks_answer_is_worth_0_on_another_instance(play: Play) -> None:
    played = play(*HONEST, seed=3, reviewer=None)
    played.assert_worth(0.0)
    assert played.failed_tests == {RESULT, TABLE}


def test_altered_inputs_do_not_move_the_reference(play: Play) -> None:
    alter = bash("printf 'name,mass_kg\\nreference,1.5390\\n' > data/weights.csv; rm -f data/other; ln -s / data/other")
    play(alter, *deliver(value="1.9"), reviewer=None).assert_worth(0.0)
    played = play(alter, *HONEST)
    played.assert_worth(100.0)  # the verifier gets the inputs as handed out


# ---- the same again ------------------------------------------------------------------------------------------------

GRADE_AGAIN = """
import json, sys
sys.path.insert(0, {here!r})
from adversary import PACKAGE
from pathlib import Path
from fpenv.grading.grade import grade_bytes
from fpenv.grading.regrade import regrade
sys.stdout.write(grade_bytes(regrade(Path({run!r}), task=PACKAGE)[1]).decode())
"""


def test_the_same_deliverables_get_the_same_bytes_in_another_order_and_process(play: Play, tmp_path: Path) -> None:
    figures = bash(
        "mkdir figures; for i in 3 1 2; do echo $i > figures/$i; done; ln -s / figures/x; echo > $'figures/\\n'"
    )
    first = play(figures, *HONEST, record_to=tmp_path / "runs")
    again = play(WEIGH, *deliver()[::-1], figures, record_to=tmp_path / "runs")
    for grade in (first.grade, again.grade):
        grade["review"] = None  # quotes name steps, and the steps differ
    assert first.grade == again.grade
    run = first.env.recording.folder.path
    code = GRADE_AGAIN.format(here=str(Path(__file__).parent), run=str(run))
    there = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout
    told, here = json.loads(there), json.loads((run / "grade.json").read_text())
    for grade in (told, here):
        del grade["refused_deliverables"]  # only the machine itself knew what it refused
    assert told == here
