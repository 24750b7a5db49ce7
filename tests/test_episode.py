"""How an episode ends, whoever ends it; with a sandbox that only pretends."""

from pathlib import Path

import pytest

from fpenv.episode import Episode, EpisodeConfig
from fpenv.errors import SandboxError
from fpenv.instance import make_instance
from fpenv.records import Step
from fpenv.sandbox.sandbox import ExecResult
from fpenv.task import load_task
from fpenv.testing.fake_sandbox import FakeBackend, FakeSandbox, finished

COIN = Path(__file__).parent / "packages" / "coin"
NOWHERE = Path("/nonexistent")
RUN = {"tool": "bash", "arguments": {"command": "work"}}


def start(script=None, **settings) -> tuple[Episode, FakeBackend]:  # type: ignore[no-untyped-def]
    backend = FakeBackend(script)
    return Episode(make_instance(load_task(COIN)), backend, NOWHERE, EpisodeConfig(**settings)), backend


def test_what_an_agent_gets_is_the_inputs_and_nothing_hidden() -> None:
    _, backend = start()
    spec = backend.started[0].spec
    assert set(spec.files) == {"/root/data/sheet.txt"}
    assert spec.read_only == {}
    assert spec.env == {}


def test_the_oracle_is_laid_in_only_when_asked_for() -> None:
    _, backend = start(oracle=True)
    assert set(backend.started[0].spec.read_only) == {"/oracle"}


def test_a_sandbox_that_the_agent_ended_is_graded_with_nothing_handed_in() -> None:
    def die(box: FakeSandbox, argv: tuple[str, ...]) -> ExecResult:
        box.end("out of memory", by_agent=True)
        return finished()

    episode, _ = start(die)
    step = episode.step(RUN)
    assert episode.stop == "sandbox_ended"
    assert step.result.output == "the sandbox has ended: out of memory"
    assert dict(episode.collected.files) == {}


def test_a_sandbox_that_the_infrastructure_lost_is_ungraded_and_never_a_number() -> None:
    def lose(box: FakeSandbox, argv: tuple[str, ...]) -> ExecResult:
        box.end("the host fell over", by_agent=False)
        return finished()

    episode, _ = start(lose)
    episode.step(RUN)
    grade = episode.finish(None)
    assert (episode.stop, grade.status, grade.s_final) == ("infrastructure", "ungraded", None)
    assert "SandboxGone: the host fell over" in grade.reason


def test_a_sandbox_that_cannot_be_had_is_an_error_of_reset() -> None:
    backend = FakeBackend(failure=SandboxError("no user namespaces"))
    with pytest.raises(SandboxError, match="no user namespaces"):
        Episode(make_instance(load_task(COIN)), backend, NOWHERE, EpisodeConfig())


def test_the_clock_is_the_hosts_and_ends_the_episode() -> None:
    now = [0.0]

    def work(box: FakeSandbox, argv: tuple[str, ...]) -> ExecResult:
        now[0] += 7.0
        return finished(b"done")

    episode, _ = start(work, time_limit_s=10.0, clock=lambda: now[0])
    first = episode.step(RUN)
    assert (first.budget.seconds_left, first.started_s, first.ended_s) == (3, 0.0, 7.0)
    assert episode.stop is None
    episode.step(RUN)
    assert episode.stop == "time"


def test_each_step_holds_the_calls_and_searches_it_caused() -> None:
    def measure(box: FakeSandbox, argv: tuple[str, ...]) -> ExecResult:
        box.call_service("instrument", b'{"operation": "toss", "arguments": {"shots": 5}}')
        box.call_service("literature", b'{"query": "coin"}')
        return finished()

    seen: list[Step] = []
    episode, _ = start(measure, on_step=seen.append)
    episode.step(RUN)
    episode.step({"tool": "search_literature", "arguments": {"query": "nothing of the kind"}})
    assert [len(step.instrument_calls) for step in seen] == [1, 0]
    assert [[search.query for search in step.searches] for step in seen] == [["coin"], ["nothing of the kind"]]
    assert [(step.step_id, step.parent_id) for step in seen] == [(1, None), (2, 1)]


@pytest.mark.parametrize(
    ("service", "request_", "complaint"),
    [
        ("instrument", b"\xff", "expected a JSON object"),
        ("instrument", b"[" * 100_000, "expected a JSON object"),
        ("instrument", b'{"operation": 5}', "operation: Input should be a valid string, got 5"),
        ("instrument", b'{"instrument": "cup", "operation": "toss"}', "expected one of coin, got 'cup'"),
        ("literature", b'{"query": ""}', "query: String should have at least 1 character"),
        ("literature", b'{"query": "x", "important": true}', "important: Extra inputs are not permitted"),
    ],
)
def test_a_malformed_request_from_inside_is_answered_with_what_was_expected(
    service: str, request_: bytes, complaint: str
) -> None:
    _, backend = start()
    assert complaint in backend.started[0].call_service(service, request_).decode()


def test_output_beyond_the_cap_says_how_much_was_cut_and_keeps_head_and_tail() -> None:
    episode, _ = start(lambda box, argv: finished(b"head" + b"x" * 100_000 + b"tail"))
    output = episode.step(RUN).result.output
    assert output.startswith("head")
    assert output.endswith("tail")
    assert f"[... {100_008 - (32 << 10):,} bytes cut ...]" in output


def test_read_file_shows_a_part_and_says_which() -> None:
    episode, backend = start()
    backend.started[0].files["/root/long.txt"] = b"".join(b"line %d\n" % n for n in range(1, 1001))
    action = {"tool": "read_file", "arguments": {"path": "long.txt", "first_line": 10, "lines": 2}}
    assert episode.step(action).result.output == "line 10\nline 11\n[lines 10 to 11 of 1000]"
