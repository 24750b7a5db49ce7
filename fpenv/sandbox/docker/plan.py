"""What a container is created with: from a spec to the engine's own terms, without an engine.

the image              read-only; /etc/passwd, group, hosts and resolv.conf are ours
/opt/lab, /opt/runtime read-only folders of the host
read_only              read-only, without what is mounted below; copied where others may not read them
/root, /tmp, and the top folders of other files: a tmpfs each, of the spec's size
/run, /dev/shm, /var/tmp: a tmpfs each, of a small size

Every byte in a tmpfs counts as memory, so the memory limit bounds all of them together with the processes.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from fpenv.errors import ConfigError, SandboxError
from fpenv.sandbox.cache import open_to_all
from fpenv.sandbox.channel import BASE_ENV
from fpenv.sandbox.docker import owner
from fpenv.sandbox.docker.seccomp import build_profile
from fpenv.sandbox.sandbox import Limits, SandboxSpec
from fpenv.sandbox.targets import check_target, overlaps, readable_by_all

Gpus = str | int | Sequence[str] | None
"""None, "all", how many, or which (ids or indices as the driver names them)."""

_SYSTEM = ("/usr", "/etc", "/proc", "/dev", "/sys", "/opt/lab", "/opt/runtime", "/run", "/var/tmp")
_MERGED = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_NEVER_MOUNTED = ("/proc", "/sys", "/dev", "/etc", "/boot", "/run", "/var/run", "/var/lib/docker")
_WRITABLE = ("/root", "/tmp")
_SCRATCH = ("/run", "/dev/shm", "/var/tmp")
_SCRATCH_BYTES = 64 << 20
_SHARED = ("/tmp", "/dev/shm", "/var/tmp")
_BYTES_PER_INODE = 8192
_FEWEST_INODES = 16384
_OPEN_FILES = 4096
_COPY_LIMIT = 64 << 20
_IMAGE_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PROBE = "import site, sys; print(*sys.version_info[:2], site.getsitepackages()[0])"
_GUEST = "import sys;sys.path.insert(0,'/opt/lab/guest');import guest;guest.main({},{})"


@dataclass(frozen=True)
class Image:
    """An image as the engine knows it. `site` is where its python3 looks for packages, if it was asked."""

    name: str
    id: str
    env: Mapping[str, str]
    site: str = ""


@dataclass(frozen=True)
class Host:
    """What a sandbox gets from this host: a name, a user id, its own folder, the guest's files, processors."""

    name: str
    uid: int
    stage: Path
    support: Path
    processors: int
    socket: Path


@dataclass(frozen=True)
class Plan:
    """A container to create, the folders that are writable in it (inner ones first), variables for its commands."""

    config: dict[str, Any]
    writable: tuple[str, ...]
    env: dict[str, str]


def plan(spec: SandboxSpec, image: Image, host: Host, gpus: Gpus = None) -> Plan:
    """Plan a container; makes files in the host's stage. Raises SandboxError for a spec that cannot be."""
    tops = _top_folders(spec)
    writable = (*_between(spec, (*_WRITABLE, *tops)), *_WRITABLE, *tops)
    path = ("/opt/runtime/bin:" if spec.runtime else "") + "/opt/lab/bin:" + image.env.get("PATH", _IMAGE_PATH)
    python = "/opt/runtime/bin/python3" if spec.runtime else "python3"
    code = _GUEST.format(json.dumps(writable), bool(spec.services))
    config = _describe(image, host, [python, "-I", "-S", "-B", "-c", code], spec.limits)
    config["HostConfig"] |= {
        "Mounts": _mounts(spec, image, host),
        "Tmpfs": _tmpfs(writable, spec.limits.disk_bytes, host.uid),
        "DeviceRequests": device_requests(gpus),
    }
    kept = {name: value for name, value in image.env.items() if name not in BASE_ENV}
    return Plan(config, writable, {**kept, "PATH": path, **spec.env})


def plan_probe(image: Image, host: Host) -> dict[str, Any]:
    """Plan a container that tells version and package folder of the image's python3."""
    return _describe(image, host, ["python3", "-I", "-c", _PROBE], Limits(memory_bytes=256 << 20, processes=8))


