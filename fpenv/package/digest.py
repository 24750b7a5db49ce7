"""The digest of a package's content, and what a `registry.json` says it should be.

The published digest is a SHA-256 over the sorted relative paths, each adding the path, a zero byte and the
SHA-256 of the file's bytes; symbolic links are skipped. The sentence leaves open whether the inner SHA-256
goes in as 32 raw bytes or as 64 hexadecimal digits: raw is what fpenv records, and a registry is believed
with either. Left out as well: `__pycache__`, which running a task's code makes.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fpenv.errors import TaskError

_DIGEST = re.compile(r"(?:sha256:)?([0-9a-f]{64})", re.IGNORECASE)
_DIGEST_KEYS = ("digest", "sha256", "content_digest", "content_sha256", "hash", "checksum")
_NAME_KEYS = ("name", "task", "id", "slug", "path")
_LEVELS_ABOVE = 3


def package_digest(folder: Path, *, hex_inner: bool = False) -> str:
    """Return the digest as 64 hexadecimal digits. `hex_inner` is the other reading of the published sentence."""
    total = hashlib.sha256()
    for file in sorted(folder.rglob("*"), key=lambda f: f.relative_to(folder).as_posix()):
        relative = file.relative_to(folder)
        if _through_link(folder, relative) or not file.is_file() or "__pycache__" in relative.parts:
            continue
        inner = hashlib.sha256(file.read_bytes())
        total.update(relative.as_posix().encode("utf-8", "surrogateescape") + b"\0")
        total.update(inner.hexdigest().encode() if hex_inner else inner.digest())
    return total.hexdigest()


def compare_with_registry(folder: Path) -> str:
    """Say what is wrong with a package by the nearest `registry.json` above it; empty if it matches.

    Raises TaskError for a registry that cannot be read.
    """
    registry = find_registry(folder)
    if registry is None:
        return f"{folder.name}: no registry.json in the {_LEVELS_ABOVE} folders above it says what its digest should be"
    published = _published(registry, folder)
    if not published:
        return f"{folder.name}: {registry} does not list it"
    digest = package_digest(folder)
    if digest in published or package_digest(folder, hex_inner=True) in published:
        return ""
    return f"{folder.name}: its content has digest {digest}, {registry} says {', '.join(sorted(published))}"


def find_registry(folder: Path) -> Path | None:
    """The nearest registry.json beside or above the package's folder."""
    places = list(folder.parents)[:_LEVELS_ABOVE]
    return next((place / "registry.json" for place in places if (place / "registry.json").is_file()), None)


def _published(registry: Path, folder: Path) -> set[str]:
    try:
        raw = json.loads(registry.read_bytes())
    except (ValueError, RecursionError, OSError) as error:
        raise TaskError(f"{registry}: expected JSON with the digests of packages, got {error}") from error
    return set(_digests(raw, folder.name))


def _digests(node: Any, name: str) -> Iterator[str]:
    """Digests for a name, wherever they stand: `{name: digest}`, `{name: {..}}`, or `[{"name": .., "digest": ..}]`."""
    if isinstance(node, list):
        for item in node:
            yield from _digests(item, name)
    elif isinstance(node, dict):
        named = any(_is_name(node.get(key), name) for key in _NAME_KEYS)
        if named:
            yield from _given(node)
        for key, value in node.items():
            if _is_name(key, name):
                yield from _given(value) if isinstance(value, dict) else _one(value)
            else:
                yield from _digests(value, name)


def _given(entry: dict[str, Any]) -> Iterator[str]:
    for key in _DIGEST_KEYS:
        yield from _one(entry.get(key))


def _one(value: Any) -> Iterator[str]:
    match = _DIGEST.fullmatch(value) if isinstance(value, str) else None
    if match:
        yield match[1].lower()


def _is_name(value: Any, name: str) -> bool:
    return isinstance(value, str) and value.rstrip("/").rsplit("/", 1)[-1] == name


def _through_link(folder: Path, relative: Path) -> bool:
    return any((folder / part).is_symlink() for part in (relative, *relative.parents) if part != Path())
