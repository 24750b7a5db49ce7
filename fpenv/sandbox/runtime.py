"""Builds the Python runtime that a task's commands see at /opt/runtime: a cached read-only layer.

A layer never holds anything of the host's site-packages: fpenv lies there, and with it every task's hidden
files. Where the base interpreter belongs to the system (below /usr, but not /usr/local) a layer is a virtual
environment, since /usr is bound read-only. Any other interpreter is copied into the layer with its standard
library, because a sandbox's user may not reach it. A layer's key is what it is made from; it appears whole
or not at all, and concurrent builders wait for one another.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fpenv.errors import SandboxError
from fpenv.sandbox.cache import cache_root, provide_folder
from fpenv.sandbox.elf import point_to_own_libraries

__all__ = ["Runtime", "cache_root", "provide"]

INSIDE = "/opt/runtime"
_LAYOUT = 3
_BUILD_TIMEOUT_S = 1800
_LEFT_OUT = (
    "site-packages",
    "dist-packages",
    "__pycache__",
    "test",
    "tests",
    "idlelib",
    "turtledemo",
    "ensurepip",
    "lib2to3",
    "config-*",
    "*.a",
    "_test*.so",
    "_ctypes_test*.so",
    "xxlimited*.so",
    "EXTERNALLY-MANAGED",
)

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Runtime:
    """A built layer: the folder that `SandboxSpec.runtime` takes, and the digest of what it was made from."""

    path: Path
    digest: str


def provide(requirements: str, *, progress: Progress | None = None) -> Runtime:
    """Return the layer with these requirements (a pip requirements text), built if it is not cached.

    Needs a network, or a pip configured for a mirror, to build one with requirements. Raises SandboxError.
    """
    lines = sorted(line.strip() for line in requirements.splitlines())
    wanted = [line for line in lines if line and not line.startswith("#")]
    digest = hashlib.sha256(repr((_LAYOUT, wanted, *_interpreter_facts())).encode()).hexdigest()
    path = cache_root() / "runtimes" / digest[:24]

    def build(folder: Path) -> None:
        say = progress or (lambda text: None)
        say(f"building the runtime {digest[:12]} with {', '.join(wanted) or 'no packages'}")
        if wanted:
            _extend(provide("", progress=progress).path, folder, wanted, say)
        else:
            _build_empty(folder, say)
        say(f"the runtime {digest[:12]} is ready")

    return Runtime(provide_folder(path, build), digest)


def _base_interpreter() -> Path:
    """Return the interpreter behind any virtual environment that this process runs in."""
    base = getattr(sys, "_base_executable", None) or sys.executable
    return Path(base).resolve()


def _is_system(interpreter: Path) -> bool:
    """Say whether the sandbox sees this interpreter and its standard library through the bound /usr."""
    seen = [interpreter, Path(sysconfig.get_path("stdlib"))]
    return all(path.is_relative_to("/usr") and not path.is_relative_to("/usr/local") for path in seen)


@functools.cache
def _interpreter_facts() -> tuple[str, ...]:
    base = _base_interpreter()
    return (sys.version, platform.machine(), "-".join(platform.libc_ver()), str(base), str(_is_system(base)))


def _build_empty(folder: Path, say: Progress) -> None:
    base = _base_interpreter()
    if _is_system(base):
        _run([str(base), "-I", "-m", "venv", "--without-pip", str(folder)], "make a virtual environment")
        settings = (folder / "pyvenv.cfg").read_text().splitlines()
        told = [line for line in settings if not line.startswith("command")]  # it names the host's folders
        (folder / "pyvenv.cfg").write_text("\n".join(told) + "\n")
    else:
        say(f"copying the interpreter {base}")
        _copy_interpreter(base, folder)
    python = folder / "bin/python3"
    _run([str(python), "-I", "-c", "import ctypes, json, socket, ssl, zlib"], "start the runtime's interpreter", {})
    site = folder / f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
    site.mkdir(parents=True, exist_ok=True)
    (site / "lab.pth").write_text("/opt/lab/lib\n")
    say("compiling the standard library")
    _compile(python, folder, folder / "lib")


def _extend(empty: Path, folder: Path, wanted: list[str], say: Progress) -> None:
    """Put packages on top of the empty layer, whose files are linked, not copied: nothing ever changes them."""
    shutil.copytree(empty, folder, symlinks=True, copy_function=os.link, dirs_exist_ok=True)
    python = folder / "bin/python3"
    _install(python, folder, wanted, say)
    say("compiling the packages")
    for site in folder.glob("lib/python3*/site-packages"):
        _compile(python, folder, site)


def _copy_interpreter(base: Path, folder: Path) -> None:
    """Copy interpreter, standard library and the shared libraries of its own that they need."""
    prefix = Path(sys.base_prefix).resolve()
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    (folder / "bin").mkdir()
    binary = folder / "bin" / version
    shutil.copy(base, binary)
    for name in ("python3", "python"):
        (folder / "bin" / name).symlink_to(version)
    library = folder / "lib" / version
    for source in {Path(sysconfig.get_path("stdlib")), Path(sysconfig.get_path("platstdlib"))}:
        shutil.copytree(source, library, symlinks=False, ignore=shutil.ignore_patterns(*_LEFT_OUT), dirs_exist_ok=True)
    for needed in _own_libraries([base, *library.glob("lib-dynload/*.so")], prefix):
        shutil.copy(needed, folder / "lib" / needed.name)
    try:
        point_to_own_libraries(binary, prefix)
    except ValueError as error:
        raise SandboxError(
            f"the interpreter {base} cannot be copied: {error}; use your distribution's python3 or a build of uv"
        ) from None


def _own_libraries(files: list[Path], prefix: Path) -> set[Path]:
    """Return the shared libraries below `prefix` that these files load, as the loader resolves them."""
    command = [shutil.which("ldd") or "/usr/bin/ldd", *map(str, files)]
    try:
        listed = subprocess.run(command, capture_output=True, text=True, timeout=60).stdout
    except OSError:
        return set(prefix.glob("lib/libpython3*.so*"))
    found = (Path(line.split(" => ")[1].split(" (")[0]) for line in listed.splitlines() if " => /" in line)
    return {path for path in found if path.is_relative_to(prefix)}


def _install(python: Path, folder: Path, wanted: list[str], say: Progress) -> None:
    listing = folder / "requirements.txt"
    listing.write_text("\n".join(wanted) + "\n")
    say(f"installing {', '.join(wanted)}")
    _run([*_installer(python), "-r", str(listing)], f"install {', '.join(wanted)}", _installer_environment())
    scripts = folder / "bin"
    for script in scripts.iterdir():
        _point_inside(script, folder)


def _installer(python: Path) -> list[str]:
    """Return the command that installs packages into the layer: this environment's pip, or uv."""
    if importlib.util.find_spec("pip") is not None:
        pip = [sys.executable, "-P", "-m", "pip", "--python", str(python), "install", "--no-compile", "--no-input"]
        return [*pip, "--disable-pip-version-check", "--no-warn-script-location", "--quiet"]
    uv = shutil.which("uv")
    if uv:
        return [uv, "pip", "install", "--quiet", "--python", str(python), "--break-system-packages"]
    raise SandboxError(
        "a runtime with packages needs pip beside fpenv, or uv on PATH; "
        f"`{sys.executable} -m ensurepip`, or on Debian `apt install python3-pip`"
    )