def _describe(image: Image, host: Host, command: Sequence[str], limits: Limits) -> dict[str, Any]:
    """Return what all containers have in common, in the terms of the engine's API."""
    return {
        "Image": image.id,
        "Entrypoint": command,
        "Cmd": [],
        "User": f"{host.uid}:{host.uid}",
        "WorkingDir": "/",
        "Hostname": "sandbox",
        "Tty": False,
        "OpenStdin": True,
        "StdinOnce": True,
        "AttachStdin": True,
        "AttachStdout": True,
        "AttachStderr": True,
        "NetworkDisabled": True,
        "StopSignal": "SIGKILL",
        "Healthcheck": {"Test": ["NONE"]},
        "Labels": {owner.NAME_LABEL: host.name, owner.OWNER_LABEL: owner.describe_owner()},
        "HostConfig": {**_isolation(), **_limits(limits, host.processors)},
    }


def device_requests(gpus: Gpus) -> list[dict[str, object]]:
    """Return what asks the engine for GPUs. Raises ConfigError."""
    if gpus is None:
        return []
    if isinstance(gpus, int) and not isinstance(gpus, bool) and gpus > 0:
        wanted: dict[str, object] = {"Count": gpus}
    elif gpus == "all":
        wanted = {"Count": -1}
    elif isinstance(gpus, Sequence) and not isinstance(gpus, str) and gpus and all(isinstance(g, str) for g in gpus):
        wanted = {"DeviceIDs": list(gpus)}
    else:
        raise ConfigError(f'gpus: expected None, "all", a number of at least 1 or a list of ids, got {gpus!r}')
    return [{**wanted, "Capabilities": [["gpu", "compute", "utility"]]}]


def _isolation() -> dict[str, object]:
    return {
        "NetworkMode": "none",
        "IpcMode": "private",
        "PidMode": "",
        "UTSMode": "",
        "CgroupnsMode": "private",
        "Privileged": False,
        "PublishAllPorts": False,
        "ReadonlyRootfs": True,
        "CapDrop": ["ALL"],
        "CapAdd": [],
        "SecurityOpt": ["no-new-privileges:true", f"seccomp={build_profile()}"],
        "Init": False,
        "AutoRemove": True,
        "RestartPolicy": {"Name": "no"},
        "LogConfig": {"Type": "none"},  # or the engine would keep all that guest and host say
        "OomKillDisable": False,
    }


def _limits(limits: Limits, processors: int) -> dict[str, object]:
    bounds: dict[str, object] = {
        "Memory": limits.memory_bytes,
        "MemorySwap": limits.memory_bytes,  # memory and swap together: no swap
        "PidsLimit": limits.processes + 1,  # and the guest
        "Ulimits": [_ulimit("nofile", _OPEN_FILES), _ulimit("core", 0), _ulimit("memlock", 8 << 20)],
    }
    if limits.cpus is not None:
        # The engine refuses more than there are.
        bounds["NanoCpus"] = round(min(limits.cpus, processors) * 1e9)
    return bounds


def _ulimit(name: str, value: int) -> dict[str, object]:
    return {"Name": name, "Soft": value, "Hard": value}


def _tmpfs(writable: Sequence[str], disk_bytes: int, uid: int) -> dict[str, str]:
    sizes = dict.fromkeys(writable, disk_bytes)
    sizes |= dict.fromkeys(_SCRATCH, min(disk_bytes, _SCRATCH_BYTES))
    return {
        folder: f"rw,exec,nosuid,nodev,size={size},nr_inodes={max(_FEWEST_INODES, size // _BYTES_PER_INODE)},"
        f"mode={'1777' if folder in _SHARED else '0755'},uid={uid},gid={uid}"
        for folder, size in sizes.items()
    }


def _top_folders(spec: SandboxSpec) -> tuple[str, ...]:
    """Return the folders besides the usual ones that the spec's files make writable. Raises SandboxError."""
    tops: dict[str, None] = {}
    for path in spec.files:
        checked = check_target(path)
        if not any(checked.is_relative_to(folder) for folder in (*_WRITABLE, *_SCRATCH)):
            folder = f"/{checked.parts[1]}"
            if len(checked.parts) < 3 or any(overlaps(folder, other) for other in (*_SYSTEM, *_MERGED)):
                raise SandboxError(f"a file at {path} is not possible: its folder is part of the system")
            tops[folder] = None
    return tuple(tops)


