from pathlib import Path

RESULT = Path("/root/result.md").read_text() if Path("/root/result.md").exists() else ""


def test_mean():
    assert abs(float(RESULT) - 3) < 1e-9


def test_a_plot():
    assert list(Path("/root/plots").iterdir())
