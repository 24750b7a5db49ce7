"""The isolated machine in which an episode's commands run: the protocol that every backend keeps.

A backend starts a sandbox from a `SandboxSpec`; `fpenv.testing.sandbox_conformance` holds all backends to
the same behaviour. Inside runs one resident guest: a call is a message over its pipe, never a new container.
The host treats the guest as hostile: bounded lengths, fixed layouts, a deadline on every read.

Errors: `SandboxError` when a sandbox cannot be had or a call is malformed, `SandboxGone` when it has ended
(`by_agent` tells whose doing that was), `FileNotFoundError`, `IsADirectoryError` and `PermissionError` from
`read` and `write` as from a local file system.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

ServiceHandler = Callable[[str, bytes], bytes]
"""Called on the host for a request that a process in the sandbox makes: (service, request) -> reply.

One call at a time, while `exec` runs. Requests and replies are JSON objects of at most 1 MiB; one with the key
"error" is raised inside as `lab.ServiceError`. It must not raise: if it does, `exec` raises that at its end."""

OutputSink = Callable[[Literal["stdout", "stderr"], bytes], None]
"""Receives output while a command runs."""


@dataclass(frozen=True)
class Limits:
    """What a sandbox may use. `processes` counts threads too, as the kernel does."""

    memory_bytes: int = 4 << 30
    disk_bytes: int = 2 << 30
    processes: int = 256
    cpus: float | None = None


@dataclass(frozen=True)
class SandboxSpec:
    """What a sandbox starts from.

    runtime: folder of a built runtime (see `runtime.py`), seen inside as /opt/runtime, its bin first on PATH.
    files: absolute path inside -> content, owned by the agent (workspace: /root). The top folders of other
        paths (/logs for /logs/x/y) become writable; none may belong to the system.
    read_only: absolute path inside -> host folder or file, mounted read-only; or content as a mapping of
        relative paths to bytes, for which the backend makes a read-only folder.
    env: variables for commands beside PATH, HOME=/root, LANG and TMPDIR; the host's are never passed.
    services: names that `exec`'d processes may call: `lab.call(name, {...})` in Python, `lab NAME JSON`.
    """

    runtime: Path | None = None
    files: Mapping[str, bytes] = field(default_factory=dict)
    read_only: Mapping[str, Path | Mapping[str, bytes]] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    services: tuple[str, ...] = ()
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True)
class ExecResult:
    """How a command ended. `exit_code` is None when it was killed at its time limit; -N for signal N.

    Output beyond the cap keeps head and tail in equal halves; `*_cut` is the number of bytes left out,
    between `*_head` bytes of head and the rest.
    """

    exit_code: int | None
    stdout: bytes
    stderr: bytes
    timed_out: bool
    duration_s: float
    stdout_head: int = 0
    stderr_head: int = 0
    stdout_cut: int = 0
    stderr_cut: int = 0


@dataclass(frozen=True)
class Collected:
    """Frozen deliverables: path -> content of each regular file, path -> reason for each one refused."""

    files: Mapping[str, bytes]
    refused: Mapping[str, str]


class Sandbox(Protocol):
    """A running sandbox. Not thread-safe: one caller at a time. A context manager that closes."""

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
        """Run a command to its end or its time limit; then its whole process group is killed.

        A program that cannot be started exits with 127 (there is none) or 126, and stderr says why. What runs
        in the background in a session of its own goes on. `on_output` gets the head as it comes, the tail at
        the end. Text that no process can be given (NUL, lone surrogates) is a SandboxError.
        """
        ...

    def read(self, path: str, *, offset: int = 0, limit: int = 1 << 20) -> tuple[bytes, int]:
        """Return up to `limit` bytes from `offset`, and the file's size."""
        ...

    def write(self, path: str, data: bytes) -> None:
        """Write a file whole as the agent's user, making its folders."""
        ...

    def collect(self, paths: Sequence[str], *, max_bytes: int = 64 << 20) -> Collected:
        """Kill every process inside, then read the named regular files. Nothing can run afterwards.

        Relative paths start at /root. Links, folders, devices, sparse files, files with several links and what
        lies outside of the writable folders are refused; `max_bytes` counts all files together.
        """
        ...

    def close(self) -> None:
        """Kill everything and remove what the sandbox left. Idempotent, never raises."""
        ...

    def __enter__(self) -> Sandbox: ...

    def __exit__(self, *exc: object) -> None: ...


class Backend(Protocol):
    """Starts sandboxes of one kind."""

    name: str

    def start(self, spec: SandboxSpec, serve: ServiceHandler | None = None) -> Sandbox:
        """Start one; `serve` answers the services that `spec.services` names. Raises SandboxError."""
        ...
