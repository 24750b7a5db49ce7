import json
import re
from pathlib import Path

BIAS = json.loads(Path("/verifier/references.json").read_text())["bias"]


def test_bias():
    found = re.fullmatch(r"bias: (0\.[0-9]{1,18})\s*", Path("/root/result.md").read_text())
    assert found, "expected one line `bias: VALUE`"
    if abs(float(found[1]) - BIAS) > 0.05:
        raise AssertionError("outside tolerance")


def test_inputs_are_as_handed_out():
    assert Path("/root/data/sheet.txt").read_text() == "a coin\n"
