"""Imports point down the layers, lazy ones too, and heavy libraries stay where they belong."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "fpenv"

# Lowest first. A module may import from its own layer's line and from those above it in this list.
LAYERS = (
    ("errors", "records", "names"),
    ("sandbox", "instruments", "untrusted", "rubric"),
    ("package",),
    ("task",),
    ("instance",),
    ("tools", "store", "export", "placement"),
    ("deliverables",),
    ("grading",),
    ("transcript", "spaces", "episode", "recording"),
    ("env",),
    ("agents",),
    ("report", "testing", "doctor"),
    ("cli",),
)
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
HEAVY = {"docker": {"sandbox/docker/engine.py"}, "openai": {"agents/llm/endpoint.py"}, "ray": set(), "torch": set()}
MODULES = sorted(PACKAGE.rglob("*.py"))


def imports(file: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize("file", MODULES, ids=lambda f: str(f.relative_to(PACKAGE)))
def test_imports_point_down(file: Path) -> None:
    relative = file.relative_to(PACKAGE)
    own = RANK.get(relative.parts[0].removesuffix(".py"), len(LAYERS))
    for name in imports(file):
        parts = name.split(".")
        if parts[0] != "fpenv":
            assert str(relative) in HEAVY.get(parts[0], {str(relative)}), f"{relative} imports {name}"
        elif len(parts) > 1 and parts[1] in RANK:
            assert RANK[parts[1]] <= own, f"{relative} imports {name}, which lies above it"


def test_every_module_has_a_layer() -> None:
    named = {file.relative_to(PACKAGE).parts[0].removesuffix(".py") for file in MODULES}
    assert named - set(RANK) <= {"__init__", "_tasks"}


def test_importing_fpenv_is_light() -> None:
    code = "import sys, fpenv; print(*sorted({m.split('.')[0] for m in sys.modules}))"
    loaded = set(
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    )
    assert not loaded & {
        "ray",
        "torch",
        "docker",
        "openai",
        "pydantic",
        "rich",
        "msgpack",
        "scipy",
        "matplotlib",
        "yaml",
    }
