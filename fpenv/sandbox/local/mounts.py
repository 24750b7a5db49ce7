"""What a sandbox's root file system is made of, as arguments for bubblewrap and a request for the stage.

/usr, /bin, /lib...    the host's, read-only; /usr/local, Python packages and hidden paths are masked
/etc, /opt/lab         folders of ours, read-only
/opt/runtime           the task's runtime, read-only
/proc, /dev            private, minimal
/root, /tmp, /run, /dev/shm, and the top folders of other files: writable, one size and inode limit
everything else        a tmpfs that is read-only once it is set up
"""

from __future__ import annotations

import functools
import json
import os
import stat
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fpenv.errors import SandboxError
from fpenv.sandbox import rootfs
from fpenv.sandbox.local import stage
from fpenv.sandbox.local.bwrap import Bwrap
from fpenv.sandbox.sandbox import Limits, SandboxSpec
from fpenv.sandbox.targets import check_target, overlaps, readable_by_all

_SYSTEM = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_WRITABLE = {"root": "/root", "tmp": "/tmp", "shm": "/dev/shm", "run": "/run"}
_RESERVED = ("/usr", "/etc", "/proc", "/dev", "/sys", "/opt/lab", "/opt/runtime", "/run", *_SYSTEM)
_MASKED_PATTERNS = ("lib*/python3*/dist-packages", "lib*/python3*/site-packages", "share/python-wheels")
_BYTES_PER_INODE = 8192
_FEWEST_INODES = 16384
_COPY_LIMIT = 64 << 20
_OWN_PROCESSES = 2
"""Bubblewrap's outer process and the guest."""

_GUEST = "import sys;sys.path.insert(0,'/opt/lab/guest');import guest;guest.main({},{})"


def default_hidden_paths() -> tuple[Path, ...]:
    """Return the folders that hold fpenv, its tasks and its environment: no sandbox may see into them."""
    package = Path(__file__).resolve().parents[2]
    hidden = {package, Path(sys.prefix).resolve()} if sys.prefix != sys.base_prefix else {package}
    if (package.parent / "pyproject.toml").is_file():
        hidden.add(package.parent)
    return tuple(sorted(hidden))


@dataclass
class Layout:
    """Collects what goes where. Targets are absolute paths inside."""

    folders: list[tuple[str, int]] = field(default_factory=list)
    files: list[tuple[str, int, int]] = field(default_factory=list)
    contents: list[bytes] = field(default_factory=list)
    arguments: list[str] = field(default_factory=list)
    writable: list[str] = field(default_factory=list)

    def add_file(self, path: str, content: bytes, *, executable: bool = False) -> None:
        """Put a file on the stage; what starts like a script may be executed."""
        executable = executable or content.startswith(b"#!")
        self.files.append((path, len(content), 0o755 if executable else 0o644))
        self.contents.append(content)


def plan(spec: SandboxSpec, runtime: Path, hidden: Iterable[Path]) -> Layout:
    """Lay out a sandbox. Raises SandboxError where the spec names a path that cannot be."""
    layout = Layout()
    _add_system(layout, hidden)
    layout.arguments += ["--ro-bind", str(runtime.resolve()), "/opt/runtime"]
    layout.arguments += ["--proc", "/proc", "--ro-bind", "/proc/sys", "/proc/sys", "--dev", "/dev"]
    _add_writable(layout, spec)
    _add_read_only(layout, spec)
    layout.arguments += ["--symlink", "/tmp", "/var/tmp", "--remount-ro", "/dev", "--remount-ro", "/"]
    return layout


