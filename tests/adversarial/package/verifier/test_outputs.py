"""canary-6b1d-test-outputs"""

import json
import re
from pathlib import Path

ROOT = Path("/root")
MASS = json.loads(Path("/verifier/references.json").read_text())["mass_kg"]


def check(value):
    if not abs(value - MASS) <= 0.01:
        raise AssertionError("outside tolerance")


def unique(pairs):
    found = dict(pairs)
    assert len(found) == len(pairs), "each key once"
    return found


def test_result():
    raw = (ROOT / "result.md").read_bytes()
    assert len(raw) <= 64 << 10
    found = re.fullmatch(rb"mass_kg: ([0-9]{1,3}\.[0-9]{1,9})\s*", raw)
    assert found, "expected one line `mass_kg: VALUE`"
    check(float(found[1]))


def test_table():
    raw = (ROOT / "table.json").read_bytes()
    assert len(raw) <= 4096
    table = json.loads(raw, object_pairs_hook=unique)
    assert set(table) == {"mass_kg", "shots"}
    assert isinstance(table["mass_kg"], float)
    check(table["mass_kg"])


def test_paper():
    assert (ROOT / "paper.pdf").read_bytes().startswith(b"%PDF-")


def test_inputs_are_as_handed_out():
    assert (ROOT / "data/weights.csv").read_text() == "name,mass_kg\nreference,1.0000\n"
