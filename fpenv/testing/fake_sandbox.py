"""A sandbox without a machine: files in a dictionary, commands answered by a script.

It enters by the front door, so code under test runs unchanged:

>>> backend = FakeBackend(lambda box, argv: finished(b"hi\\n"))
>>> with backend.start(SandboxSpec(files={"/root/a": b"1"})) as box:
...     box.exec(["echo", "hi"], timeout_s=1).stdout, box.read("/root/a")
(b'hi\\n', (b'1', 1))

It isolates nothing and runs nothing; `spec`, `calls`, `files` and `closed` say what was done to it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from fpenv.errors import SandboxError, SandboxGone
from fpenv.sandbox.sandbox import Collected, ExecResult, OutputSink, SandboxSpec, ServiceHandler

Script = Callable[["FakeSandbox", tuple[str, ...]], ExecResult]
"""Answers a command; may change `box.files`, call `box.call_service`, or end the box with `box.end`."""


def finished(stdout: bytes = b"", stderr: bytes = b"", exit_code: int = 0) -> ExecResult:
    """Return the result of a command that ended by itself."""
    return ExecResult(exit_code, stdout, stderr, timed_out=False, duration_s=0.0)


def timed_out(stdout: bytes = b"", stderr: bytes = b"") -> ExecResult:
    """Return the result of a command that was killed at its time limit."""
    return ExecResult(None, stdout, stderr, timed_out=True, duration_s=0.0)


class FakeBackend:
    """Starts fakes that share a script; `started` holds them. `failure` is raised instead of starting."""

    name = "fake"

    def __init__(self, script: Script | None = None, *, failure: SandboxError | None = None) -> None:
        self._script: Script = script or (lambda box, argv: finished())
        self._failure = failure
        self.started: list[FakeSandbox] = []

    def start(self, spec: SandboxSpec, serve: ServiceHandler | None = None) -> FakeSandbox:
        if self._failure is not None:
            raise self._failure
        self.started.append(FakeSandbox(spec, serve, self._script))
        return self.started[-1]


class FakeSandbox:
    """A sandbox that only pretends. Absolute paths name files; folders are there if a file lies in them."""

    def __init__(self, spec: SandboxSpec, serve: ServiceHandler | None, script: Script) -> None:
        self.spec = spec
        self.files: dict[str, bytes] = {**_read_only_files(spec), **spec.files}
        self.calls: list[tuple[str, ...]] = []
        self.closed = False
        self._serve, self._script = serve, script
        self._gone: SandboxGone | None = None

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
        self.calls.append(tuple(argv))
        result = _cap(self._script(self, tuple(argv)), output_limit)
        self._check()
        for stream, data in (("stdout", result.stdout), ("stderr", result.stderr)):
            if on_output and data:
                on_output(stream, data)  # type: ignore[arg-type]
        return result

    def read(self, path: str, *, offset: int = 0, limit: int = 1 << 20) -> tuple[bytes, int]:
        self._check()
        path = _absolute(path)
        if path not in self.files:
            is_folder = any(name.startswith(path.rstrip("/") + "/") for name in self.files)
            raise _os_error(errno.EISDIR if is_folder else errno.ENOENT, path)
        return self.files[path][offset : offset + limit], len(self.files[path])

    def write(self, path: str, data: bytes) -> None:
        self._check()
        path = _absolute(path)
        if any(path == target or path.startswith(target + "/") for target in self.spec.read_only):
            raise _os_error(errno.EROFS, path)
        self.files[path] = data

    def collect(self, paths: Sequence[str], *, max_bytes: int = 64 << 20) -> Collected:
        self._check()
        files: dict[str, bytes] = {}
        refused: dict[str, str] = {}
        for path in dict.fromkeys(paths):
            content = self.files.get(_absolute(path))
            if content is None:
                refused[path] = "does not exist"
            elif len(content) > max_bytes:
                refused[path] = f"has {len(content)} bytes, {max_bytes} are left"
            else:
                files[path] = content
                max_bytes -= len(content)
        return Collected(files, refused)

    def call_service(self, service: str, request: bytes) -> bytes:
        """Call a service as a process inside would."""
        if self._serve is None or service not in self.spec.services:
            raise AssertionError(f"no service {service!r} in {self.spec.services}")
        return self._serve(service, request)

    def end(self, message: str = "the sandbox has ended", *, by_agent: bool) -> None:
        """Let this and every further call fail as a lost sandbox does."""
        self._gone = SandboxGone(message, by_agent=by_agent)

    def close(self) -> None:
        self.closed = True

    def __enter__(self) -> FakeSandbox:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _check(self) -> None:
        if self._gone is not None:
            raise self._gone
        if self.closed:
            raise SandboxGone("the sandbox is closed")


def _absolute(path: str) -> str:
    return path if path.startswith("/") else f"/root/{path}"


def _os_error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)


def _read_only_files(spec: SandboxSpec) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    for target, source in spec.read_only.items():
        if isinstance(source, Path):
            inside = [source] if source.is_file() else sorted(p for p in source.rglob("*") if p.is_file())
            files |= {str(Path(target) / path.relative_to(source)): path.read_bytes() for path in inside}
        else:
            files |= {f"{target}/{name}": content for name, content in source.items()}
    return files


def _cap(result: ExecResult, limit: int) -> ExecResult:
    """Cut output as a sandbox does."""

    def cut(data: bytes) -> tuple[bytes, int, int]:
        head, left_out = min(len(data), limit // 2), max(0, len(data) - limit)
        return data[:head] + data[head + left_out :], head, left_out

    stdout, stdout_head, stdout_cut = cut(result.stdout)
    stderr, stderr_head, stderr_cut = cut(result.stderr)
    return ExecResult(
        result.exit_code,
        stdout,
        stderr,
        result.timed_out,
        result.duration_s,
        stdout_head,
        stderr_head,
        stdout_cut,
        stderr_cut,
    )
