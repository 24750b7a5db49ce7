"""Talks to a guest over any two-way byte link: the calls of a sandbox, whatever it runs in.

A backend supplies the `Link` and decides what a broken channel means. Every wait has a deadline, and every
answer is bounded by what was asked for: whoever took over the guest could send anything.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

from fpenv.errors import SandboxError
from fpenv.sandbox import frames, guest
from fpenv.sandbox.frames import Frame, FrameParser, ProtocolError
from fpenv.sandbox.sandbox import Collected, ExecResult, OutputSink, ServiceHandler

GRACE_S = 30.0
"""How much longer than a command's time limit its end may take: killing, reaping, an overloaded machine."""

FILE_DEADLINE_S = 60.0
BASE_ENV = {
    "PATH": "/opt/runtime/bin:/opt/lab/bin:/usr/bin:/bin:/usr/sbin:/sbin",
    "HOME": "/root",
    "LANG": "C.UTF-8",
    "TMPDIR": "/tmp",
}
_STDIN_LIMIT = 64 << 20
_OUTPUT_LIMIT = 64 << 20
_STREAM_NAMES: dict[int, Literal["stdout", "stderr"]] = {guest.STDOUT: "stdout", guest.STDERR: "stderr"}

BreakCause = Literal["end", "timeout", "protocol", "resources", "crash"]


class ChannelBroken(Exception):
    """The guest does not answer any more. `cause` says how that was noticed."""

    def __init__(self, text: str, *, cause: BreakCause = "end") -> None:
        super().__init__(text)
        self.cause: BreakCause = cause


class Link(Protocol):
    """A two-way byte stream with deadlines on the monotonic clock; both calls may raise OSError."""

    def send(self, data: bytes, deadline: float) -> None: ...

    def receive(self, deadline: float) -> bytes:
        """Return what has come, b"" at the end of the stream. Raises TimeoutError."""
        ...


