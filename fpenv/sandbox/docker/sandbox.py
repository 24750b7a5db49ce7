"""A sandbox in a container: the calls of the protocol, and whose doing it was when the guest is gone.

Without the engine's SDK: what it needs of the container is `Container`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from fpenv.errors import SandboxError, SandboxGone
from fpenv.sandbox.channel import ChannelBroken, GuestChannel
from fpenv.sandbox.docker.image_content import UNPACK
from fpenv.sandbox.docker.link import StdioLink
from fpenv.sandbox.sandbox import Collected, ExecResult, OutputSink, SandboxSpec, ServiceHandler

START_DEADLINE_S = 60.0
_FILL_TIMEOUT_S = 120.0
_SIGKILLED = 137


@dataclass(frozen=True)
class Ending:
    """What the engine tells of a container's end. `exit_code` is None where it knows of none."""

    exit_code: int | None
    was_killed: bool = False
    ran_out_of_memory: bool = False


class Container(Protocol):
    """A created container with its streams attached."""

    link: StdioLink

    def start(self) -> None: ...

    def tell_ending(self, since: float) -> Ending:
        """Return how it ended, and what happened since that wall-clock time. Raises SandboxError."""
        ...

    def remove(self) -> None:
        """Kill all in it and remove what it left. Idempotent, never raises."""
        ...


class DockerSandbox:
    """A sandbox in a container; see `docker.py` for what it promises."""

    def __init__(
        self, container: Container, env: Mapping[str, str], spec: SandboxSpec, serve: ServiceHandler | None
    ) -> None:
        self._container, self._spec = container, spec
        self._channel = GuestChannel(container.link, env=env, services=spec.services, serve=serve)
        self._owner = os.getpid()
        self._ended: SandboxGone | None = None
        self._well_at = time.time()

    def exec(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        cwd: str = "/root",
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        output_limit: int = 64 << 10,
        on_output: OutputSink | None = None,
    ) -> ExecResult:
        self._check()
        try:
            result = self._channel.exec(
                argv,
                timeout_s=timeout_s,
                cwd=cwd,
                env=env,
                stdin=stdin,
                output_limit=output_limit,
                on_output=on_output,
            )
        except ChannelBroken as broken:
            raise self._lose(broken) from None
        # Kills that the sandbox has survived say nothing about what ends it later.
        self._well_at = time.time()
        return result

    def read(self, path: str, *, offset: int = 0, limit: int = 1 << 20) -> tuple[bytes, int]:
        self._check()
        try:
            return self._channel.read(path, offset=offset, limit=limit)
        except ChannelBroken as broken:
            raise self._lose(broken) from None

    def write(self, path: str, data: bytes) -> None:
        self._check()
        try:
            self._channel.write(path, data)
        except ChannelBroken as broken:
            raise self._lose(broken) from None

    def collect(self, paths: Sequence[str], *, max_bytes: int = 64 << 20) -> Collected:
        self._check()
        try:
            return self._channel.collect(paths, max_bytes=max_bytes)
        except ChannelBroken as broken:
            raise self._lose(broken) from None

    def close(self) -> None:
        if self._ended is None:
            self._ended = SandboxGone("the sandbox is closed")
            if self._owner == os.getpid():
                self._container.remove()

    def __enter__(self) -> DockerSandbox:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def start(self, seed: bytes) -> None:
        """Start the container, greet its guest, and lay in what the image and the spec have for it.

        Raises SandboxError, and then nothing is left of it.
        """
        try:
            self._container.start()
            self._channel.await_ready(time.monotonic() + START_DEADLINE_S)
            self._fill(seed)
        except ChannelBroken as broken:
            said = self._container.link.stderr.decode(errors="replace").strip()
            self.close()
            raise SandboxError(f"the sandbox did not start: {broken} {said}".strip()) from None
        except BaseException:
            self.close()
            raise

    def _fill(self, seed: bytes) -> None:
        if seed:
            fixed = [path.rstrip("/") for path in self._spec.read_only]
            self._run_inside(["python3", "-I", "-S", "-c", UNPACK, *fixed], seed, "unpack what the image holds")
        for path, content in self._spec.files.items():
            try:
                self._channel.write(path, content)
            except OSError as error:
                raise SandboxError(f"{path} could not be written into the sandbox: {error.strerror}") from None
        scripts = [path for path, content in self._spec.files.items() if content.startswith(b"#!")]
        if scripts:
            self._run_inside(["chmod", "755", *scripts], b"", "make scripts executable")

    def _run_inside(self, argv: Sequence[str], stdin: bytes, purpose: str) -> None:
        done = self._channel.exec(
            argv,
            timeout_s=_FILL_TIMEOUT_S,
            cwd="/",
            env=None,
            stdin=stdin,
            output_limit=4096,
            on_output=None,
        )
        if done.exit_code != 0:
            said = done.stderr.decode(errors="replace").strip()[-500:]
            raise SandboxError(f"the sandbox could not {purpose}: {said or 'no message'}; is its disk limit too small?")

    def _check(self) -> None:
        if self._ended is not None:
            raise SandboxGone(str(self._ended), by_agent=self._ended.by_agent)

    def _lose(self, broken: ChannelBroken) -> SandboxGone:
        """End what is left of a sandbox that no longer answers, and say whose doing it was."""
        self._ended = SandboxGone(str(broken))
        if broken.cause != "end":
            self._ended = SandboxGone(f"{broken}: what ran inside is to blame", by_agent=True)
        else:
            self._ended = self._judge(broken)
        if self._owner == os.getpid():
            self._container.remove()
        return self._ended

    def _judge(self, broken: ChannelBroken) -> SandboxGone:
        try:
            ending = self._container.tell_ending(self._well_at)
        except SandboxError as error:
            return SandboxGone(f"the sandbox was lost with its engine: {error}")
        if ending.was_killed:
            return SandboxGone("the container was killed or removed from outside")
        if ending.ran_out_of_memory:
            return SandboxGone("the sandbox ran out of its memory and was killed", by_agent=True)
        if ending.exit_code in (None, _SIGKILLED):
            # No signal from inside ends the first process.
            return SandboxGone("the container was killed from outside")
        if ending.exit_code == 0:
            # The guest ends like this when its pipe closes, which nothing inside can bring about.
            return SandboxGone("the connection to the sandbox was lost")
        return SandboxGone(f"the guest ended with status {ending.exit_code}: {broken}", by_agent=True)
