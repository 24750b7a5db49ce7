"""Calls host services from inside the sandbox: `import lab; lab.call("name", {...})`, or the command `lab`.

This file is bound into every sandbox as the module `lab` (and is run by the command of that name). Standard
library only. A request and its reply are JSON objects of at most 1 MiB; calls are answered one at a time.
"""

import json
import socket
import struct
import sys

SOCKET = "/run/fpenv/services.sock"
LIMIT = 1 << 20


class ServiceError(Exception):
    """The service refused the request, or there is no such service; the message says why."""


def call(service: str, request: dict[str, object]) -> dict[str, object]:
    """Send a request to a service and return its reply. Raises ServiceError."""
    name, body = service.encode(), json.dumps(request).encode()
    if len(body) > LIMIT:
        raise ServiceError(f"a request may have {LIMIT} bytes, this one has {len(body)}")
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(SOCKET)
        except OSError as error:
            raise ServiceError(f"no services here: {error.strerror}") from None
        try:
            connection.sendall(struct.pack("<HI", len(name), len(body)) + name + body)
            (length,) = struct.unpack("<I", _receive(connection, 4))
            reply: dict[str, object] = json.loads(_receive(connection, length))
        except OSError as error:
            raise ServiceError(f"the connection broke: {error.strerror}") from None
    if "error" in reply:
        raise ServiceError(str(reply["error"]))
    return reply


def _receive(connection: socket.socket, length: int) -> bytes:
    parts = []
    while length:
        data = connection.recv(min(length, 1 << 16))
        if not data:
            raise ServiceError("the service gave no reply")
        parts.append(data)
        length -= len(data)
    return b"".join(parts)


def main(arguments: list[str]) -> int:
    """`lab SERVICE [JSON]`: print the reply: JSON, or a manual as text.

    Returns 1 if the service refused, 2 if the request is no JSON object.
    """
    if not arguments or len(arguments) > 2 or arguments[0] in ("-h", "--help"):
        print("usage: lab SERVICE [JSON-OBJECT]", file=sys.stderr)
        return 2
    try:
        request = json.loads(arguments[1]) if len(arguments) == 2 else {}
    except ValueError as error:
        print(f"lab: expected a JSON object, {error}", file=sys.stderr)
        return 2
    if not isinstance(request, dict):
        print(f"lab: expected a JSON object, got {type(request).__name__}", file=sys.stderr)
        return 2
    try:
        reply = call(arguments[0], request)
    except ServiceError as error:
        print(f"lab: {error}", file=sys.stderr)
        return 1
    print(reply["manual"] if list(reply) == ["manual"] else json.dumps(reply))
    return 0
