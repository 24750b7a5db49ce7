"""Hidden tests: every named number of result.md against its reference, and a paper that is a PDF.

Standard library and pytest only. Deliverables are read as data, never imported, never written. Messages say what was
wrong with the form, and of a value only that it is outside the tolerance: a reference is never printed.

What result.md may look like. A line that names a quantity gives its value: `name: value`, `name = value`, a list item
(`- name: value`), a table row whose second cell is the value and whose later cells are not read, name and value in
bold or backticks, a unit of the quantity after the value, an uncertainty after `+/-`, `±` or `+-`, a remark in brackets
at the end. Any other line is prose.
What it may not: a name given twice, two values for one name, a range, a comma, an underscore or a non-ASCII digit in a
number, nan or inf. The minus sign U+2212 counts as a minus, because text from a typeset paper has it; no other
look-alike does.
"""

from __future__ import annotations

import json
import math
import os
import re
import stat
import unicodedata
from pathlib import Path

import pytest

ROOT = Path(os.environ.get("DELIVERABLES", "/root"))
REFERENCES = json.loads(Path(__file__).with_name("references.json").read_text(encoding="utf-8"))
UNITS = {"mhz": r"MHz", "us": r"(?:us|µs|μs)"}
MAX_RESULT_BYTES = 64 * 1024
MAX_LINE_CHARACTERS = 1000
MAX_PAPER_BYTES = 30 * 1024 * 1024

_NUMBER = r"[+-]?(?:[0-9]{1,9}(?:\.[0-9]{0,18})?|\.[0-9]{1,18})(?:[eE][+-]?[0-9]{1,2})?"
_MINUS = str.maketrans({"\N{MINUS SIGN}": "-"})


class Malformed(ValueError):
    """result.md is not what the task asks for; the message says where and what was expected."""


def parse_results(text: str, names: list[str] | tuple[str, ...]) -> dict[str, float]:
    """Return the value of each of `names` that `text` gives. Raises Malformed on any ambiguity."""
    values: dict[str, float] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if len(line) > MAX_LINE_CHARACTERS:
            raise Malformed(f"line {number}: expected at most {MAX_LINE_CHARACTERS} characters, got {len(line)}")
        for name, value in _entries(line, names, number):
            if name in values:
                raise Malformed(f"line {number}: {name} is given twice; expected exactly one value")
            values[name] = value
    return values


def _entries(line: str, names: list[str] | tuple[str, ...], number: int) -> list[tuple[str, float]]:
    """Return the entry of a line, if it has one."""
    plain = line.strip().lstrip("\N{ZERO WIDTH NO-BREAK SPACE}")
    bare = re.sub(r"^(?:[-*+]|[0-9]{1,2}[.)])\s+", "", plain).strip()
    if bare.startswith("|"):
        cells = [_strip_marks(cell) for cell in bare.strip("|").split("|")]
        separated = len(cells) > 1
        name, value = cells[0], cells[1] if separated else ""
    else:
        match = re.match(r"[^:=]*[:=]", bare)
        separated = match is not None
        name, value = (_strip_marks(match[0][:-1]), bare[match.end() :]) if match else ("", "")
    if not separated:
        return []
    if name not in names:
        folded = unicodedata.normalize("NFKC", name).casefold()
        if folded in names:
            raise Malformed(f"line {number}: expected the name {folded}, got a look-alike of it")
        return []
    return [(name, _value(name, value, number))]


def _strip_marks(text: str) -> str:
    return text.strip().strip("*`").strip()


def _value(name: str, text: str, number: int) -> float:
    """Return the one number in `text`; a unit, an uncertainty and a bracketed remark may follow it."""
    unit = UNITS.get(name.rsplit("_", 1)[-1])
    where = f"line {number}: {name}"
    text = re.sub(r"[*`]", "", text.translate(_MINUS)).strip().removesuffix(",").removesuffix(";").strip()
    tail = rf"(?:\s*{unit})?" if unit else ""
    uncertainty = rf"(?:\s*(?:\+/-|\+-|±)\s*[0-9.]{{1,12}}{tail})?"
    remark = r"(?:\s*\([^()]{0,200}\))?"
    match = re.fullmatch(rf"({_NUMBER}){tail}{uncertainty}{tail}{remark}", text)
    if match is None:
        raise Malformed(f"{where}: expected one decimal number" + (f" in {unit_name(name)}" if unit else ""))
    value = float(match[1])
    if not math.isfinite(value):
        raise Malformed(f"{where}: expected a finite number")
    return value


def unit_name(name: str) -> str:
    return {"mhz": "MHz", "us": "us"}[name.rsplit("_", 1)[-1]]


def read_regular_file(path: Path, cap: int) -> bytes:
    """Return the bytes of a regular file of at most `cap` bytes."""
    try:
        info = path.lstat()
    except OSError:
        pytest.fail(f"{path.name}: expected a file in /root, found none")
    if not stat.S_ISREG(info.st_mode):
        pytest.fail(f"{path.name}: expected a regular file, got something else")
    if info.st_size > cap:
        pytest.fail(f"{path.name}: expected at most {cap} bytes, got {info.st_size}")
    return path.read_bytes()


@pytest.fixture(scope="module")
def results() -> dict[str, float]:
    raw = read_regular_file(ROOT / "result.md", MAX_RESULT_BYTES)
    try:
        return parse_results(raw.decode("utf-8"), tuple(REFERENCES))
    except UnicodeDecodeError:
        pytest.fail("result.md: expected UTF-8 text")
    except Malformed as error:
        pytest.fail(f"result.md, {error}")


def check(results: dict[str, float], name: str) -> None:
    if name not in results:
        pytest.fail(f"result.md: expected a line `{name}: value`, found none")
    reference = REFERENCES[name]
    close = abs(results[name] - reference["value"]) <= reference["tolerance"]
    if not close:
        pytest.fail(f"{name}: outside tolerance", pytrace=False)


def test_rabi_frequency(results):
    check(results, "rabi_frequency_mhz")


def test_detuning_offset(results):
    check(results, "detuning_offset_mhz")


def test_interaction(results):
    check(results, "interaction_v1_mhz")


def test_rydberg_lifetime(results):
    check(results, "rydberg_lifetime_us")


def test_crossing_detuning_of_7_and_11_atoms(results):
    check(results, "crossing_detuning_7_11_mhz")


def test_critical_detuning(results):
    check(results, "critical_detuning_mhz")


def test_exponent_ratio(results):
    check(results, "beta_over_nu")


def test_paper_is_a_pdf():
    raw = read_regular_file(ROOT / "paper.pdf", MAX_PAPER_BYTES)
    assert raw.startswith(b"%PDF-"), "paper.pdf: expected a PDF, its first bytes are not %PDF-"
    assert b"%%EOF" in raw[-2048:], "paper.pdf: expected a complete PDF, its end is missing"
