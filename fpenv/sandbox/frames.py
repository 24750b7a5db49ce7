"""The host's side of the guest's pipe: frames out, and a parser for what a hostile guest may send back.

The layout lives in `guest.py`, which must stay a single file. Everything read here is checked before it is
used: the kind, the length, the fixed head of the payload. A violation is a `ProtocolError`; the caller ends
the sandbox.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from struct import Struct

from fpenv.sandbox import guest

PAYLOAD_LIMIT = guest.MESSAGE_LIMIT + 1024
"""Longest payload taken from a guest: a service request with its head."""

WRITE_CHUNK = 1 << 20
_TEXT_LIMIT = 4096

_SMALLEST_PAYLOAD = {
    guest.READY: guest.LENGTH.size,
    guest.STDOUT: 0,
    guest.STDERR: 0,
    guest.EXITED: guest.EXITED_HEAD.size,
    guest.DATA: 0,
    guest.END: guest.END_HEAD.size,
    guest.DONE: 0,
    guest.FAILED: guest.FAILED_HEAD.size,
    guest.CALL: guest.CALL_HEAD.size,
    guest.FILE: guest.FILE_HEAD.size,
    guest.REFUSED: guest.REFUSED_HEAD.size,
    guest.FATAL: 0,
}


class ProtocolError(Exception):
    """The guest sent what no guest of ours sends."""


@dataclass(frozen=True)
class Frame:
    """One message from the guest."""

    kind: int
    call: int
    payload: bytes

    def head(self, layout: Struct) -> tuple[int, ...]:
        """Unpack the fixed head; the parser has checked that it is there."""
        return layout.unpack_from(self.payload)

    def text(self, layout: Struct) -> str:
        """What follows the head, as a short printable text."""
        text = self.payload[layout.size :][:_TEXT_LIMIT].decode(errors="replace")
        return "".join(char if char.isprintable() else "?" for char in text)


class FrameParser:
    """Cuts a byte stream into frames; holds at most one incomplete frame.

    >>> parser = FrameParser()
    >>> parser.feed(pack_frame(guest.DONE, 7)[:3])
    >>> list(parser.frames())
    []
    >>> parser.feed(pack_frame(guest.DONE, 7)[3:])
    >>> [frame.call for frame in parser.frames()]
    [7]
    """

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> None:
        self._buffer += data

    def frames(self) -> Iterator[Frame]:
        """Yield the complete frames so far. Raises ProtocolError at the first bad header."""
        while (frame := self.next()) is not None:
            yield frame

    def next(self) -> Frame | None:
        """Return the next complete frame, None if more bytes are needed. Raises ProtocolError."""
        if len(self._buffer) < guest.HEADER.size:
            return None
        kind, call, length = guest.HEADER.unpack_from(self._buffer)
        smallest = _SMALLEST_PAYLOAD.get(kind)
        if smallest is None:
            raise ProtocolError(f"frame of unknown kind {kind}")
        if not smallest <= length <= PAYLOAD_LIMIT:
            raise ProtocolError(f"frame of kind {kind} with {length} bytes")
        end = guest.HEADER.size + length
        if len(self._buffer) < end:
            return None
        payload = bytes(self._buffer[guest.HEADER.size : end])
        del self._buffer[:end]
        return Frame(kind, call, payload)


def pack_frame(kind: int, call: int, *parts: bytes) -> bytes:
    """Return one frame as bytes."""
    payload = b"".join(parts)
    return guest.HEADER.pack(kind, call, len(payload)) + payload


def pack_strings(strings: Iterable[bytes]) -> bytes:
    """Return the strings one after another, each behind its length."""
    return b"".join(guest.LENGTH.pack(len(string)) + string for string in strings)


def parse_service_call(frame: Frame) -> tuple[int, str, bytes]:
    """Return connection, service and request of a CALL frame. Raises ProtocolError."""
    connection, length = frame.head(guest.CALL_HEAD)
    start = guest.CALL_HEAD.size
    if start + length > len(frame.payload):
        raise ProtocolError("a service call shorter than its name")
    name = frame.payload[start : start + length].decode(errors="replace")
    return connection, name, frame.payload[start + length :]
