"""Reading what came out of a sandbox: strict JSON, and text that is safe to keep and to show.

Whatever a deliverable could have touched is read here: bounded in size and depth before it is parsed,
duplicate keys refused, numbers finite. Text keeps no control character, no escape sequence and nothing
that differs between two runs of the same bytes.
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from typing import Any

MAX_NUMBER_LENGTH = 64


class Untrusted(ValueError):
    """The bytes are not what was agreed. The message says what was expected and what came."""


def parse_json(data: bytes, *, max_bytes: int = 8 << 20, max_depth: int = 32) -> Any:
    """Parse UTF-8 JSON strictly. Raises Untrusted, never anything else, in time linear in the input."""
    if len(data) > max_bytes:
        raise Untrusted(f"expected at most {max_bytes} bytes of JSON, got {len(data)}")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Untrusted(f"expected UTF-8, got byte {data[error.start]:#04x} at {error.start}") from None
    depth = _depth(text)
    if depth > max_depth:
        raise Untrusted(f"expected JSON nested at most {max_depth} deep, got {depth}")
    try:
        return json.loads(
            text,
            object_pairs_hook=_unique,
            parse_int=_integer,
            parse_float=_finite,
            parse_constant=_no_constant,
        )
    except json.JSONDecodeError as error:
        raise Untrusted(f"expected JSON, got {error.msg} at character {error.pos}") from None


def show(text: str, limit: int = 2000) -> str:
    """Make text fit to keep: repeatable, without control, format or surrogate characters, at most `limit` long."""
    kept = _repeatable(text[: 8 * limit])
    escaped = "".join(c if c in "\n\t" or c.isprintable() else _escape(c) for c in kept)
    if len(escaped) <= limit and len(text) <= 8 * limit:
        return escaped
    return escaped[: max(limit - 14, 0)] + " … (cut short)"


def _repeatable(text: str) -> str:
    """Blank what differs between two runs: addresses, random temporary names, durations."""
    text = re.sub(r"\b0x[0-9a-fA-F]{6,16}\b", "0x…", text)
    text = re.sub(r"\btmp[a-z0-9_]{8}\b", "tmp…", text)
    return re.sub(r"\bin \d+\.\d+s\b", "in …s", text)


def _escape(char: str) -> str:
    if unicodedata.category(char) == "Zs":
        return " "
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _depth(text: str) -> int:
    depth = deepest = 0
    # A string is matched to its end or to the text's, so that nothing is scanned twice.
    for token in re.finditer(r'"(?:[^"\\]|\\.)*+"?|[\[{\]}]', text, re.DOTALL):
        first = token[0][0]
        if first in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif first in "]}":
            depth -= 1
    return deepest


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise Untrusted(f"expected each key once, got {show(twice, 80)!r} twice")
    return found


def _integer(text: str) -> int:
    if len(text) > MAX_NUMBER_LENGTH:
        raise Untrusted(f"expected a number of at most {MAX_NUMBER_LENGTH} characters, got {len(text)}")
    return int(text)


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise Untrusted(f"expected a finite number, got {show(text, 40)}")
    return value


def _no_constant(text: str) -> float:
    raise Untrusted(f"expected a finite number, got {text}")