def _between(spec: SandboxSpec, tops: Sequence[str]) -> list[str]:
    """Return the folders between a writable one and what is mounted deep in it, inner ones first.

    The engine would make them as root's. As mounts of their own they are the agent's, like what is around them.
    """
    found = set()
    for target in spec.read_only:
        parents = check_target(target).parents
        found |= {str(parent) for parent in parents for top in tops if PurePosixPath(top) in parent.parents}
    return sorted(found, reverse=True)


def _mounts(spec: SandboxSpec, image: Image, host: Host) -> list[dict[str, object]]:
    mounts = [bind(host.support, "/opt/lab")]
    if spec.runtime:
        _check_source(spec.runtime.resolve(), host.socket)
        mounts.append(bind(spec.runtime.resolve(), "/opt/runtime"))
    elif image.site:
        mounts.append(bind(_put(host.stage / "lab.pth", b"/opt/lab/lib\n"), f"{image.site}/fpenv-lab.pth"))
    for name, text in _etc(host.uid).items():
        mounts.append(bind(_put(host.stage / name, text.encode()), f"/etc/{name}"))
    for number, (target, source) in enumerate(sorted(spec.read_only.items())):
        if any(overlaps(str(check_target(target)), folder) for folder in (*_SYSTEM, *_MERGED)):
            raise SandboxError(f"{target} cannot be mounted read-only: it is part of the system")
        mounts.append(bind(_provide(source, host.stage / f"fixed-{number}", host.socket), target))
    return mounts


def bind(source: Path, target: str) -> dict[str, object]:
    """Mount a host folder or file read-only; what is mounted below it would be writable, so it is left out."""
    options = {"NonRecursive": True, "Propagation": "rprivate"}
    return {"Type": "bind", "Source": str(source), "Target": target, "ReadOnly": True, "BindOptions": options}


def _etc(uid: int) -> dict[str, str]:
    """Accounts of our own, and nothing of the host's names and servers."""
    return {
        "passwd": f"root:x:0:0:root:/nonexistent:/usr/sbin/nologin\nagent:x:{uid}:{uid}::/root:/bin/bash\n"
        "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
        "group": f"root:x:0:\nagent:x:{uid}:\nnogroup:x:65534:\n",
        "hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
        "hostname": "sandbox\n",
        "resolv.conf": "",
    }


def _provide(source: Path | Mapping[str, bytes], made: Path, socket: Path) -> Path:
    """Return the host folder or file to mount: the source, or a copy that the sandbox's user may read."""
    if isinstance(source, Mapping):
        made.mkdir()
        for relative, content in source.items():
            _put(made / check_target(f"/{relative}").relative_to("/"), content)
        open_to_all(made)
        return made
    source = source.resolve()
    _check_source(source, socket)
    return source if readable_by_all(source) else _copy(source, made)


def _check_source(source: Path, socket: Path) -> None:
    """Refuse what would hand the host to the sandbox."""
    if not source.exists():
        raise SandboxError(f"{source} is to be mounted read-only, but does not exist")
    if not (source.is_dir() or source.is_file()):
        raise SandboxError(f"{source} cannot be mounted: expected a folder or a regular file")
    for other in (*_NEVER_MOUNTED, str(socket), str(socket.resolve())):
        if overlaps(str(source), other):
            raise SandboxError(f"{source} cannot be mounted: it would show {other} of the host to the sandbox")


def _put(path: Path, content: bytes, *, executable: bool = False) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    path.chmod(0o755 if executable or content.startswith(b"#!") else 0o644)
    return path


def _copy(source: Path, made: Path) -> Path:
    files = {made: source}
    if source.is_dir():
        made.mkdir()
        inside = (path for path in sorted(source.rglob("*")) if path.is_file())
        # A link that leads out would hand over what only the host's user may read.
        files = {made / path.relative_to(source): path for path in inside if path.resolve().is_relative_to(source)}
    size = sum(path.stat().st_size for path in files.values())
    if size > _COPY_LIMIT:
        raise SandboxError(
            f"others may not read all of {source}, and with {size >> 20} MiB it is too large to copy: "
            f"`chmod -R a+rX {source}`"
        )
    for target, path in files.items():
        _put(target, path.read_bytes(), executable=os.access(path, os.X_OK))
    open_to_all(made)
    return made


def remove_stage(stage: Path) -> None:
    """Remove what a plan has made on the host."""
    shutil.rmtree(stage, ignore_errors=True)
