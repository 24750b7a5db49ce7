"""What the host makes of a guest that has been taken over: bounded, typed, in time."""

import contextlib
import json
import time
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fpenv.errors import SandboxError
from fpenv.sandbox import guest
from fpenv.sandbox.channel import ChannelBroken, GuestChannel
from fpenv.sandbox.frames import pack_frame
from fpenv.sandbox.sandbox import ExecResult

EXITED = guest.EXITED_HEAD.pack(0, False, 0.1, 0, 0, 0, 0)


class ScriptedLink:
    """Answers with bytes made beforehand; `sent` holds what the host said."""

    def __init__(self, *answers: bytes | Exception) -> None:
        self._answers = iter(answers)
        self.sent: list[bytes] = []

    def send(self, data: bytes, deadline: float) -> None:
        self.sent.append(data)

    def receive(self, deadline: float) -> bytes:
        answer = next(self._answers, b"")
        if isinstance(answer, Exception):
            raise answer
        return answer


def channel(*answers: bytes | Exception, serve: Callable[[str, bytes], bytes] | None = None) -> GuestChannel:
    return GuestChannel(ScriptedLink(*answers), env={}, services=("echo",), serve=serve)


def run(guest_channel: GuestChannel, output_limit: int = 100) -> ExecResult:
    return guest_channel.exec(
        ["true"], timeout_s=1, cwd="/", env=None, stdin=b"", output_limit=output_limit, on_output=None
    )


def test_answers_to_earlier_calls_are_passed_over() -> None:
    stale = pack_frame(guest.STDOUT, 77, b"stale")
    result = run(channel(stale + pack_frame(guest.STDOUT, 1, b"now") + pack_frame(guest.EXITED, 1, EXITED)))
    assert result.stdout == b"now"


@pytest.mark.parametrize(
    ("answers", "cause", "match"),
    [
        ([b""], "end", "has ended"),
        ([TimeoutError()], "timeout", "does not answer"),
        ([ConnectionResetError(104, "reset")], "end", "reset"),
        ([b"\xff" * 20], "protocol", "unknown kind 255"),
        ([pack_frame(guest.STDOUT, 1, b"x" * 9000)], "protocol", "more output than was asked for"),
        ([pack_frame(guest.DATA, 1, b"x")], "protocol", "out of place"),
        ([pack_frame(guest.FATAL, 0, b"MemoryError: ")], "resources", "MemoryError"),
        ([pack_frame(guest.FATAL, 0, b"KeyError: 1")], "crash", "KeyError"),
    ],
)
def test_a_broken_answer_to_exec_says_how_it_broke(answers: list[bytes | Exception], cause: str, match: str) -> None:
    with pytest.raises(ChannelBroken, match=match) as caught:
        run(channel(*answers))
    assert caught.value.cause == cause


def test_a_read_takes_no_more_than_it_asked_for() -> None:
    with pytest.raises(ChannelBroken, match="more of a file"):
        channel(pack_frame(guest.DATA, 1, b"x" * 11)).read("/root/x", offset=0, limit=10)


@pytest.mark.parametrize(
    "answer",
    [
        pack_frame(guest.DONE, 1),
        pack_frame(guest.FILE, 1, guest.FILE_HEAD.pack(5, 1)),
        pack_frame(guest.FILE, 1, guest.FILE_HEAD.pack(0, 1 << 40)),
        pack_frame(guest.FILE, 1, guest.FILE_HEAD.pack(0, 3)) + pack_frame(guest.DATA, 1, b"four"),
        pack_frame(guest.FILE, 1, guest.FILE_HEAD.pack(0, 3)) + pack_frame(guest.DATA, 1),
        pack_frame(guest.FILE, 1, guest.FILE_HEAD.pack(0, 3)) + pack_frame(guest.DONE, 1),
        pack_frame(guest.REFUSED, 1, guest.REFUSED_HEAD.pack(0)) * 2,
        pack_frame(guest.END, 1, guest.END_HEAD.pack(1)),
    ],
)
def test_deliverables_come_exactly_as_asked_for(answer: bytes) -> None:
    with pytest.raises(ChannelBroken) as caught:
        channel(answer).collect(["/root/a"], max_bytes=100)
    assert caught.value.cause == "protocol"


def test_a_guest_that_calls_services_for_ever_is_stopped_at_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fpenv.sandbox.channel.GRACE_S", -0.8)
    call = pack_frame(guest.CALL, 1, guest.CALL_HEAD.pack(1, 4) + b"echo{}")

    def endless() -> Iterator[bytes]:
        while True:
            time.sleep(0.01)
            yield call

    link = ScriptedLink()
    link._answers = endless()
    talking = GuestChannel(link, env={}, services=("echo",), serve=lambda name, request: request)
    with pytest.raises(ChannelBroken, match="goes on calling") as caught:
        run(talking)
    assert caught.value.cause == "timeout"
    assert len(link.sent) > 2


def test_replies_that_are_too_long_become_errors() -> None:
    call = pack_frame(guest.CALL, 1, guest.CALL_HEAD.pack(9, 4) + b"echo{}")
    link = ScriptedLink(call, pack_frame(guest.EXITED, 1, EXITED))
    talking = GuestChannel(link, env={}, services=("echo",), serve=lambda name, request: b"x" * (2 << 20))
    run(talking)
    assert "may be sent" in json.loads(link.sent[1][guest.HEADER.size :])["error"]


@pytest.mark.parametrize("path", ["", "a\0b", "\ud800"])
def test_paths_that_cannot_be_are_refused(path: str) -> None:
    with pytest.raises(SandboxError, match="expected a"):
        channel().read(path, offset=0, limit=1)


@settings(max_examples=300, database=None)
@given(st.lists(st.binary(max_size=60), max_size=6), st.booleans())
def test_random_answers_end_every_call_in_a_typed_way(answers: list[bytes], framed: bool) -> None:
    if framed:
        answers = [pack_frame(guest.READY + len(answer) % 12, 1, answer) for answer in answers]
    calls = (
        lambda c: run(c),
        lambda c: c.read("/root/a", offset=0, limit=5),
        lambda c: c.write("/root/a", b"x"),
        lambda c: c.collect(["a", "b"], max_bytes=10),
    )
    for call in calls:
        with contextlib.suppress(ChannelBroken, SandboxError, OSError):
            call(channel(*answers, serve=lambda name, request: b"{}"))
