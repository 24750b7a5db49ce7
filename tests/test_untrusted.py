"""Strict reading of bytes from a sandbox."""

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fpenv.untrusted import Untrusted, parse_json, show

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(JSON)
def test_json_reads_back(value):
    assert parse_json(json.dumps(value).encode("utf-8", "surrogatepass")) == value


@given(st.binary(max_size=200) | st.text(alphabet='[]{}",:\\0e-. ', max_size=100).map(str.encode))
def test_bytes_are_parsed_or_refused_but_never_crash(data):
    with contextlib.suppress(Untrusted):
        parse_json(data)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'{"a": 1, "a": 2}', "each key once, got 'a' twice"),
        (b'{"x": {"a": 1, "\\u0061": 2}}', "each key once"),
        (b"NaN", "finite number, got NaN"),
        (b"-Infinity", "finite number"),
        (b"1e999", "finite number, got 1e999"),
        (b"1" * 5000, "number of at most 64 characters"),
        (b"[" * 40 + b"]" * 40, "nested at most 32 deep, got 40"),
        (b"[" * 2_000_000, "nested at most 32 deep"),
        (b'"' + b"a" * 9_000_000 + b'"', "at most 8388608 bytes"),
        (b'{"a": 1} trailing', "expected JSON, got Extra data"),
        (b"\xff", "expected UTF-8, got byte 0xff at 0"),
        (b"", "expected JSON"),
        (b'\\"' * 4_000_000, "expected JSON"),
        (b'"' + b'\\"' * 4_000_000, "expected JSON"),
    ],
    ids=range(14),
)
def test_what_is_not_strict_json_is_refused(data, message):
    with pytest.raises(Untrusted, match=message):
        parse_json(data)


def test_brackets_inside_strings_are_not_depth():
    assert parse_json(b'"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[\\"["').count("[") == 41


@given(st.text(), st.integers(20, 200))
def test_shown_text_is_printable_and_short(text, limit):
    shown = show(text, limit)
    assert len(shown) <= limit
    assert all(char.isprintable() or char in "\n\t" for char in shown)


def test_shown_text_escapes_what_could_act_on_a_terminal_or_a_reader():
    assert show("\x1b[31m\u202e\ud800\r\x00") == "\\x1b[31m\\u202e\\ud800\\x0d\\x00"


def test_shown_text_is_the_same_in_every_run():
    first, second = (f"<object at {address}> in /tmp/{name} in {time}s" for address, name, time in (
        ("0x7f00deadbeef", "tmpabcdefgh", "0.12"), ("0x7f11deadbee0", "tmp12345678", "0.34")
    ))  # fmt: skip
    assert show(first) == show(second)
