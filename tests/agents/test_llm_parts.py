"""The parts of the LLM agent, each by itself: reading actions, putting streams together, waiting, compacting."""

from __future__ import annotations

import json
import pickle
import random
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace as Piece
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fpenv.agents.llm.accounting import Estimator, Price, account, cost_usd, load_prices
from fpenv.agents.llm.call_log import FILE_NAME, CallLog, Ending, Settings, read_call_log
from fpenv.agents.llm.compaction import AIM, KEEP_TURNS, History, compact
from fpenv.agents.llm.config import LlmConfig, RetryPolicy
from fpenv.agents.llm.conversation import TextProtocol, ToolProtocol, Turn, find_action
from fpenv.agents.llm.credential import Credential
from fpenv.agents.llm.endpoint import _kind_of_status, _retry_after_s
from fpenv.agents.llm.exchange import Fault, Reply, Request, ToolCall, Usage
from fpenv.agents.llm.llm_agent import LlmAgent
from fpenv.agents.llm.retrying import Timing, ask_patiently, wait_s
from fpenv.agents.llm.stream import Assembly
from fpenv.errors import ConfigError, ProviderError

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)
ACTION = st.fixed_dictionaries({"tool": st.text(), "arguments": st.dictionaries(st.text(), JSON, max_size=4)})
PROSE = st.text(st.characters(exclude_characters="{<"))


# ----------------------------------------------------------------------------------------- reading actions
@given(before=PROSE, action=ACTION, after=st.text(), fence=st.sampled_from(["", "```", "```json\n"]))
def test_an_action_is_found_wherever_it_stands_in_prose(
    before: str, action: dict[str, Any], after: str, fence: str
) -> None:
    text = before + fence + json.dumps(action, ensure_ascii=False) + fence[:3] + after
    if "<think>" not in text:
        assert find_action(text) == action


@given(text=st.text())
def test_no_text_breaks_the_reader(text: str) -> None:
    found = find_action(text)
    assert found is None or isinstance(found, dict)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"tool": "a"} and then {"tool": "b"}', {"tool": "a"}),
        ('<think>{"tool": "a"}</think> {"tool": "b"}', {"tool": "b"}),
        ('<think>{"tool": "a"} and so on', None),
        ('set {x} then {"tool": "a"}', {"tool": "a"}),
        ('{"x": 1} {"tool": "a"}', {"tool": "a"}),
        ('{"action": {"tool": "a"}}', {"action": {"tool": "a"}}),
        ('```json\n{"tool": "w", "content": "```\\nx\\n```"}\n```', {"tool": "w", "content": "```\nx\n```"}),
        ('{"tool": "bash", "arguments": {"command": "a\nb"}}', {"tool": "bash", "arguments": {"command": "a\nb"}}),
        ("{}", None),
        ("{" * 100_000, None),
        ('{"a":' * 100_000, None),
    ],
    ids=[
        "first", "thinking", "thinking cut", "braces", "other object", "wrapped", "fence inside", "line break",
        "empty", "braces only", "deep",
    ],
)  # fmt: skip
def test_the_first_object_that_names_a_tool_counts(text: str, expected: dict[str, Any] | None) -> None:
    assert find_action(text) == expected


def test_calls_that_share_an_id_are_told_apart() -> None:
    call = ToolCall(call_id="x", tool="bash", arguments="{}")
    intents, said = ToolProtocol().read(Reply(calls=(call, call), finish_reason="tool_calls"))
    assert [intent.call_id for intent in intents] == ["x", "x_1"]
    assert [sent["id"] for sent in said["tool_calls"]] == ["x", "x_1"]


def test_the_text_protocol_tells_the_tools_and_the_form_in_the_first_user_message() -> None:
    opening = TextProtocol().open("Toss.", [{"name": "bash", "parameters": {"type": "object"}}])
    assert [message["role"] for message in opening] == ["user"]
    assert '{"tool": "bash", "arguments"' in opening[0]["content"]
    assert '"name": "bash"' in opening[0]["content"]
    assert opening[0]["content"].endswith("Toss.")


