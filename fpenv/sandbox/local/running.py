"""A started sandbox as the host sees it: bubblewrap's outer process, the guest, and the pipe to it."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fpenv.errors import SandboxError
from fpenv.sandbox.local import isolation
from fpenv.sandbox.local.launcher import Launcher

START_DEADLINE_S = 60.0
_END_DEADLINE_S = 10.0
_CREDENTIALS = struct.Struct("iii")
_RECEIVE = 64 << 10  # beyond 128 KiB each buffer would be mapped and unmapped


class SocketLink:
    """A socket to the guest, with deadlines."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._held = b""

    def send(self, data: bytes, deadline: float) -> None:
        self._socket.settimeout(max(deadline - time.monotonic(), 0.001))
        self._socket.sendall(data)

    def receive(self, deadline: float) -> bytes:
        if self._held:
            data, self._held = self._held, b""
            return data
        self._socket.settimeout(max(deadline - time.monotonic(), 0.001))
        return self._socket.recv(_RECEIVE)

    def identify_peer(self, deadline: float) -> int:
        """Return the sender of the first bytes, as the kernel tells it; they are kept. 0 at the end."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._socket.settimeout(max(deadline - time.monotonic(), 0.001))
        self._held, ancillary, _, _ = self._socket.recvmsg(_RECEIVE, socket.CMSG_SPACE(_CREDENTIALS.size))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 0)
        for _, kind, data in ancillary:
            if self._held and kind == socket.SCM_CREDENTIALS:
                return int(_CREDENTIALS.unpack(data)[0])
        return 0

    def close(self) -> None:
        self._socket.close()


@dataclass
class Running:
    """The processes of a sandbox by descriptor, so that no id can come to mean another process."""

    launcher: Launcher
    outer_pid: int
    outer_fd: int
    link: SocketLink
    stderr_fd: int
    guest_pid: int = -1
    guest_fd: int = -1

    def end(self, *, kill: bool) -> int | None:
        """Wait until everything inside is dead and return how bubblewrap ended, None if that is unknown.

        kill: end it now; otherwise it is ending by itself and gets a moment to tell its own status.
        """
        if self.guest_fd >= 0:
            if kill:
                _kill(self.guest_fd)
            _wait(self.guest_fd, _END_DEADLINE_S)
        elif kill:
            _kill(self.outer_fd)
        if not _wait(self.outer_fd, 1.0):
            _kill(self.outer_fd)
            _wait(self.outer_fd, _END_DEADLINE_S)
        try:
            return self.launcher.reap(self.outer_pid)
        except SandboxError:
            return None

    def release(self) -> None:
        self.link.close()
        for fd in (self.outer_fd, self.guest_fd, self.stderr_fd):
            if fd >= 0:
                os.close(fd)


def launch(launcher: Launcher, request: Mapping[str, object], contents: Sequence[bytes]) -> Running:
    """Start bubblewrap and wait for the guest's first words. Raises SandboxError."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    stderr_read, stderr_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    os.set_blocking(stderr_write, True)
    try:
        pid = launcher.start(request, contents, theirs.fileno(), stderr_write)
        running = Running(launcher, pid, os.pidfd_open(pid), SocketLink(ours), stderr_read)
    except BaseException:
        ours.close()
        os.close(stderr_read)
        raise
    finally:
        theirs.close()
        os.close(stderr_write)
    try:
        running.guest_pid = running.link.identify_peer(time.monotonic() + START_DEADLINE_S)
        if running.guest_pid > 0:
            running.guest_fd = os.pidfd_open(running.guest_pid)
            return running
        status = running.end(kill=False)
        said = _read_all(stderr_read)
        running.release()
        raise SandboxError(isolation.explain_failure(said, status))
    except OSError as error:
        running.end(kill=True)
        said = _read_all(stderr_read)
        running.release()
        raise SandboxError(f"the sandbox did not start: {error} {said}".strip()) from None


def _read_all(fd: int) -> str:
    with contextlib.suppress(OSError):
        return os.read(fd, 1 << 16).decode(errors="replace").strip()
    return ""


def _kill(fd: int) -> None:
    with contextlib.suppress(OSError):
        signal.pidfd_send_signal(fd, signal.SIGKILL)


def _wait(fd: int, timeout_s: float) -> bool:
    """Wait for the end of a process; say whether it came."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(timeout_s * 1000))
