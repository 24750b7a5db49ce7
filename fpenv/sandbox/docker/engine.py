"""The Docker engine through its SDK, and the only place that imports it: what it says becomes a SandboxError.

Low-level calls only: the SDK's `run` would pull an image that is missing.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import socket
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path
from typing import Any

from fpenv.errors import ConfigError, SandboxError
from fpenv.sandbox.docker.link import StdioLink
from fpenv.sandbox.docker.plan import Host, Image, remove_stage
from fpenv.sandbox.docker.sandbox import Ending

try:
    import docker
    import requests
    from docker.errors import APIError, DockerException, ImageNotFound, NotFound
except ImportError:
    raise ConfigError("the Docker backend needs the package docker: pip install 'fpenv[docker]'") from None

USUAL_ADDRESS = "unix:///var/run/docker.sock"
_OLDEST_API = (1, 41)
_TIMEOUT_S = 120
_BUILD_TIMEOUT_S = 3600
_END_S = 5.0
_POOL = 64
_CHUNK = 1 << 20
_NOT_FOUND = 404
_PROXIES = ("http_proxy", "https_proxy", "no_proxy")
_LAST_LINES = 15
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_START_ONE = "start one (`sudo systemctl start docker`), or set DOCKER_HOST"
_LOAD_IT = "check the name after FROM; where no registry is in reach, `docker load` or `docker import` that image"
_FREE_SPACE = "`docker system prune` frees what Docker no longer uses"

# Part of what is said -> what to do; the first that fits.
_WHEN_OUT_OF_REACH = {
    "permission denied": "may this user use the engine? `sudo usermod -aG docker $USER`, then log in again",
    "connection refused": _START_ONE,
    "no such file or directory": _START_ONE,
    "connection aborted": "has the engine ended? `sudo systemctl status docker`",
    "timed out": "the engine does not answer in time; is the machine overloaded?",
}
_WHEN_REFUSED = {
    "executable file not found": "the image needs bash and a python3 on its PATH, as python:3.11-slim has",
    "/opt/runtime": "the runtime does not fit the image: take one of this host's distribution, or no runtime",
    "could not select device driver": "GPUs need the NVIDIA container toolkit: nvidia-ctk runtime configure",
    "no space left": _FREE_SPACE,
    "bind source path does not exist": "the engine must see the folders of the machine that fpenv runs on",
}
_WHEN_BUILD_FAILED = {
    "toomanyrequests": "the registry limits downloads: wait, or log in",
    "pull access denied": _LOAD_IT,
    "manifest unknown": _LOAD_IT,
    "dial tcp": _LOAD_IT,
    "no such host": _LOAD_IT,
    "no space left": _FREE_SPACE,
}


class Engine:
    """One engine. Every method raises SandboxError for what the engine refuses, or when it is gone."""

    def __init__(self, client: Any, facts: Mapping[str, Any]) -> None:
        self._client = client
        options = " ".join(facts.get("SecurityOptions") or ())
        self.processors = int(facts.get("NCPU") or 1)
        self.maps_users = "name=userns" in options or "name=rootless" in options

    def find_image(self, name: str) -> Image:
        with explained(f"look up the image {name}"):
            try:
                facts = self._client.inspect_image(name)
            except ImageNotFound:
                raise SandboxError(
                    f"the engine has no image {name}: `docker pull {name}`, or build a task's environment "
                    "(fpenv.sandbox.docker.build_image); nothing is pulled unasked"
                ) from None
        config = facts.get("Config") or {}
        if config.get("Volumes"):
            raise SandboxError(
                f"the image {name} declares volumes ({', '.join(config['Volumes'])}), whose size no engine limits: "
                "build it without VOLUME"
            )
        env = dict(pair.split("=", 1) for pair in config.get("Env") or () if "=" in pair)
        return Image(name, str(facts["Id"]), env)

    def create(self, config: Mapping[str, object], host: Host) -> EngineContainer:
        """Create a container; it removes the host's stage when it is removed."""
        return EngineContainer(self._client, config, host)

    def find_labelled(self, label: str) -> list[tuple[str, dict[str, str]]]:
        """Return id and labels of all containers that have a label."""
        with explained("list the containers"):
            found = self._client.containers(all=True, filters={"label": label})
        return [(entry["Id"], entry["Labels"]) for entry in found]

    def remove(self, container: str) -> None:
        """Kill and remove a container; never raises."""
        remove_container(self._client, container)

    def build(self, context: Path, tag: str, say: Callable[[str], None]) -> str:
        """Return the id of the tagged image, built unless it is there."""
        with explained(f"build {context}"):
            if not self._client.images(tag):
                self._build(context, tag, say)
            return str(self._client.inspect_image(tag)["Id"])

    def _build(self, context: Path, tag: str, say: Callable[[str], None]) -> None:
        found = {name.upper(): os.environ.get(name) or os.environ.get(name.upper()) for name in _PROXIES}
        proxies = {name: value for name, value in found.items() if value}
        options = {"rm": True, "forcerm": True, "network_mode": "host", "buildargs": proxies, "decode": True}
        lines: deque[str] = deque(maxlen=_LAST_LINES)
        for message in self._client.build(path=str(context), tag=tag, timeout=_BUILD_TIMEOUT_S, **options):
            lines += [line for line in _COLOUR.sub("", message.get("stream", "")).splitlines() if line.strip()]
            if "stream" in message and lines:
                say(lines[-1])
            if "error" in message:
                said = "\n".join([*lines, str(message["error"])])
                raise SandboxError(
                    f"the image of {context} could not be built:\n{said}{_advise(said, _WHEN_BUILD_FAILED)}"
                )


