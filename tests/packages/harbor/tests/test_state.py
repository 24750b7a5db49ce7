import json
import os
from pathlib import Path

EXPECTED = json.loads(Path("/tests/expected_period.json").read_text())


def test_period():
    assert abs(float(Path("/app/period.txt").read_text()) - EXPECTED) < float(os.environ["TOLERANCE"])
