"""The parser of what a guest sends, which may be anything."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fpenv.sandbox import guest
from fpenv.sandbox.frames import PAYLOAD_LIMIT, Frame, FrameParser, ProtocolError, pack_frame, parse_service_call

KINDS = range(guest.READY, guest.FATAL + 1)


@st.composite
def frames(draw: st.DrawFn) -> Frame:
    # Long enough for the head of every kind.
    payload = draw(st.binary(min_size=64, max_size=300))
    return Frame(draw(st.sampled_from(KINDS)), draw(st.integers(0, 2**32 - 1)), payload)


@settings(database=None)
@given(st.lists(frames(), max_size=8), st.data())
def test_frames_survive_any_cut_of_the_stream(sent: list[Frame], data: st.DataObject) -> None:
    stream = b"".join(pack_frame(frame.kind, frame.call, frame.payload) for frame in sent)
    parser, received = FrameParser(), []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        parser.feed(stream[:size])
        received += parser.frames()
        stream = stream[size:]
    assert received == sent


@settings(database=None)
@given(st.lists(st.binary(max_size=200), max_size=10))
def test_any_bytes_give_checked_frames_or_a_protocol_error(chunks: list[bytes]) -> None:
    parser = FrameParser()
    try:
        for chunk in chunks:
            parser.feed(chunk)
            for frame in parser.frames():
                assert frame.kind in KINDS
                assert len(frame.payload) <= PAYLOAD_LIMIT
    except ProtocolError:
        pass


@settings(database=None)
@given(st.binary(max_size=100))
def test_a_service_call_is_parsed_or_refused(payload: bytes) -> None:
    frame = Frame(guest.CALL, 1, payload.ljust(guest.CALL_HEAD.size, b"\0"))
    try:
        _, name, request = parse_service_call(frame)
    except ProtocolError:
        return
    assert len(name) <= len(frame.payload)
    assert frame.payload.endswith(request)


@pytest.mark.parametrize(
    ("header", "match"),
    [
        (guest.HEADER.pack(0, 1, 0), "unknown kind 0"),
        (guest.HEADER.pack(guest.EXEC, 1, 0), "unknown kind 1"),
        (guest.HEADER.pack(255, 1, 0), "unknown kind 255"),
        (guest.HEADER.pack(guest.DATA, 1, PAYLOAD_LIMIT + 1), "bytes"),
        (guest.HEADER.pack(guest.STDOUT, 1, 2**32 - 1), "4294967295 bytes"),
        (guest.HEADER.pack(guest.EXITED, 1, guest.EXITED_HEAD.size - 1), "bytes"),
    ],
)
def test_a_bad_header_is_refused_before_its_payload_comes(header: bytes, match: str) -> None:
    parser = FrameParser()
    parser.feed(header)
    with pytest.raises(ProtocolError, match=match):
        parser.next()


def test_texts_of_the_guest_are_short_and_printable() -> None:
    frame = Frame(guest.REFUSED, 1, guest.REFUSED_HEAD.pack(0) + b"\x1b[31mred\n\xff" + b"x" * 100_000)
    text = frame.text(guest.REFUSED_HEAD)
    assert text.isprintable()
    assert len(text) <= 4096
