"""Runtimes: what is in them, how they are keyed, and what happens when one cannot be built."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fpenv.errors import SandboxError
from fpenv.sandbox import runtime
from fpenv.sandbox.local import LocalBackend
from fpenv.sandbox.sandbox import SandboxSpec
from fpenv.testing.sandbox_conformance import sh


@pytest.fixture(scope="module")
def empty() -> runtime.Runtime:
    return runtime.provide("")


def test_the_same_requirements_give_the_same_layer(empty: runtime.Runtime) -> None:
    said: list[str] = []
    assert runtime.provide("\n  # a comment\n\n", progress=said.append) == empty
    assert said == []
    assert empty.path.name == empty.digest[:24]


def test_a_layer_is_readable_by_all_and_writable_by_none(empty: runtime.Runtime) -> None:
    for path in empty.path.rglob("*"):
        mode = path.lstat().st_mode
        if not path.is_symlink():
            assert mode & 0o004
            assert not mode & 0o022


def test_a_layer_holds_no_package_of_the_host(empty: runtime.Runtime) -> None:
    site = next(empty.path.glob("lib/python3*/site-packages"))
    assert [path.name for path in site.iterdir()] == ["lab.pth"]
    assert not list(empty.path.rglob("*fpenv*"))


def test_a_layer_works_where_the_sandbox_sees_it(local_backend: LocalBackend, empty: runtime.Runtime) -> None:
    modules = "bz2 ctypes decimal hashlib json lzma multiprocessing sqlite3 ssl unittest venv zlib"
    with local_backend.start(SandboxSpec(runtime=empty.path)) as box:
        result = sh(box, f"python3 -W error -c 'import {', '.join(modules.split())}, sys; print(sys.executable)'")
        assert (result.stdout, result.stderr) == (b"/opt/runtime/bin/python3\n", b"")
        pool = "from multiprocessing import Pool\nprint(sum(Pool(2).map(abs, range(10))))"
        assert sh(box, f"python3 -c '{pool}'").stdout == b"45\n"
        libraries = sh(box, "ldd $(readlink -f /opt/runtime/bin/python3)").stdout
        assert b"not found" not in libraries


def test_a_requirement_that_cannot_be_had_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(SandboxError, match=r"could not install no-such-package-fpenv(?s:.*)check the requirement"):
        runtime.provide("no-such-package-fpenv==1")
    folder = runtime.cache_root() / "runtimes"
    assert not [path for path in folder.iterdir() if path.name.startswith(".building")]


def test_a_local_package_is_installed_with_its_script(local_backend: LocalBackend, tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path)
    layer = runtime.provide(f"toy @ file://{wheel}")
    try:
        with local_backend.start(SandboxSpec(runtime=layer.path)) as box:
            assert sh(box, "python3 -c 'import toy; print(toy.NAME)'; toy-says").stdout == b"toy\nhello\n"
        assert b"runtimes" not in (layer.path / "bin" / "toy-says").read_bytes()
        assert list(layer.path.glob("lib/python3*/site-packages/__pycache__/toy.*.pyc"))
    finally:
        shutil.rmtree(layer.path)
        layer.path.with_name(f"{layer.path.name}.lock").unlink()
    assert not list(runtime.provide("").path.rglob("toy*"))


def test_without_an_installer_the_error_names_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(runtime.shutil, "which", lambda name: None)
    with pytest.raises(SandboxError, match="ensurepip"):
        runtime._installer(Path("/x/python3"))


def test_a_build_that_is_killed_leaves_no_layer(tmp_path: Path) -> None:
    # Builds take seconds: kill one while it says that it compiles.
    program = (
        "import os, signal, sys\nfrom fpenv.sandbox import runtime\n"
        "runtime._LAYOUT = 'killed'\n"
        "runtime._copy_interpreter = runtime._run = lambda *a: None\n"
        "runtime._is_system = lambda path: False\n"
        "runtime._compile = lambda *a: os.kill(os.getpid(), signal.SIGKILL)\n"
        "runtime.provide('')"
    )
    for folder in [tmp_path, *tmp_path.parents]:
        if str(folder).startswith("/tmp/") and folder.stat().st_uid == os.geteuid():
            folder.chmod(0o755)
    env = {**os.environ, "FPENV_CACHE": str(tmp_path / "cache")}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True)
    assert done.returncode == -9, done.stderr
    assert not [
        path for path in (tmp_path / "cache" / "runtimes").iterdir() if path.name[0] not in "." and path.is_dir()
    ]


def make_wheel(folder: Path) -> Path:
    import zipfile

    path = folder / "toy-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("toy.py", "NAME = 'toy'\ndef main():\n    print('hello')\n")
        wheel.writestr("toy-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: toy\nVersion: 1\n")
        wheel.writestr("toy-1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("toy-1.dist-info/entry_points.txt", "[console_scripts]\ntoy-says = toy:main\n")
        wheel.writestr("toy-1.dist-info/RECORD", "")
    return path