class GuestChannel:
    """The calls that a guest serves. Raises ChannelBroken once it no longer does, at every call."""

    def __init__(
        self, link: Link, *, env: Mapping[str, str], services: Sequence[str], serve: ServiceHandler | None
    ) -> None:
        self._link, self._services, self._serve = link, services, serve
        self._env = {**BASE_ENV, **env}
        self._parser = FrameParser()
        self._call = 0
        self._service_failure: Exception | None = None

    def await_ready(self, deadline: float) -> None:
        """Wait until the guest has started."""
        frame = self._receive(deadline)
        if frame.kind != guest.READY or frame.head(guest.LENGTH) != (guest.VERSION,):
            raise ChannelBroken("the guest did not greet as expected", cause="protocol")

    def exec(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        cwd: str,
        env: Mapping[str, str] | None,
        stdin: bytes,
        output_limit: int,
        on_output: OutputSink | None,
    ) -> ExecResult:
        variables = {**self._env, **env} if env else self._env
        payload = _pack_exec(argv, timeout_s, cwd, variables, stdin, output_limit)
        deadline = time.monotonic() + timeout_s + GRACE_S
        self._send(guest.EXEC, payload, deadline)
        patience = deadline
        outputs = {guest.STDOUT: bytearray(), guest.STDERR: bytearray()}
        while True:
            frame = self._receive(patience)
            if frame.kind in outputs:
                output = outputs[frame.kind]
                output += frame.payload
                if len(output) > max(output_limit, _TEXT_OUTPUT):
                    raise ChannelBroken("more output than was asked for", cause="protocol")
                if on_output:
                    on_output(_STREAM_NAMES[frame.kind], frame.payload)
            elif frame.kind == guest.CALL:
                self._answer(frame, deadline)
                patience = max(deadline, time.monotonic() + GRACE_S)
            elif frame.kind == guest.EXITED:
                return self._finish(frame, bytes(outputs[guest.STDOUT]), bytes(outputs[guest.STDERR]))
            else:
                self._raise_failure(frame, "")

    def read(self, path: str, *, offset: int, limit: int) -> tuple[bytes, int]:
        if offset < 0 or limit < 0:
            raise SandboxError(f"expected offset and limit of at least 0, got {offset} and {limit}")
        deadline = time.monotonic() + FILE_DEADLINE_S
        head = guest.READ_HEAD.pack(min(offset, 2**62), min(limit, 2**62))
        self._send(guest.READ, head + _inside(path), deadline)
        content = bytearray()
        while True:
            frame = self._receive(deadline)
            if frame.kind == guest.DATA:
                content += frame.payload
                if len(content) > limit:
                    raise ChannelBroken("more of a file than was asked for", cause="protocol")
            elif frame.kind == guest.END:
                return bytes(content), frame.head(guest.END_HEAD)[0]
            else:
                self._raise_failure(frame, path)

    def write(self, path: str, data: bytes) -> None:
        name = _inside(path)
        for offset in range(0, max(len(data), 1), frames.WRITE_CHUNK):
            deadline = time.monotonic() + FILE_DEADLINE_S
            head = guest.WRITE_HEAD.pack(offset, len(name))
            self._send(guest.WRITE, head + name + data[offset : offset + frames.WRITE_CHUNK], deadline)
            frame = self._receive(deadline)
            if frame.kind != guest.DONE:
                self._raise_failure(frame, path)

    def collect(self, paths: Sequence[str], *, max_bytes: int) -> Collected:
        paths = list(dict.fromkeys(paths))
        deadline = time.monotonic() + FILE_DEADLINE_S
        head = guest.COLLECT_HEAD.pack(max_bytes)
        self._send(guest.COLLECT, head + frames.pack_strings(map(_inside, paths)), deadline)
        return _CollectReader(paths, max_bytes).read(self, deadline)

    # One frame at a time

    def _send(self, kind: int, payload: bytes, deadline: float) -> None:
        self._call = self._call % 0xFFFFFFFF + 1
        self._send_frame(frames.pack_frame(kind, self._call, payload), deadline)

    def _send_frame(self, data: bytes, deadline: float) -> None:
        try:
            self._link.send(data, deadline)
        except TimeoutError:
            raise ChannelBroken("the guest takes no more calls", cause="timeout") from None
        except OSError as error:
            raise ChannelBroken(f"the pipe to the guest broke: {error.strerror}") from None

    def _receive(self, deadline: float) -> Frame:
        """Return the next frame that belongs to this call."""
        try:
            while True:
                frame = self._parser.next()
                if frame is None:
                    data = self._link.receive(deadline)
                    if not data:
                        raise ChannelBroken("the guest has ended")
                    self._parser.feed(data)
                elif frame.kind == guest.FATAL:
                    text = frame.payload.decode(errors="replace")[:200]
                    starved = text.startswith(("MemoryError", "OSError", "BlockingIOError"))
                    raise ChannelBroken(f"the guest failed: {text}", cause="resources" if starved else "crash")
                elif frame.call == self._call:
                    return frame
        except TimeoutError:
            raise ChannelBroken("the guest does not answer", cause="timeout") from None
        except ProtocolError as error:
            raise ChannelBroken(f"the guest sent nonsense: {error}", cause="protocol") from None
        except OSError as error:
            raise ChannelBroken(f"the pipe to the guest broke: {error.strerror}") from None

    def _answer(self, frame: Frame, deadline: float) -> None:
        """Let the host's handler answer a service call. If it raises, exec does once the command has ended.

        A slow handler does not count against the guest, but past the deadline no further call is taken.
        """
        if time.monotonic() > deadline:
            raise ChannelBroken("the guest goes on calling services past its time", cause="timeout")
        try:
            connection, name, request = frames.parse_service_call(frame)
        except ProtocolError as error:
            raise ChannelBroken(f"the guest sent nonsense: {error}", cause="protocol") from None
        reply = self._ask_service(name, request)
        if len(reply) > guest.MESSAGE_LIMIT:
            reply = _error_reply(f"the reply has {len(reply)} bytes, {guest.MESSAGE_LIMIT} may be sent")
        deadline = max(deadline, time.monotonic() + GRACE_S)
        self._send_frame(frames.pack_frame(guest.REPLY, connection, reply), deadline)

    def _ask_service(self, name: str, request: bytes) -> bytes:
        if self._serve is None or name not in self._services:
            known = ", ".join(self._services) or "none"
            return _error_reply(f"no service {name!r}; there are: {known}")
        try:
            return self._serve(name, request)
        except Exception as error:
            self._service_failure = error
            return _error_reply(f"the service {name!r} failed")

    def _finish(self, frame: Frame, stdout: bytes, stderr: bytes) -> ExecResult:
        status, timed_out, duration_s, out_head, out_cut, err_head, err_cut = frame.head(guest.EXITED_HEAD)
        if self._service_failure is not None:
            failure, self._service_failure = self._service_failure, None
            raise failure
        return ExecResult(
            exit_code=None if timed_out else status,
            stdout=stdout,
            stderr=stderr,
            timed_out=bool(timed_out),
            duration_s=duration_s if math.isfinite(duration_s) else 0.0,
            stdout_head=min(out_head, len(stdout)),
            stderr_head=min(err_head, len(stderr)),
            stdout_cut=out_cut,
            stderr_cut=err_cut,
        )

    def _raise_failure(self, frame: Frame, path: str) -> None:
        """Raise what a FAILED frame says; any other kind has no place in an answer."""
        if frame.kind != guest.FAILED:
            raise ChannelBroken(f"the guest sent a frame of kind {frame.kind} out of place", cause="protocol")
        number = frame.head(guest.FAILED_HEAD)[0]
        if not path:
            raise SandboxError(f"the command could not be run: {frame.text(guest.FAILED_HEAD)}")
        raise OSError(number, frame.text(guest.FAILED_HEAD), path)


