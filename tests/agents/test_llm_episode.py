"""A model plays whole episodes over HTTP: the same grade as Python gets, and each fault ends them rightly."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from model_server import Hang, ModelServer, Raw, Said, Status, calls, text

from fpenv.agents.agent import play
from fpenv.agents.llm.accounting import Price
from fpenv.agents.llm.call_log import Call, Ending, read_call_log
from fpenv.agents.llm.config import LlmConfig, RetryPolicy
from fpenv.agents.llm.llm_agent import LlmAgent
from fpenv.env import FrontierPhysicsEnv
from fpenv.errors import AgentError, ConfigError, ProviderError
from fpenv.records import Grade
from fpenv.store import read_trajectory

pytest.importorskip("openai")

MakeEnv = Callable[..., FrontierPhysicsEnv]
TOSS = ("instrument", {"operation": "toss", "arguments": {"shots": 1500}})
SEARCH = ("search_literature", {"query": "coin"})
WRITE = ("write_file", {"path": "result.md", "content": "bias: 0.7\n"})
SUBMIT = ("submit", {})
WORK = (TOSS, SEARCH, WRITE, SUBMIT)
QUICK = RetryPolicy(attempts=3, first_wait_s=0.01, longest_wait_s=0.02)


def fenced(tool: str, arguments: dict[str, Any]) -> Any:
    return text(f"Next.\n```json\n{json.dumps({'tool': tool, 'arguments': arguments})}\n```\n")


class Played:
    """An episode that is over: grade, info, trajectory, log and what the server saw."""

    def __init__(self, env: FrontierPhysicsEnv, agent: LlmAgent, server: Any) -> None:
        self.agent, self.server = agent, server
        self.grade: Grade
        self.grade, self.info = play(env, agent)
        self.run = Path(self.info["run"])
        self.steps = read_trajectory(self.run / "trajectory.msgpack").steps
        self.log = read_call_log(self.run)
        self.calls = [line for line in self.log if isinstance(line, Call)]
        self.ending = next((line for line in self.log if isinstance(line, Ending)), None)


@pytest.fixture
def play_script(make_env: MakeEnv, tmp_path: Path) -> Callable[..., Played]:
    def run(script: Any, *, env: dict[str, Any] | None = None, **config: Any) -> Played:
        with ModelServer(script) as server:
            settings = {"model": "fake", "base_url": server.url, "retries": QUICK, "silence_s": 5.0} | config
            agent = LlmAgent(LlmConfig(**settings))
            return Played(make_env(record_to=tmp_path, **(env or {})), agent, server)

    return run


PlayScript = Callable[..., Played]


# ----------------------------------------------------------------------------------------- the same grade
def grade_of_python(env: FrontierPhysicsEnv) -> tuple[dict[str, Any], list[str]]:
    env.reset()
    outputs = []
    for tool, arguments in WORK:
        observation, _, _, _, info = env.step({"tool": tool, "arguments": arguments})
        outputs.append(observation["output"])
    return info["grade"], outputs


@pytest.mark.parametrize("protocol", ["tools", "text"])
def test_the_same_actions_get_the_same_grade_as_through_python(
    play_script: PlayScript, make_env: MakeEnv, protocol: str
) -> None:
    say = calls if protocol == "tools" else fenced
    played = play_script([say(*action) for action in WORK], protocol=protocol)
    expected, outputs = grade_of_python(make_env())
    assert played.grade.s_final == 100.0
    assert played.grade.model_dump(mode="json") == expected
    assert [step.result.output for step in played.steps] == outputs
    assert (played.info["stop"], played.info["valid"], played.ending) == ("submitted", True, None)


def test_two_calls_in_one_reply_are_taken_in_order_each_as_a_step(play_script: PlayScript) -> None:
    played = play_script([calls(*TOSS, *SEARCH), calls(*WRITE, *SUBMIT)])
    assert [step.tool for step in played.steps] == ["instrument", "search_literature", "write_file", "submit"]
    assert played.grade.s_final == 100.0
    sent = played.server.requests[1].body["messages"]
    assert [m["role"] for m in sent] == ["system", "user", "assistant", "tool", "tool"]
    assert [m["tool_call_id"] for m in sent[3:]] == [c["id"] for c in sent[2]["tool_calls"]]


def test_calls_streamed_without_indices_are_put_together_too(play_script: PlayScript) -> None:
    played = play_script([calls(*TOSS, *SEARCH, plain_indices=False), calls(*WRITE, *SUBMIT)])
    assert played.grade.s_final == 100.0


def test_the_model_sees_the_brief_the_schemas_and_the_budget_and_nothing_hidden(play_script: PlayScript) -> None:
    played = play_script([calls(*action) for action in WORK])
    bodies = json.dumps([seen.body for seen in played.server.requests])
    assert "Toss the coin" in bodies
    assert "500 instrument shots" in bodies
    offered = played.server.requests[0].body["tools"]
    assert [t["function"]["name"] for t in offered][:2] == ["bash", "write_file"]
    for hidden in ("no_fabrication", "toss_budget", "test_bias", "references", "solve.sh", "step_id", "task_digest"):
        assert hidden not in bodies


# ----------------------------------------------------------------------------------------- the provider's faults
def test_a_429_is_waited_out_as_long_as_retry_after_says(play_script: PlayScript) -> None:
    played = play_script([Status(429, retry_after="0.4"), *(calls(*action) for action in WORK)])
    assert played.grade.s_final == 100.0
    first, second = played.server.requests[:2]
    assert second.at - first.at >= 0.4
    (retry,) = played.calls[0].retries
    assert (retry.kind, retry.status, retry.waited_s) == ("rate_limit", 429, 0.4)
    assert played.calls[0].lost_s >= 0.4


def test_a_few_500s_cost_time_and_nothing_else(play_script: PlayScript) -> None:
    played = play_script([Status(500), Status(503), *(calls(*action) for action in WORK)])
    assert played.grade.s_final == 100.0
    assert [retry.status for retry in played.calls[0].retries] == [500, 503]


def assert_ungraded(played: Played, kind: str) -> None:
    assert (played.grade.status, played.grade.s_final) == ("ungraded", None)
    assert (played.info["stop"], played.info["valid"]) == ("infrastructure", False)
    assert "ProviderError: fake: expected a reply from the provider" in played.grade.reason
    assert kind in played.grade.reason
    assert played.ending is not None
    assert played.ending.kind == "provider"


def test_500s_without_end_leave_the_episode_ungraded(play_script: PlayScript) -> None:
    played = play_script([calls(*TOSS), Status(500)])
    assert_ungraded(played, "server 500 in attempt 3")
    assert [step.tool for step in played.steps] == ["instrument"]


@pytest.mark.parametrize("hang", [Hang(), Hang(headers=True), Hang(comments=True)], ids=["mute", "headers", "comments"])
def test_a_provider_that_hangs_is_given_up_and_the_episode_is_ungraded(play_script: PlayScript, hang: Any) -> None:
    assert_ungraded(play_script([hang], silence_s=0.3), "timeout")


def test_a_hang_that_ends_is_retried(play_script: PlayScript) -> None:
    played = play_script([Hang(), *(calls(*action) for action in WORK)], silence_s=0.3)
    assert (played.grade.s_final, played.calls[0].retries[0].kind) == (100.0, "timeout")


@pytest.mark.parametrize("cleanly", [True, False], ids=["closed", "broken"])
def test_a_stream_cut_in_the_middle_is_asked_for_again_and_its_half_call_is_never_taken(
    play_script: PlayScript, cleanly: bool
) -> None:
    cut = calls("bash", {"command": "touch /root/half"}, cut_after=4, cut_cleanly=cleanly)
    played = play_script([cut, *(calls(*action) for action in WORK)])
    assert played.grade.s_final == 100.0
    assert [step.tool for step in played.steps] == [tool for tool, _ in WORK]
    assert played.calls[0].retries[0].kind in ("cut_stream", "connection")


def test_streams_that_are_always_cut_leave_the_episode_ungraded(play_script: PlayScript) -> None:
    assert_ungraded(play_script([text("half of it", cut_after=1, cut_cleanly=True)]), "cut_stream")


@pytest.mark.parametrize(
    ("body", "kind"),
    [(b"data: {not json\n\n", "cut_stream"), (b'data: {"error": {"message": "overloaded"}}\n\n', "server")],
    ids=["garbage", "error event"],
)
def test_garbage_and_errors_within_a_stream_are_the_providers(play_script: PlayScript, body: bytes, kind: str) -> None:
    assert_ungraded(play_script([Raw(body)]), kind)


@pytest.mark.parametrize("status", [401, 403, 404], ids=str)
def test_a_provider_that_will_not_serve_is_not_asked_again(play_script: PlayScript, status: int) -> None:
    played = play_script([Status(status)])
    assert_ungraded(played, f"rejected {status} in attempt 1")
    assert len(played.server.requests) == 1


def test_a_spent_quota_is_not_waited_for(play_script: PlayScript) -> None:
    played = play_script([Status(429, error_code="insufficient_quota")])
    assert_ungraded(played, "rejected 429 in attempt 1")


def test_a_wait_that_would_outlast_the_episode_is_not_begun(play_script: PlayScript) -> None:
    played = play_script([Status(429, retry_after="60")], env={"time_limit_s": 30})
    assert_ungraded(played, "rate_limit 429 in attempt 1")


def test_nobody_listening_is_the_providers_fault(make_env: MakeEnv, tmp_path: Path) -> None:
    with ModelServer([]) as server:
        url = server.url
    agent = LlmAgent(LlmConfig(model="fake", base_url=url, retries=QUICK))
    assert_ungraded(Played(make_env(record_to=tmp_path), agent, server), "connection")


# ----------------------------------------------------------------------------------------- the model's own doing
def test_malformed_arguments_are_answered_by_the_environment_and_sent_back_well_formed(
    play_script: PlayScript,
) -> None:
    played = play_script([calls("bash", '{"command": "ls'), *(calls(*action) for action in WORK)])
    assert played.grade.s_final == 100.0
    assert "the arguments are not JSON" in played.steps[0].result.output
    sent = played.server.requests[1].body["messages"]
    assert json.loads(sent[2]["tool_calls"][0]["function"]["arguments"]) == {"malformed": '{"command": "ls'}
    assert "expected arguments" in sent[3]["content"]


def test_an_unknown_tool_is_answered_by_the_environment(play_script: PlayScript) -> None:
    played = play_script([calls("run shell!", {}), *(calls(*action) for action in WORK)])
    assert played.grade.s_final == 100.0
    assert "expected one of bash, write_file" in played.steps[0].result.output
    assert played.server.requests[1].body["messages"][2]["tool_calls"][0]["function"]["name"] == "run_shell_"


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (text("I am done."), "no_action"),
        (Said(), "no_action"),
        (Said(refusal="I cannot help with that."), "refusal"),
        (text("", finish_reason="content_filter"), "refusal"),
        (Status(400, error_code="content_filter"), "refusal"),
        (text("well, " * 50, finish_reason="length"), "overlong"),
        (calls("write_file", '{"path": "result.md", "content": "bias: ', finish_reason="length"), "overlong"),
    ],
    ids=["talk", "empty", "refusal", "filtered", "filtered 400", "overlong", "overlong call"],
)
def test_replies_without_an_action_end_in_what_is_there_being_graded(
    play_script: PlayScript, reply: Any, kind: str
) -> None:
    played = play_script([calls(*TOSS), calls(*WRITE), reply])
    assert (played.grade.status, played.grade.s_final) == ("graded", pytest.approx(100 * 3 * 2 / 8))
    assert (played.info["stop"], played.info["valid"]) == ("submitted", True)
    assert played.ending is not None
    assert (played.ending.kind, played.ending.calls) == (kind, 5)
    refused = [step.result.output for step in played.steps if step.result.data.get("refused")]
    assert len(refused) == 2
    assert all("expected an action" in output for output in refused)


def test_one_reply_without_an_action_is_forgiven(play_script: PlayScript) -> None:
    script = [text("Hm."), calls(*TOSS), text("Hm."), text("Hm."), calls(*SEARCH), calls(*WRITE), calls(*SUBMIT)]
    played = play_script(script)
    assert (played.grade.s_final, played.ending) == (100.0, None)
    assert "Call one of the tools" in played.server.requests[1].body["messages"][-1]["content"]


def test_whole_calls_of_a_cut_reply_are_taken_and_the_cut_one_is_not(play_script: PlayScript) -> None:
    cut = Said(tool_calls=(("bash", '{"command": "true"}'), ("bash", '{"command": "fal')), finish_reason="length")
    played = play_script([cut, calls(*SUBMIT)])
    assert [step.arguments for step in played.steps] == ['{"command": "true"}', "{}"]


def test_malformed_text_is_answered_with_the_form_that_was_expected(play_script: PlayScript) -> None:
    script = [text('{"tool": "bash", "arguments": '), text('{"action": "ls"}'), *(fenced(*a) for a in WORK)]
    played = play_script(script, protocol="text")
    assert played.grade.s_final == 100.0
    for step in played.steps[:2]:
        assert 'expected an action {"tool": NAME, "arguments": JSON text or mapping}' in step.result.output
    assert "tools" not in played.server.requests[0].body
    assert [m["role"] for m in played.server.requests[2].body["messages"]] == ["user", "assistant"] * 2 + ["user"]


def test_time_that_ends_while_the_model_writes_grades_what_is_there(play_script: PlayScript) -> None:
    slow = text("let me think about this for a long time " * 20, pause_s=0.1)
    played = play_script([calls(*TOSS), calls(*WRITE), slow], env={"time_limit_s": 4.0})
    assert (played.grade.status, played.grade.s_final) == ("graded", pytest.approx(75.0))
    assert (played.info["stop"], played.info["valid"]) == ("time", True)
    assert played.ending is not None
    assert played.ending.kind == "time"


def test_silence_shorter_than_a_hang_at_the_end_of_time_is_the_models_own(play_script: PlayScript) -> None:
    played = play_script([calls(*TOSS), calls(*WRITE), Hang(10.0)], env={"time_limit_s": 2.0}, silence_s=60.0)
    assert (played.grade.status, played.info["stop"]) == ("graded", "time")


def test_time_that_a_failing_provider_used_up_leaves_the_episode_ungraded(play_script: PlayScript) -> None:
    played = play_script([Status(429, retry_after="1.8"), Hang(10.0)], env={"time_limit_s": 3.0}, silence_s=60.0)
    assert_ungraded(played, "deadline")


def test_the_last_warning_comes_once_before_the_steps_end(play_script: PlayScript) -> None:
    played = play_script([calls("bash", {"command": "true"})], env={"max_steps": 5}, warn_steps=2, warn_seconds=1.0)
    assert (played.info["stop"], played.grade.status) == ("steps", "graded")
    last = [seen.body["messages"][-1]["content"] for seen in played.server.requests]
    assert ["LAST WARNING" in content for content in last] == [False, False, False, True, False]


# ----------------------------------------------------------------------------------------- long episodes
def test_a_long_episode_is_compacted_and_what_was_dropped_is_recorded(play_script: PlayScript) -> None:
    noisy = calls("bash", {"command": "seq 1 2000"}, usage=None)
    played = play_script([noisy] * 12 + [calls(*SUBMIT)], context_tokens=12_000)
    sizes = [len(json.dumps(seen.body["messages"])) for seen in played.server.requests]
    assert max(sizes) < 12_000 * 4 * 1.3
    dropped = [item for call in played.calls for item in call.dropped]
    assert {item.how for item in dropped} >= {"shortened"}
    assert all(item.chars > 0 for item in dropped)
    assert any("characters dropped" in json.dumps(seen.body) for seen in played.server.requests)
    assert all("Toss the coin" in seen.body["messages"][1]["content"] for seen in played.server.requests)
    assert len(played.steps) == 13


def test_a_conversation_too_long_for_the_model_is_shortened_and_sent_again(play_script: PlayScript) -> None:
    replies = iter([calls("bash", {"command": "seq 1 2000"}, usage=None)] * 6 + [calls(*SUBMIT)])

    def model(body: dict[str, Any]) -> Any:
        if len(json.dumps(body["messages"])) > 30_000:
            return Status(400, "maximum context length exceeded", error_code="context_length_exceeded")
        return next(replies)

    played = play_script(model)
    assert (played.info["stop"], played.ending) == ("submitted", None)
    assert any(call.fault and call.fault.kind == "context" for call in played.calls)


def test_a_conversation_that_never_fits_ends_graded_and_a_brief_that_does_not_is_no_grade(
    play_script: PlayScript,
) -> None:
    full = Status(400, error_code="context_length_exceeded")
    played = play_script([calls(*TOSS), full])
    assert (played.grade.status, played.info["stop"]) == ("graded", "submitted")
    assert played.ending is not None
    assert played.ending.kind == "context"
    assert_ungraded(play_script([full]), "context")


# ----------------------------------------------------------------------------------------- tokens and money
def test_every_call_is_accounted_with_the_source_of_its_figures(play_script: PlayScript) -> None:
    script = [calls(*TOSS, usage=(1000, 20)), calls(*SEARCH, usage=None), calls(*WRITE), calls(*SUBMIT)]
    price = Price(prompt_usd_per_million=2.0, completion_usd_per_million=10.0)
    played = play_script(script, price=price)
    tokens = [call.tokens for call in played.calls]
    assert [t.source for t in tokens if t] == ["provider", "estimate", "provider", "provider"]
    assert tokens[0] is not None
    assert (tokens[0].prompt_tokens, tokens[0].completion_tokens) == (1000, 20)
    assert tokens[0].cost_usd == pytest.approx((1000 * 2 + 20 * 10) / 1e6)
    totals = played.agent.totals()
    assert (totals.calls, totals.estimated_calls) == (4, 1)
    assert totals.cost_usd == pytest.approx(sum(t.cost_usd or 0 for t in tokens if t))
    assert [call.reply.finish_reason for call in played.calls if call.reply] == ["tool_calls"] * 4


def test_without_a_price_the_cost_is_unknown_not_zero(play_script: PlayScript) -> None:
    played = play_script([calls(*SUBMIT)])
    assert played.agent.totals().cost_usd is None


def test_an_agent_plays_one_episode_after_another_with_a_fresh_conversation(make_env: MakeEnv, tmp_path: Path) -> None:
    with ModelServer([calls(*SUBMIT)]) as server:
        agent = LlmAgent(LlmConfig(model="fake", base_url=server.url))
        runs = [Played(make_env(record_to=tmp_path), agent, server) for _ in range(2)]
    assert [len(run.calls) for run in runs] == [1, 1]
    assert [len(seen.body["messages"]) for seen in server.requests] == [2, 2]


def test_an_episode_that_is_not_recorded_keeps_its_calls_in_memory(make_env: MakeEnv) -> None:
    with ModelServer([calls(*TOSS), calls(*SUBMIT)]) as server:
        agent = LlmAgent(LlmConfig(model="fake", base_url=server.url))
        play(make_env(), agent)
    assert [call.step_id for call in agent.log.calls] == [1, 2]


def test_an_episode_is_abandoned_while_it_runs_or_not_at_all(make_env: MakeEnv) -> None:
    env = make_env()
    with pytest.raises(ConfigError, match=r"expected reset\(\) before abandon\(\)"):
        env.abandon(ProviderError("gone"))
    env.reset()
    info = env.abandon(ProviderError("gone"))
    assert (info["stop"], info["valid"], info["grade"]["reason"]) == ("infrastructure", False, "ProviderError: gone")
    with pytest.raises(ConfigError, match="the episode has ended"):
        env.abandon(ProviderError("gone"))
    with pytest.raises(ConfigError, match="the episode has ended"):
        env.step({"tool": "bash", "arguments": {"command": "ls"}})


def test_an_agent_asked_out_of_turn_says_what_it_expected(make_env: MakeEnv) -> None:
    agent = LlmAgent(LlmConfig(model="fake", base_url="http://127.0.0.1:9/v1"))
    with pytest.raises(AgentError, match=r"expected act\(\) with the info of reset\(\) first"):
        agent.act({}, {})
