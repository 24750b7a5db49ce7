"""The tests that a module defines, read from its text: for modules that cannot be imported without deliverables."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path


def written_tests(folder: Path, modules: Iterable[str]) -> tuple[str, ...]:
    """Ids of the test functions in modules of a verifier, without parameters."""
    return tuple(f"{name}::{test}" for name in modules for test in _tests(folder / name))


def complete(collected: Iterable[str], written: Iterable[str]) -> tuple[str, ...]:
    """The collected ids, and those written ones of which not even one parameter was collected."""
    found = tuple(collected)
    plain = {name.split("[", 1)[0] for name in found}
    return (*found, *(name for name in written if name not in plain))


def _tests(module: Path) -> Iterator[str]:
    try:
        tree = ast.parse(module.read_bytes())
    except (OSError, ValueError, SyntaxError, RecursionError):
        return
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
            yield from (f"{node.name}::{test}" for test in _functions(node.body))
    yield from _functions(tree.body)


def _functions(body: list[ast.stmt]) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test"):
            yield node.name
