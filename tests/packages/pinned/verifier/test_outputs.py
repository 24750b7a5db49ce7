from pathlib import Path

import six


def test_version():
    assert six.__version__ == "1.16.0"
    assert Path("/root/result.md").read_text().strip() == six.__version__
