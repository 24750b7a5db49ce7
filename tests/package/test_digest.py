"""The digest of a package, and the registry that says what it should be."""

import hashlib
import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest

from fpenv.errors import TaskError
from fpenv.package.digest import package_digest
from fpenv.task import load_task

PACKAGES = Path(__file__).parent.parent / "packages"


@pytest.fixture
def package(tmp_path: Path) -> Path:
    return Path(shutil.copytree(PACKAGES / "pinned", tmp_path / "suite" / "tasks" / "pinned"))


def test_the_digest_is_the_published_one(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "c").write_bytes(b"two")
    (tmp_path / "a").write_bytes(b"one")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    (tmp_path / "linked").symlink_to(tmp_path / "b")
    inner = [hashlib.sha256(data) for data in (b"one", b"two")]
    raw = b"a\0" + inner[0].digest() + b"b/c\0" + inner[1].digest()
    text = b"a\0" + inner[0].hexdigest().encode() + b"b/c\0" + inner[1].hexdigest().encode()
    assert package_digest(tmp_path) == hashlib.sha256(raw).hexdigest()
    assert package_digest(tmp_path, hex_inner=True) == hashlib.sha256(text).hexdigest()


@pytest.mark.parametrize("hex_inner", [False, True])
@pytest.mark.parametrize(
    "form",
    [
        lambda digest: {"pinned": digest},
        lambda digest: {"version": 1, "tasks": {"pinned": {"digest": f"sha256:{digest}"}}},
        lambda digest: {
            "tasks": [{"name": "suite/pinned", "content_sha256": digest}, {"name": "other", "digest": "0" * 64}]
        },
        lambda digest: [{"name": "suite", "tasks": [{"path": "tasks/pinned", "sha256": digest.upper()}]}],
    ],
)
def test_a_package_that_matches_its_registry_is_not_remarked_on(package: Path, form: Any, hex_inner: bool) -> None:
    digest = package_digest(package, hex_inner=hex_inner)
    (package.parent.parent / "registry.json").write_text(json.dumps(form(digest)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_task(package, strict=True)


def test_a_changed_package_is_a_warning_and_a_note_and_strictly_an_error(package: Path) -> None:
    (package.parent / "registry.json").write_text(json.dumps({"pinned": package_digest(package)}))
    (package / "extra.txt").write_text("x")
    with pytest.warns(UserWarning, match=r"pinned: its content has digest .*, .*registry.json says"):
        task = load_task(package)
    assert any("its content has digest" in note for note in task.notes)
    with pytest.raises(TaskError, match=r"its content has digest .*; expected the published content"):
        load_task(package, strict=True)


def test_without_a_registry_only_strict_loading_minds(package: Path) -> None:
    load_task(package)
    with pytest.raises(TaskError, match=r"no registry\.json in the 3 folders above"):
        load_task(package, strict=True)


def test_a_registry_that_does_not_list_the_package_is_a_warning(package: Path) -> None:
    (package.parent / "registry.json").write_text("{}")
    with pytest.warns(UserWarning, match="does not list it"):
        load_task(package)


def test_a_broken_registry_is_named(package: Path) -> None:
    (package.parent / "registry.json").write_text("{")
    with pytest.raises(TaskError, match=r"registry\.json: expected JSON with the digests of packages"):
        load_task(package)