# ----------------------------------------------------------------------------------------- streams
def chunk(finish: str | None = None, usage: Any = None, **delta: Any) -> Any:
    return Piece(model="m", usage=usage, choices=[Piece(delta=Piece(**delta), finish_reason=finish)])


def call_piece(index: int | None, call_id: str | None, name: str | None, arguments: str | None) -> Any:
    return Piece(index=index, id=call_id, function=Piece(name=name, arguments=arguments))


def assemble(*chunks: Any) -> Reply:
    assembly = Assembly()
    for piece in chunks:
        assembly.add(piece)
    return assembly.reply(Credential(None), 0.0)


def test_interleaved_pieces_of_calls_are_sorted_by_index() -> None:
    pieces = [
        call_piece(0, "a", "bash", '{"x'), call_piece(1, "b", "read_file", ""), call_piece(0, None, None, '": 1}'),
        call_piece(1, None, "read_file", "{}"),
    ]  # fmt: skip
    reply = assemble(*(chunk(tool_calls=[piece]) for piece in pieces), chunk("tool_calls"))
    assert [(c.call_id, c.tool, c.arguments) for c in reply.calls] == [
        ("a", "bash", '{"x": 1}'),
        ("b", "read_file", "{}"),
    ]


def test_a_call_without_an_id_gets_one() -> None:
    reply = assemble(chunk(tool_calls=[call_piece(None, None, "bash", "{}")]), chunk("tool_calls"))
    assert [(c.call_id, c.tool) for c in reply.calls] == [("call_0", "bash")]


def test_reasoning_is_kept_apart_from_the_text() -> None:
    reply = assemble(chunk(reasoning_content="hm"), chunk(content="yes"), chunk("stop"))
    assert (reply.reasoning, reply.text, reply.finish_reason) == ("hm", "yes", "stop")


@pytest.mark.parametrize(
    "usage", [None, Piece(), Piece(prompt_tokens=-1, completion_tokens=2), Piece(prompt_tokens="3")]
)
def test_usage_that_is_none_is_not_taken_for_a_count(usage: Any) -> None:
    assert assemble(chunk("stop", usage=usage)).usage is None


# ----------------------------------------------------------------------------------------- faults and waiting
@pytest.mark.parametrize(
    ("status", "code", "message", "kind"),
    [
        (429, "", "", "rate_limit"),
        (429, "insufficient_quota", "", "rejected"),
        (500, "", "", "server"),
        (529, "", "", "server"),
        (408, "", "", "server"),
        (400, "context_length_exceeded", "", "context"),
        (400, "", "This model's maximum context length is 8192 tokens", "context"),
        (400, "", "prompt is too long: 210000 tokens", "context"),
        (400, "", "max_tokens must be at most 4096", "rejected"),
        (400, "content_filter", "", "content_filter"),
        (400, "", "unknown field", "rejected"),
        (401, "", "", "rejected"),
    ],
)
def test_a_status_says_whose_doing_it_is(status: int, code: str, message: str, kind: str) -> None:
    assert _kind_of_status(status, code, message) == kind


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after": "Thu, 01 Jan 1970 00:01:40 GMT"}, 40.0),
        ({"retry-after": "Thu, 01 Jan 1970 00:00:00 GMT"}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-3"}, None),
        ({"retry-after": "inf"}, None),
        ({}, None),
    ],
)
def test_retry_after_is_seconds_or_a_date(headers: dict[str, str], expected: float | None) -> None:
    assert _retry_after_s(headers, 60.0) == expected


@given(failures=st.integers(0, 1000), seed=st.integers(), after=st.none() | st.floats(0, 500))
def test_waits_grow_to_the_cap_and_never_undercut_retry_after(failures: int, seed: int, after: float | None) -> None:
    policy = RetryPolicy(first_wait_s=1.0, longest_wait_s=60.0)
    wait = wait_s(policy, failures, after, random.Random(seed))
    assert wait >= max(min(60.0, 2.0 ** min(failures, 9)) / 2, after or 0.0) - 1e-9
    assert wait <= max(60.0, after or 0.0)