class EngineContainer:
    """A container by its id, created with its streams attached; it goes when its first process ends."""

    def __init__(self, client: Any, config: Mapping[str, object], host: Host) -> None:
        self._client, self._host = client, host
        with explained("create the container"):
            self.id = str(client.create_container_from_config(dict(config), name=host.name)["Id"])
        try:
            with explained("attach to the container"):
                streams = dict.fromkeys(("stdin", "stdout", "stderr", "stream"), 1)
                attached = client.attach_socket(self.id, params=streams)
            connection: socket.socket = getattr(attached, "_sock", attached)
            self.link = StdioLink(connection, attached._response, attached)
        except BaseException:
            remove_container(client, self.id)
            raise

    def start(self) -> None:
        with explained("start the container"):
            self._client.start(self.id)

    def read_folder(self, folder: str) -> Generator[bytes, None, None]:
        """Yield a tar of what the image has there: before the start nothing is mounted over it."""
        # Not the SDK's own call, which would hold the container for whoever stops reading.
        with explained(f"read {folder} of the image"), self._open(f"/containers/{self.id}/archive", path=folder) as tar:
            if tar.status_code != _NOT_FOUND:
                tar.raise_for_status()
                yield from tar.iter_content(_CHUNK)

    def tell_ending(self, since: float) -> Ending:
        """Read it from the engine's events: the container itself is removed as soon as it has ended."""
        exit_code, killed, starved = None, False, False
        with explained("tell how the container ended"), self._open_events(since) as events:
            for line in events.iter_lines():
                event = json.loads(line)
                killed |= event["Action"] == "kill"
                starved |= event["Action"] == "oom"
                if event["Action"] == "die":
                    exit_code = int(event["Actor"]["Attributes"]["exitCode"])
                elif event["Action"] == "destroy":
                    break
        return Ending(exit_code, killed, starved)

    def _open_events(self, since: float) -> Any:
        # Not the SDK's own call, which waits without a limit.
        filters = json.dumps({"container": [self.id], "type": ["container"]})
        return self._open("/events", since=f"{since:.9f}", until=f"{time.time() + _END_S:.9f}", filters=filters)

    def _open(self, resource: str, **params: str) -> Any:
        address = f"{self._client.base_url}/v{self._client.api_version}{resource}"
        return self._client.get(address, params=params, stream=True, timeout=_TIMEOUT_S)

    def remove(self) -> None:
        remove_container(self._client, self.id)
        self.link.close()
        remove_stage(self._host.stage)


def connect(address: str | None) -> Engine:
    """Return the engine at an address of this machine (default: DOCKER_HOST, else the usual socket)."""
    return _connect(resolve_address(address), os.getpid())


def resolve_address(address: str | None) -> str:
    """Return the engine's address. Raises ConfigError for one that is not on this machine."""
    address = address or os.environ.get("DOCKER_HOST") or USUAL_ADDRESS
    if not address.startswith("unix://"):
        raise ConfigError(
            f"expected a Docker engine on this machine (unix://...), got {address}: "
            "one elsewhere cannot see the folders that sandboxes need"
        )
    return address


@functools.lru_cache(maxsize=8)
def _connect(address: str, process: int) -> Engine:
    with explained(f"reach an engine at {address}"):
        with socket.socket(socket.AF_UNIX) as probe:  # the SDK would leave its socket open, and say less
            probe.settimeout(_TIMEOUT_S)
            probe.connect(address.removeprefix("unix://"))
        client = docker.APIClient(base_url=address, version="auto", timeout=_TIMEOUT_S, num_pools=_POOL)
        facts = client.info()
    if tuple(map(int, client.api_version.split("."))) < _OLDEST_API:
        raise SandboxError(f"expected Docker 20.10 or newer at {address}, got one with API {client.api_version}")
    lacking = [name for name in ("MemoryLimit", "PidsLimit", "CpuCfsQuota") if not facts.get(name)]
    if "name=seccomp" not in " ".join(facts.get("SecurityOptions") or ()):
        lacking.append("seccomp")
    if lacking:
        raise SandboxError(
            f"the Docker engine at {address} cannot enforce {', '.join(lacking)}: a rootless one needs control "
            "groups of version 2 with their controllers delegated to the user"
        )
    return Engine(client, facts)


def remove_container(client: Any, container: str) -> None:
    """Kill and remove; the engine may be removing it already, or may have gone. Never raises."""
    deadline = time.monotonic() + _END_S
    while time.monotonic() < deadline:
        try:
            client.remove_container(container, force=True, v=True)
        except NotFound:
            return
        except APIError as error:
            if error.status_code != 409:
                return
        except (DockerException, requests.RequestException):
            return
        time.sleep(0.005)


@contextlib.contextmanager
def explained(purpose: str) -> Iterator[None]:
    """Turn what the SDK raises into a SandboxError that says what to do."""
    try:
        yield
    except APIError as error:
        said = str(error.explanation or error).strip()
        raise SandboxError(f"Docker could not {purpose}: {said}{_advise(said, _WHEN_REFUSED)}") from None
    except (DockerException, requests.RequestException, OSError) as error:
        raise SandboxError(f"Docker could not {purpose}: {error}{_advise(str(error), _WHEN_OUT_OF_REACH)}") from None


def _advise(said: str, advices: Mapping[str, str]) -> str:
    lowered = said.lower()
    return next((f"\n-> {advice}" for sign, advice in advices.items() if sign in lowered), "")