class _CollectReader:
    """Assembles the answer to a collect call."""

    def __init__(self, paths: Sequence[str], max_bytes: int) -> None:
        self._paths, self._left = paths, max_bytes
        self._files: dict[str, bytes] = {}
        self._refused: dict[str, str] = {}

    def read(self, channel: GuestChannel, deadline: float) -> Collected:
        while (frame := channel._receive(deadline)).kind != guest.DONE:
            if frame.kind == guest.REFUSED:
                (index,) = frame.head(guest.REFUSED_HEAD)
                self._refused[self._path(index)] = frame.text(guest.REFUSED_HEAD)
            elif frame.kind == guest.FILE:
                index, size = frame.head(guest.FILE_HEAD)
                path = self._path(index)
                self._files[path] = self._content(channel, size, deadline)
            else:
                channel._raise_failure(frame, self._paths[0] if self._paths else "/root")
        missing = set(self._paths) - set(self._files) - set(self._refused)
        if missing:
            raise ChannelBroken("the guest left deliverables out", cause="protocol")
        return Collected(self._files, self._refused)

    def _path(self, index: int) -> str:
        path = self._paths[index] if index < len(self._paths) else None
        if path is None or path in self._files or path in self._refused:
            raise ChannelBroken("the guest collected what was not asked for", cause="protocol")
        return path

    def _content(self, channel: GuestChannel, size: int, deadline: float) -> bytes:
        if size > self._left:
            raise ChannelBroken("the guest collected more than was allowed", cause="protocol")
        self._left -= size
        content = bytearray()
        while len(content) < size:
            frame = channel._receive(deadline)
            if frame.kind != guest.DATA or not frame.payload or len(content) + len(frame.payload) > size:
                raise ChannelBroken("the guest sent a file in the wrong way", cause="protocol")
            content += frame.payload
        return bytes(content)


_TEXT_OUTPUT = 8192  # why a command could not start, however small the output limit


def _pack_exec(
    argv: Sequence[str],
    timeout_s: float,
    cwd: str,
    env: Mapping[str, str],
    stdin: bytes,
    output_limit: int,
) -> bytes:
    if isinstance(argv, str) or not argv:
        raise SandboxError(f"expected a non-empty sequence of arguments, got {argv!r}")
    if not (math.isfinite(timeout_s) and timeout_s > 0):
        raise SandboxError(f"expected a time limit of more than 0 s, got {timeout_s}")
    if len(stdin) > _STDIN_LIMIT:
        raise SandboxError(f"expected at most {_STDIN_LIMIT} bytes of stdin, got {len(stdin)}")
    if not 0 <= output_limit <= _OUTPUT_LIMIT:
        raise SandboxError(f"expected an output limit of 0 to {_OUTPUT_LIMIT} bytes, got {output_limit}")
    strings = [_inside(cwd), *map(_encode, argv)]
    strings += [_encode(f"{name}={value}") for name, value in env.items()]
    head = guest.EXEC_HEAD.pack(timeout_s, output_limit, len(argv), len(env))
    return head + frames.pack_strings([*strings, stdin])


def _inside(path: str) -> bytes:
    """Return a path inside as bytes; a relative one starts at the workspace."""
    if not path:
        raise SandboxError("expected a path, got an empty string")
    return _encode(path if path.startswith("/") else f"/root/{path}")


def _encode(text: str) -> bytes:
    try:
        encoded = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise SandboxError(f"expected a text that UTF-8 can hold, got {text[:80]!r}") from None
    if b"\0" in encoded:
        raise SandboxError(f"expected a text without NUL characters, got {text[:80]!r}")
    return encoded


def _error_reply(text: str) -> bytes:
    return json.dumps({"error": text}).encode()