class FailingEndpoint:
    """Takes a second for each failure."""

    def __init__(self, *faults: Fault, cost_s: float = 1.0) -> None:
        self.now, self.waits, self._faults, self._cost_s = 0.0, list[float](), list(faults), cost_s

    def ask(self, request: Request, *, seconds: float) -> Reply | Fault:
        self.now += min(self._cost_s, seconds)
        if seconds < self._cost_s:
            return Fault(kind="deadline", message="over")
        return self._faults.pop(0) if self._faults else Reply(text="yes", finish_reason="stop")

    def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds

    def answer(self, deadline: float, **policy: Any) -> Any:
        timing = Timing(clock=lambda: self.now, sleep=self.sleep, rng=random.Random(1))
        return ask_patiently(self, Request("m", ()), RetryPolicy(**policy), deadline=deadline, timing=timing)


DOWN = Fault(kind="server", message="down", status=500)


def test_a_fault_that_is_final_is_not_asked_again() -> None:
    endpoint = FailingEndpoint(Fault(kind="rejected", message="no", status=401))
    answer = endpoint.answer(1000.0)
    assert (endpoint.waits, answer.result.kind, answer.provider_failed) == ([], "rejected", True)


def test_a_retry_after_beyond_all_patience_is_not_waited_for() -> None:
    endpoint = FailingEndpoint(DOWN.model_copy(update={"retry_after_s": 3600.0}))
    assert endpoint.answer(10_000.0, patience_s=300.0).provider_failed
    assert endpoint.waits == []


def test_time_lost_to_failed_attempts_is_told_from_the_models_own() -> None:
    answer = FailingEndpoint(DOWN, DOWN, cost_s=3.0).answer(1000.0, first_wait_s=1.0)
    assert (len(answer.retries), answer.provider_failed) == (2, False)
    assert answer.lost_s == pytest.approx(6.0 + sum(retry.waited_s for retry in answer.retries), abs=0.01)
    assert answer.latency_s == pytest.approx(answer.lost_s + 3.0)


def test_a_deadline_is_the_models_own_unless_failures_took_most_of_the_time() -> None:
    assert not FailingEndpoint(cost_s=10.0).answer(5.0).provider_failed
    assert FailingEndpoint(DOWN, cost_s=3.0).answer(5.0, first_wait_s=0.5).provider_failed


# ----------------------------------------------------------------------------------------- compaction
OPENING = ({"role": "system", "content": "role"}, {"role": "user", "content": "brief"})


def turn(size: int, calls: int = 1) -> Turn:
    tool_calls = [{"id": f"c{n}", "type": "function", "function": {"name": "bash"}} for n in range(calls)]
    answers = tuple({"role": "tool", "tool_call_id": f"c{n}", "content": "x" * size} for n in range(calls))
    return Turn({"role": "assistant", "content": None, "tool_calls": tool_calls}, answers)


@given(
    sizes=st.lists(st.tuples(st.integers(0, 30_000), st.integers(1, 3)), max_size=20), budget=st.integers(100, 20_000)
)
def test_compaction_keeps_the_brief_and_whole_turns_and_says_all_it_dropped(
    sizes: list[tuple[int, int]], budget: int
) -> None:
    history, count = History(tuple(turn(*size) for size in sizes), removed=3), Estimator().prompt
    after, dropped = compact(OPENING, history, budget, count)
    messages = after.messages(OPENING)
    assert messages[0] == OPENING[0]
    assert messages[1]["content"].startswith("brief")
    assert len(after.turns) + after.removed == len(sizes) + 3
    assert bool(sizes) == bool(after.turns)
    for kept in after.turns:
        assert [c["id"] for c in kept.said["tool_calls"]] == [m["tool_call_id"] for m in kept.answers]
    assert sum(item.how == "removed" for item in dropped) == after.removed - 3
    if count(history.messages(OPENING)) <= budget:
        assert (after, dropped) == (history, ())
    elif count(messages) > budget * AIM:
        assert len(after.turns) == 1


def test_the_oldest_results_go_first_and_the_last_turns_stay_whole_while_that_is_enough() -> None:
    history = History(tuple(turn(8000) for _ in range(10)))
    after, dropped = compact(OPENING, history, 18_000, Estimator().prompt)
    assert [item.turn for item in dropped] == list(range(1, len(dropped) + 1))
    assert {item.how for item in dropped} == {"shortened"}
    assert after.turns[-KEEP_TURNS:] == history.turns[-KEEP_TURNS:]