def _installer_environment() -> dict[str, str]:
    """The host's environment (proxies, mirrors) without what would send packages elsewhere."""
    unwanted = ("PYTHONPATH", "PYTHONHOME", "PIP_TARGET", "PIP_PREFIX", "PIP_USER", "PIP_ROOT", "PIP_PYTHON")
    kept = {name: value for name, value in os.environ.items() if name not in unwanted}
    return {**kept, "PIP_REQUIRE_VIRTUALENV": "0", "PIP_BREAK_SYSTEM_PACKAGES": "1", "PIP_USER": "0"}


def _point_inside(script: Path, folder: Path) -> None:
    """Let a script's first line name the interpreter where the sandbox sees it."""
    if script.is_symlink() or not script.is_file():
        return
    content = script.read_bytes()
    if content.startswith(b"#!") and os.fsencode(folder) in content[:1024]:
        script.write_bytes(content.replace(os.fsencode(folder), INSIDE.encode()))


def _compile(python: Path, folder: Path, library: Path) -> None:
    command = [str(python), "-I", "-m", "compileall", "-q", "-j", str(min(4, os.cpu_count() or 1))]
    paths = ["-s", str(folder), "-p", INSIDE, "--invalidation-mode", "unchecked-hash", str(library)]
    # Some packages ship templates that are no valid Python: compileall then exits with 1.
    subprocess.run([*command, *paths], capture_output=True, timeout=_BUILD_TIMEOUT_S, env={"PATH": os.defpath})


def _run(command: list[str], purpose: str, env: dict[str, str] | None = None) -> None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_BUILD_TIMEOUT_S, env=env, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SandboxError(f"could not {purpose}: {error}") from None
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip()[-2000:]
        raise SandboxError(f"could not {purpose}: {said}{_advice(said)}")


def _advice(said: str) -> str:
    if "python3-venv" in said or "No module named venv" in said:
        return "\n-> on Debian or Ubuntu: apt install python3-venv"
    if any(sign in said for sign in ("Name or service not known", "Connection", "NewConnectionError", "timed out")):
        return "\n-> the package index is out of reach: check the network, or set PIP_INDEX_URL to a mirror"
    if "No matching distribution" in said:
        return "\n-> check the requirement's name and version, and that the package index is in reach"
    return ""
