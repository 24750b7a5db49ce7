"""A key stays in the host process: a canary planted in every supported place is found nowhere else."""

from __future__ import annotations

import logging
import pickle
import traceback
from pathlib import Path
from typing import Any

import pytest
from model_server import ModelServer, Raw, Status, calls, text

from fpenv.agents.agent import play
from fpenv.agents.llm.config import LlmConfig, RetryPolicy
from fpenv.agents.llm.credential import Credential
from fpenv.agents.llm.llm_agent import LlmAgent
from fpenv.cli import main
from fpenv.env import FrontierPhysicsEnv
from fpenv.errors import ConfigError

pytest.importorskip("openai")
COIN = Path(__file__).parent.parent / "packages" / "coin"
CANARY = "sk-canary-5f1d0c7ab29e4e66"
VARIABLE = "FPENV_TEST_KEY"
LOOK = (
    "env; cat /proc/*/environ /proc/*/cmdline 2>/dev/null | tr '\\0' '\\n'; "
    "grep -rsl canary / --include='*' --exclude-dir=proc --exclude-dir=sys --exclude-dir=usr | head"
)
QUICK = RetryPolicy(attempts=2, first_wait_s=0.01)


@pytest.fixture(autouse=True)
def planted(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (VARIABLE, "OPENAI_API_KEY"):
        monkeypatch.setenv(name, CANARY)


def assert_absent(where: str, *texts: str) -> None:
    for found in texts:
        assert CANARY not in found, f"the key is in {where}"


def assert_absent_below(folder: Path) -> None:
    files = [file for file in folder.rglob("*") if file.is_file()]
    assert any(file.name == "llm_calls.jsonl" for file in files)
    for file in files:
        assert CANARY.encode() not in file.read_bytes(), f"the key is in {file}"


def echoing_script() -> list[Any]:
    """A provider that puts the key wherever it can."""
    return [
        Status(429, f"slow down, {CANARY}", error_code=CANARY, retry_after="0"),
        Raw(f'data: {{"error": {{"message": "bad {CANARY}"}}}}\n\n'.encode()),
        text(f"Your key is {CANARY}.", refusal=f"not with {CANARY}"),
        calls("bash", {"command": LOOK}, "bash", {"command": f"echo {CANARY} > result.md"}, CANARY, {}),
        calls("bash", f'{{"command": "{CANARY}'),
        calls("submit", {}),
    ]


def test_the_key_reaches_the_provider_and_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with ModelServer(echoing_script()) as server:
        argv = ["run", str(COIN), "--agent", "llm", "--model", "fake", "--base-url", server.url]
        assert main([*argv, "--api-key-env", VARIABLE, "--out", str(tmp_path)]) == 0
    assert {seen.headers["authorization"] for seen in server.requests} == {f"Bearer {CANARY}"}
    assert len(server.requests) == 6
    assert_absent_below(tmp_path)
    shown = capsys.readouterr()
    assert_absent("output or logs", shown.out, shown.err, caplog.text)
    assert_absent("a request's body", *(str(seen.body) for seen in server.requests))


def test_the_key_is_in_no_grade_and_no_reason_when_the_provider_echoes_it_in_its_errors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with ModelServer([Status(401, f"Incorrect API key provided: {CANARY}")]) as server:
        argv = ["run", str(COIN), "--agent", "llm", "--model", "fake", "--base-url", server.url]
        assert main([*argv, "--api-key-env", VARIABLE, "--out", str(tmp_path), "--json"]) == 3
    assert_absent_below(tmp_path)
    shown = capsys.readouterr()
    assert "Incorrect API key provided: [key]" in shown.out
    assert_absent("output", shown.out, shown.err)


def test_the_key_is_in_no_exception_not_even_with_the_locals_of_its_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that leaves `play` carries its frames to whoever shows or pickles it."""
    with ModelServer([Status(500, CANARY)]) as server:
        config = LlmConfig(model="fake", base_url=server.url, api_key_env=VARIABLE, retries=QUICK)
        agent = LlmAgent(config)
        env = FrontierPhysicsEnv(COIN)
        monkeypatch.setattr(env, "abandon", _raise)
        with pytest.raises(Exception, match="expected a reply from the provider") as caught:
            play(env, agent)
    error = caught.value
    assert error.__cause__ is None
    assert error.__context__ is None
    shown = traceback.TracebackException.from_exception(error, capture_locals=True)
    ours = [str(frame.locals) for frame in shown.stack if "/fpenv/" in frame.filename]
    assert len(ours) >= 4
    assert_absent("a traceback", str(error), *ours, repr(pickle.loads(pickle.dumps(error))))


def _raise(error: Exception) -> None:
    raise error


def test_the_key_is_in_no_repr_and_no_pickle() -> None:
    config = LlmConfig(model="fake", base_url="http://127.0.0.1:9/v1", api_key_env=VARIABLE)
    agent, credential = LlmAgent(config), Credential(VARIABLE)
    assert_absent("a repr", repr(config), repr(agent), repr(credential), str(vars(agent)), repr(agent._endpoint))
    assert CANARY.encode() not in pickle.dumps(agent._endpoint)
    assert CANARY.encode() not in pickle.dumps(credential)
    assert pickle.loads(pickle.dumps(credential)).reveal() == CANARY


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"api_key_env": CANARY}, "expected the name of an environment variable that holds the key"),
        ({"api_key_env": CANARY.replace("-", "_").upper()}, "expected the name of an environment variable"),
        ({"base_url": f"http://user:{CANARY}@127.0.0.1/v1"}, "expected no user, password, query"),
        ({"base_url": f"http://127.0.0.1/v1?key={CANARY}"}, "expected no user, password, query"),
        ({"base_url": f"ftp://{CANARY}"}, "expected an http or https URL"),
        ({"base_url": f"http://127.0.0.1:{CANARY}/"}, "expected an http or https URL"),
    ],
)
def test_a_key_in_the_wrong_place_is_refused_without_being_shown(settings: dict[str, str], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected) as caught:
        LlmAgent(LlmConfig(**{"model": "fake", **settings}))  # type: ignore[arg-type]
    assert CANARY.lower().replace("-", "_") not in str(caught.value).lower().replace("-", "_")


def test_openais_key_is_not_sent_to_another_endpoint_unless_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OPENAI_ADMIN_KEY", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID", "OPENAI_WEBHOOK_SECRET"):
        monkeypatch.setenv(name, CANARY)
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/elsewhere")
    with ModelServer([calls("submit", {})]) as server:
        argv = ["run", str(COIN), "--agent", "llm", "--model", "fake", "--base-url", server.url]
        assert main([*argv, "--out", str(tmp_path)]) == 0
    assert CANARY not in str([seen.headers for seen in server.requests])


def test_a_short_key_is_not_blotted_out_of_ordinary_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "test")
    assert Credential(VARIABLE).redact("a test of it") == "a test of it"
