"""The pipe to a guest in a container: the attached standard streams of its first process, on one connection.

The engine marks what comes with the stream it came from: a head of 8 bytes, then that many bytes.
"""

from __future__ import annotations

import socket
import time
from struct import Struct
from typing import Protocol

_HEAD = Struct(">BxxxI")  # stream, length
_STDERR = 2
_KEPT = 4096
_RECEIVE = 1 << 18


class Closable(Protocol):
    def close(self) -> None: ...


class StdioLink:
    """A link to what runs in a container. `stderr` is the last of what it wrote there.

    held: what must stay open as long as the link, such as the response that became the connection.
    """

    def __init__(self, connection: socket.socket, *held: Closable) -> None:
        self._socket, self._held = connection, held
        self._head = b""
        self._left, self._from = 0, 0
        self.stderr = b""

    def send(self, data: bytes, deadline: float) -> None:
        self._socket.settimeout(max(deadline - time.monotonic(), 0.001))
        self._socket.sendall(data)

    def receive(self, deadline: float) -> bytes:
        """Return what has come on stdout, b"" at its end. Raises TimeoutError."""
        while True:
            self._socket.settimeout(max(deadline - time.monotonic(), 0.001))
            data = self._socket.recv(_RECEIVE)
            if not data:
                return b""
            stdout = self._divide(data)
            if stdout:
                return stdout

    def close(self) -> None:
        for thing in (*self._held, self._socket):
            thing.close()

    def _divide(self, data: bytes) -> bytes:
        """Return the part of stdout, keep the part of stderr."""
        stdout = []
        at = 0
        while at < len(data):
            if not self._left:
                need = _HEAD.size - len(self._head)
                self._head += data[at : at + need]
                at += need
                if len(self._head) == _HEAD.size:
                    self._from, self._left = _HEAD.unpack(self._head)
                    self._head = b""
                continue
            part = data[at : at + self._left]
            at += len(part)
            self._left -= len(part)
            if self._from == _STDERR:
                self.stderr = (self.stderr + part)[-_KEPT:]
            else:
                stdout.append(part)
        return b"".join(stdout)
