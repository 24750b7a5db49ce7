"""The sandbox in a Docker container: for tasks whose Dockerfile brings more than Python packages, or that need GPUs.

How it is isolated:

- No network, no capability, no new privileges, not root: each sandbox runs under a user id of its own, with
  the system-call filter of the local backend (no AF_VSOCK, AF_NETLINK, namespaces, keyrings, ptrace).
- The image is read-only; what is writable is tmpfs, each folder limited in size and inodes, and all of it
  counted as memory. Images with volumes are refused: the engine does not limit their size.
- Of the host's files only fpenv's guest, the runtime and what the spec names are mounted, read-only. Mounts
  of the host's system folders and of the engine's socket are refused.
- Memory without swap, processes and processors are limited by the engine; one that cannot is refused.
- The guest is process 1, over the container's own standard streams: a call makes no new container. They
  close when the host process ends, however it ends, and the container then ends and removes itself. `prune`
  removes what a killed process left all the same: a paused or never started container, files.

What it does not protect against: errors in the host's kernel or in the engine; timing and load as a channel
between sandboxes; what /proc and /sys tell everyone (kernel, processors, load, paths of mounted host folders).

The image must be there: nothing is pulled. `build_image` builds one from a task's `environment` folder. Its
own python3 runs the guest, or that of `spec.runtime`, which must fit the image's libraries. What the image has
in a writable folder (/root, /tmp) is copied into each sandbox as the agent's own.

Who ended it, when a call raises SandboxGone: `by_agent` is True when the kernel killed for the sandbox's own
memory limit, when the guest ended by itself with a failure, did not answer in time, or sent what no guest sends.
It is False when the container was killed, stopped or removed from outside, or the engine ended. Until the
guest has started, every failure is a SandboxError.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import random
import re
import secrets
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from fpenv.errors import SandboxError
from fpenv.sandbox.cache import cache_root, provide_folder
from fpenv.sandbox.docker import image_content, owner
from fpenv.sandbox.docker.engine import Engine, EngineContainer, connect, explained, resolve_address
from fpenv.sandbox.docker.link import StdioLink
from fpenv.sandbox.docker.plan import Gpus, Host, Image, device_requests, plan, plan_probe, remove_stage
from fpenv.sandbox.docker.sandbox import START_DEADLINE_S, DockerSandbox
from fpenv.sandbox.rootfs import provide_support
from fpenv.sandbox.sandbox import SandboxSpec, ServiceHandler

__all__ = ["DEFAULT_IMAGE", "DockerBackend", "DockerSandbox", "build_image", "prune"]

DEFAULT_IMAGE = "python:3.11-slim"
OLDEST_PYTHON = (3, 10)
"""The first that takes the guest's annotations as they are written."""

_REPOSITORY = "fpenv-task"
_FIRST_UID, _COUNT = 0x70000000, 1 << 16  # as in lease.py: ids that no distribution hands out
_FIRST_MAPPED_UID, _MAPPED_COUNT = 20000, 40000  # an engine that maps users has 65536 of them
_OWNER_FILE = "owner"
_TOLD_LIMIT = 4096
_COMMAND = """#!/bin/sh
exec python3 -I -c 'import sys; sys.path.insert(0, "/opt/lab/lib"); import lab; sys.exit(lab.main(sys.argv[1:]))' "$@"
"""


class DockerBackend:
    """Starts sandboxes in containers of one image.

    image: name or id of an image that the engine has; gpus: "all", how many, or which ids; address: the
    engine's, which must run on this machine (default: DOCKER_HOST, else the usual socket).
    """

    name = "docker"

    def __init__(self, image: str | None = None, *, gpus: Gpus = None, address: str | None = None) -> None:
        self._image, self._gpus = image or DEFAULT_IMAGE, gpus
        self._address = resolve_address(address)
        device_requests(gpus)

    def start(self, spec: SandboxSpec, serve: ServiceHandler | None = None) -> DockerSandbox:
        if spec.services and serve is None:
            raise SandboxError(f"services {', '.join(spec.services)} are named, but nothing serves them")
        engine = connect(self._address)
        _sweep_once(self._address, os.getpid())
        image = engine.find_image(self._image)
        if spec.runtime is None:
            image = dataclasses.replace(image, site=_find_site(self._address, image.id))
        host = _prepare_host(engine, self._address, has_runtime=spec.runtime is not None)
        try:
            planned = plan(spec, image, host, self._gpus)
            container = engine.create(planned.config, host)
        except BaseException:
            remove_stage(host.stage)
            raise
        try:
            box = DockerSandbox(container, planned.env, spec, serve)
            box.start(_read_seed(container, image, planned.writable))
        except BaseException:
            container.remove()
            raise
        return box