def stage_request(
    layout: Layout, spec: SandboxSpec, bwrap: Bwrap, bpf: bytes, *, uid: int | None, data_limit: bool
) -> dict[str, object]:
    """Return what the launcher is asked to start; see `stage.run_child`.

    data_limit: no memory cgroup holds, so let no single process have more than the whole sandbox may.
    """
    size = spec.limits.disk_bytes + sum(map(len, layout.contents))
    inodes = max(_FEWEST_INODES, spec.limits.disk_bytes // _BYTES_PER_INODE) + 2 * len(layout.files)
    return {
        "argv": [str(bwrap.path), *ISOLATION, *layout.arguments, "--", *_guest_command(layout, spec)],
        "limits": _resource_limits(spec.limits, data_limit),
        "folders": layout.folders,
        "files": layout.files,
        "stage": str(rootfs.provide_stage()),
        "size": size,
        "inodes": inodes,
        "uid": uid,
        "filter": bpf.hex(),
    }


ISOLATION = (
    "--unshare-all",
    "--unshare-user",
    "--disable-userns",
    "--uid",
    str(rootfs.AGENT_ID),
    "--gid",
    str(rootfs.AGENT_ID),
    "--hostname",
    "sandbox",
    "--die-with-parent",
    "--new-session",
    "--as-pid-1",
    "--clearenv",
    "--cap-drop",
    "ALL",
    "--seccomp",
    str(stage.SECCOMP_FD),
    "--chdir",
    "/",
)


def _guest_command(layout: Layout, spec: SandboxSpec) -> list[str]:
    code = _GUEST.format(json.dumps(layout.writable), bool(spec.services))
    return ["/opt/runtime/bin/python3", "-I", "-S", "-B", "-c", code]


def _resource_limits(limits: Limits, data_limit: bool) -> dict[str, int]:
    """Limits that every process of the sandbox inherits; processes count for its user namespaces together."""
    inherited = {"RLIMIT_NPROC": limits.processes + _OWN_PROCESSES, "RLIMIT_NOFILE": 4096, "RLIMIT_CORE": 0}
    return inherited | ({"RLIMIT_DATA": limits.memory_bytes} if data_limit else {})


def _add_system(layout: Layout, hidden: Iterable[Path]) -> None:
    """Bind the host's system folders; they belong to root and everyone may read them."""
    layout.arguments += ["--ro-bind", "/usr", "/usr"]
    bound = ["/usr"]
    for folder in _SYSTEM:
        if os.path.islink(folder):
            layout.arguments += ["--symlink", os.readlink(folder), folder]
        elif os.path.isdir(folder):
            layout.arguments += ["--ro-bind", folder, folder]
            bound.append(folder)
    for path in _masked(tuple(bound), tuple(hidden)):
        # --tmpfs would be writable: an empty folder of ours is not.
        layout.arguments += ["--ro-bind", str(rootfs.provide_empty()), str(path)]
    layout.arguments += ["--ro-bind", str(rootfs.provide_etc()), "/etc"]
    layout.arguments += ["--ro-bind", str(rootfs.provide_support()), "/opt/lab"]


@functools.cache
def _masked(bound: tuple[str, ...], hidden: tuple[Path, ...]) -> list[Path]:
    """Return the folders under bound ones that must look empty, outermost only."""
    masked = {Path("/usr/local")}
    for pattern in _MASKED_PATTERNS:
        masked.update(Path("/usr").glob(pattern))
    for path in hidden:
        if path.is_dir() and any(path.is_relative_to(folder) for folder in bound):
            masked.add(path)
    real = sorted({path.resolve() for path in masked if path.is_dir()})
    return [path for path in real if not any(other in path.parents for other in real)]


def _add_writable(layout: Layout, spec: SandboxSpec) -> None:
    """Put files on the stage and bind its folders: the usual ones, and the top folders of other files."""
    targets = {target: name for name, target in _WRITABLE.items()}
    for path, content in spec.files.items():
        checked = check_target(path)
        folder = next((folder for folder in targets if checked.is_relative_to(folder)), None)
        if folder is None:
            folder = f"/{checked.parts[1]}"
            if len(checked.parts) < 3 or any(overlaps(folder, other) for other in (*_RESERVED, "/opt")):
                raise SandboxError(f"a file at {path} is not possible: its folder is part of the system")
            targets[folder] = f"top-{checked.parts[1]}"
        layout.add_file(f"{targets[folder]}/{checked.relative_to(folder)}", content)
    for target, name in targets.items():
        layout.folders.append((name, 0o1777 if target in ("/tmp", "/dev/shm") else 0o755))
        layout.arguments += ["--bind", f"{rootfs.provide_stage()}/{name}", target]
    layout.writable = [target for target in targets if target not in ("/run", "/dev/shm")]


def _add_read_only(layout: Layout, spec: SandboxSpec) -> None:
    for number, (target, source) in enumerate(sorted(spec.read_only.items())):
        if any(overlaps(str(check_target(target)), folder) for folder in _RESERVED):
            raise SandboxError(f"{target} cannot be mounted read-only: it is part of the system")
        if isinstance(source, Path) and not source.exists():
            raise SandboxError(f"{source} is to be mounted read-only, but does not exist")
        name = f"fixed/{number}"
        if isinstance(source, Mapping):
            layout.folders.append((name, 0o755))
            for relative, content in source.items():
                layout.add_file(f"{name}{check_target(f'/{relative}')}", content)
            mounted = f"{rootfs.provide_stage()}/{name}"
        elif _open_to_all(source.resolve()):
            mounted = str(source.resolve())
        else:
            _copy(layout, source.resolve(), name)
            mounted = f"{rootfs.provide_stage()}/{name}"
        layout.arguments += ["--ro-bind", mounted, target]


def _open_to_all(source: Path) -> bool:
    """Say whether any user can reach and read all of a folder or file; only root's sandboxes need that."""
    if os.geteuid() != 0:
        return True
    if not all(parent.stat().st_mode & stat.S_IXOTH for parent in source.parents):
        return False
    return readable_by_all(source)


def _copy(layout: Layout, source: Path, name: str) -> None:
    """Put a copy of a host folder or file on the stage, for a user who could not read the original."""
    files = {name: source}
    if source.is_dir():
        layout.folders.append((name, 0o755))
        inside = (path for path in sorted(source.rglob("*")) if path.is_file())
        # A link that leads out would hand over what root may read.
        files = {f"{name}/{p.relative_to(source)}": p for p in inside if p.resolve().is_relative_to(source)}
    size = sum(path.stat().st_size for path in files.values())
    if size > _COPY_LIMIT:
        raise SandboxError(
            f"others may not read all of {source}, and with {size >> 20} MiB it is too large to copy: "
            f"`chmod -R a+rX {source}`, and open the folders above it"
        )
    for target, path in files.items():
        layout.add_file(target, path.read_bytes(), executable=os.access(path, os.X_OK))
