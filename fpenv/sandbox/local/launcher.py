"""The host's handle on the launcher process (`stage.py`): one for each host process, started when needed.

A fork of the host process gets a launcher of its own. The launcher is started from a thread that lives as
long as the process, because the kernel ends it when its parent thread ends.
"""

from __future__ import annotations

import array
import atexit
import json
import os
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from fpenv.errors import SandboxError

_ANSWER_TIMEOUT_S = 30.0
_LOADER = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
"""What this interpreter may need to start at all; sandboxes get nothing of it."""


class Launcher:
    """Starts processes on stages of their own, and tells how they ended."""

    def __init__(self) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.settimeout(_ANSWER_TIMEOUT_S)
        self._lock = threading.Lock()
        started = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._failure: OSError | None = None

        def hold_process() -> None:
            command = [sys.executable, "-I", "-S", str(Path(__file__).with_name("stage.py"))]
            try:
                self._process = subprocess.Popen(
                    [*command, str(theirs.fileno()), str(os.getpid())],
                    stdin=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,  # a Ctrl-C in the terminal is not meant for it
                    env=_LOADER,
                    cwd="/",
                )
            except OSError as error:
                self._failure = error
            started.set()
            threading.Event().wait()

        threading.Thread(target=hold_process, name="fpenv-launcher", daemon=True).start()
        started.wait()
        theirs.close()
        if self._failure:
            raise SandboxError(f"the launcher process could not be started: {self._failure}")

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self, request: Mapping[str, object], contents: Sequence[bytes], pipe_fd: int, stderr_fd: int) -> int:
        """Start a process as `stage.run_child` describes and return its id."""
        encoded = json.dumps(request).encode()
        request_fd = os.memfd_create("fpenv-request", os.MFD_CLOEXEC)
        try:
            with open(request_fd, "wb", closefd=False) as file:
                file.writelines([struct.pack("<I", len(encoded)), encoded, *contents])
            os.lseek(request_fd, 0, os.SEEK_SET)
            reply = self._ask(b"start", [request_fd, pipe_fd, stderr_fd])
        finally:
            os.close(request_fd)
        return int(reply["pid"])

    def reap(self, pid: int) -> int | None:
        """Return how a started process ended (-N: by signal N), None if it has not."""
        return self._ask(json.dumps({"reap": pid}).encode(), [])["status"]

    def close(self) -> None:
        """End the launcher, and with it everything that it started."""
        self._control.close()
        if self._process:
            self._process.kill()
            self._process.wait()

    def disown(self) -> None:
        """Forget the launcher: it belongs to the process that this one was forked from."""
        self._control.close()
        if self._process:
            self._process.returncode = 0

    def _ask(self, message: bytes, fds: list[int]) -> dict[str, int]:
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        with self._lock:
            try:
                self._control.sendmsg([message], ancillary)
                data = self._control.recv(1 << 16)
            except OSError as error:
                raise SandboxError(f"the launcher process does not answer: {error}") from None
        if not data:
            raise SandboxError("the launcher process has ended")
        reply = json.loads(data)
        if "error" in reply:
            raise SandboxError(f"the launcher process failed: {reply['error']}")
        return dict(reply)


_launcher: Launcher | None = None
_launcher_lock = threading.Lock()


def get_launcher() -> Launcher:
    """Return this process's launcher, started anew if it has ended."""
    global _launcher
    with _launcher_lock:
        if _launcher is None or not _launcher.alive:
            if _launcher:
                _launcher.close()
            _launcher = Launcher()
        return _launcher


def _close() -> None:
    if _launcher:
        _launcher.close()


def _forget_after_fork() -> None:
    global _launcher, _launcher_lock
    _launcher_lock = threading.Lock()
    if _launcher:
        _launcher.disown()
        _launcher = None


atexit.register(_close)
os.register_at_fork(after_in_child=_forget_after_fork)