def build_image(context: Path, *, progress: Callable[[str], None] | None = None, address: str | None = None) -> str:
    """Return the id of the image that a folder's Dockerfile builds; built once for each content of the folder.

    The build, and only it, has the host's network. Base images are pulled as by `docker build`. Raises TaskError
    for a folder that is no build context, SandboxError when the build fails.
    """
    context = context.resolve()
    tag = f"{_REPOSITORY}:{image_content.digest_context(context)[:24]}"
    return connect(address).build(context, tag, progress or (lambda line: None))


def prune(*, address: str | None = None) -> list[str]:
    """Remove the containers and files of processes that have ended, and nothing else; return their names.

    What another boot or machine made is left alone: this process cannot judge whether it is in use.
    """
    engine = connect(address)
    removed = set()
    for container, labels in engine.find_labelled(owner.OWNER_LABEL):
        if owner.is_gone(labels[owner.OWNER_LABEL]):
            engine.remove(container)
            removed.add(labels.get(owner.NAME_LABEL, container))
    for stage in _stages().iterdir():
        with contextlib.suppress(OSError):
            if owner.is_gone((stage / _OWNER_FILE).read_text()):
                remove_stage(stage)
                removed.add(stage.name)
    return sorted(removed)


@functools.lru_cache(maxsize=64)
def _sweep_once(address: str, process: int) -> None:
    prune(address=address)


def _prepare_host(engine: Engine, address: str, *, has_runtime: bool) -> Host:
    """Make what a container gets from this host. The caller removes the stage."""
    first, count = (_FIRST_MAPPED_UID, _MAPPED_COUNT) if engine.maps_users else (_FIRST_UID, _COUNT)
    support = provide_support()
    if not has_runtime:
        support = provide_folder(cache_root() / f"docker-{support.name}", functools.partial(_build_support, support))
    name = f"fpenv-{secrets.token_hex(12)}"
    stage = _stages() / name
    stage.mkdir(mode=0o700)
    (stage / _OWNER_FILE).write_text(owner.describe_owner())
    uid = first + random.SystemRandom().randrange(count)
    return Host(name, uid, stage, support, engine.processors, Path(address.removeprefix("unix://")))


def _stages() -> Path:
    """Return where sandboxes have files on this host. Nobody else looks in; a container enters by its mounts."""
    folder = cache_root() / "docker"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def _build_support(original: Path, folder: Path) -> None:
    """Make /opt/lab for an image's own python, which lies we do not know where."""
    shutil.copytree(original, folder, dirs_exist_ok=True)
    (folder / "bin/lab").write_text(_COMMAND)


@functools.lru_cache(maxsize=256)
def _find_site(address: str, image_id: str) -> str:
    """Return where an image's python3 looks for packages. Raises SandboxError if it has none that will do."""
    engine = connect(address)
    image = engine.find_image(image_id)
    host = _prepare_host(engine, address, has_runtime=False)
    container = None
    try:
        container = engine.create(plan_probe(image, host), host)
        container.start()
        told, said = _hear_out(container.link)
    finally:
        if container:
            container.remove()
        remove_stage(host.stage)
    match = re.fullmatch(r"(\d+) (\d+) (/\S+)\n", told)
    if match is None:
        raise SandboxError(f"the image {image_id[:19]} has no python3 that works: {said or told or 'no message'}")
    if (int(match[1]), int(match[2])) < OLDEST_PYTHON:
        oldest = ".".join(map(str, OLDEST_PYTHON))
        raise SandboxError(
            f"the image {image_id[:19]} has Python {match[1]}.{match[2]}, fpenv's guest needs {oldest}: use a newer "
            "image, or give the sandbox a runtime of its own"
        )
    return match[3]


def _hear_out(link: StdioLink) -> tuple[str, str]:
    """Return what a container says until it ends: stdout and stderr."""
    told, deadline = b"", time.monotonic() + START_DEADLINE_S
    with explained("ask the image's python3"):
        while len(told) < _TOLD_LIMIT and (data := link.receive(deadline)):
            told += data
    return told.decode(errors="replace"), link.stderr.decode(errors="replace").strip()


_seeds: dict[tuple[str, tuple[str, ...]], bytes] = {}


def _read_seed(container: EngineContainer, image: Image, folders: tuple[str, ...]) -> bytes:
    """Return what the image has in folders that a sandbox's own mounts hide; read once for each image."""
    folders = tuple(folder for folder in folders if folder.count("/") == 1)
    key = (image.id, folders)
    if key not in _seeds:
        held = (
            (folder, image_content.join_chunks(container.read_folder(folder), folder, image.name)) for folder in folders
        )
        _seeds[key] = image_content.pack_seed((folder, data) for folder, data in held if data)
    return _seeds[key]