# ----------------------------------------------------------------------------------------- accounting, log, config
def test_cached_tokens_cost_their_own_price_where_there_is_one() -> None:
    price = Price(prompt_usd_per_million=2, completion_usd_per_million=10, cached_usd_per_million=0.5)
    assert cost_usd(price, 1000, 100, 400) == pytest.approx((600 * 2 + 400 * 0.5 + 100 * 10) / 1e6)
    plain = Price(prompt_usd_per_million=2, completion_usd_per_million=10)
    assert cost_usd(plain, 1000, 100, 400) == pytest.approx((1000 * 2 + 100 * 10) / 1e6)


def test_estimates_follow_what_the_provider_counted() -> None:
    request, estimator = Request("m", [{"role": "user", "content": "x" * 4000}]), Estimator()
    assert estimator.prompt(request.messages) == 1004
    estimator.learn(request, 2008)
    assert estimator.prompt(request.messages) == 2008
    tokens = account(request, Reply(text="y" * 40, finish_reason="stop"), estimator, None)
    assert (tokens.prompt_tokens, tokens.completion_tokens, tokens.source) == (2008, 10, "estimate")
    usage = Usage(prompt_tokens=5, completion_tokens=6)
    assert account(request, Reply(finish_reason="stop", usage=usage), estimator, None).source == "provider"


def test_a_price_table_is_read_and_a_wrong_one_is_said_to_be(tmp_path: Path) -> None:
    file = tmp_path / "prices.json"
    file.write_text('{"m": {"prompt_usd_per_million": 1, "completion_usd_per_million": 2}}')
    assert load_prices(file)["m"].completion_usd_per_million == 2
    file.write_text('{"m": {"prompt_usd_per_million": -1, "completion_usd_per_million": 2}}')
    with pytest.raises(ConfigError, match=r"prices.json: m.prompt_usd_per_million: .*greater than or equal to 0"):
        load_prices(file)
    with pytest.raises(ConfigError, match="expected a price table, got No such file"):
        load_prices(tmp_path / "none.json")


def test_a_log_that_was_cut_by_a_kill_reads_up_to_its_last_whole_line(tmp_path: Path) -> None:
    log = CallLog(tmp_path, Credential(None))
    log.add(Ending(kind="refusal", reason="no", calls=1))
    with (tmp_path / FILE_NAME).open("a") as file:
        file.write('{"record": "ca')
    (line,) = read_call_log(tmp_path)
    assert isinstance(line, Ending)
    assert not isinstance(line, Settings)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"model": " "}, "model: expected the provider's name"),
        ({"protocol": "xml"}, "protocol: expected 'tools' or 'text', got 'xml'"),
        ({"base_url": "127.0.0.1:80"}, "base_url: expected an http or https URL"),
        ({"context_tokens": 0}, "context_tokens: expected an integer >= 1, got 0"),
        ({"silence_s": float("nan")}, "silence_s: expected seconds > 0, got nan"),
        ({"options": {"x": object()}}, "options: expected fields of a JSON body"),
    ],
)
def test_a_wrong_setting_is_refused(settings: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        LlmConfig(**{"model": "m", **settings})


def test_a_retry_policy_without_attempts_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"retries.attempts: expected an integer >= 1"):
        RetryPolicy(attempts=0)


def test_an_agent_and_its_errors_survive_pickling() -> None:
    pytest.importorskip("openai")
    agent = pickle.loads(pickle.dumps(LlmAgent(LlmConfig(model="m", base_url="http://127.0.0.1:9/v1"))))
    assert agent.name == "llm/m"
    error = pickle.loads(pickle.dumps(ProviderError("gone")))
    assert (type(error), str(error)) == (ProviderError, "gone")


def test_without_the_library_the_agent_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(ConfigError, match=r"pip install 'fpenv\[llm\]'"):
        LlmAgent(LlmConfig(model="m", base_url="http://127.0.0.1:9/v1"))


def test_importing_the_agent_does_not_import_openai() -> None:
    code = "import sys, fpenv.agents.llm.llm_agent; print('openai' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
