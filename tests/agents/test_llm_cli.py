"""`fpenv run --agent llm`: what it takes, what it prints, and how it says what is missing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from model_server import ModelServer, calls

from fpenv.agents.llm.call_log import Call, Settings, read_call_log
from fpenv.cli import main

pytest.importorskip("openai")
COIN = str(Path(__file__).parent.parent / "packages" / "coin")
LLM = ("run", COIN, "--agent", "llm")


def test_a_model_plays_from_the_command_line_and_leaves_its_calls_beside_the_trajectory(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    prices = tmp_path / "prices.json"
    prices.write_text('{"fake": {"prompt_usd_per_million": 1, "completion_usd_per_million": 5}}')
    toss = {"operation": "toss", "arguments": {"shots": 200}}
    write = {"path": "result.md", "content": "bias: 0.7\n"}
    with ModelServer([calls("instrument", toss), calls("write_file", write), calls("submit", {})]) as server:
        argv = [*LLM, "--model", "fake", "--base-url", server.url, "--prices", str(prices), "--out", str(tmp_path)]
        assert main([*argv, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["agent"], told["s_final"], told["stop"]) == ("llm/fake", pytest.approx(37.5), "submitted")
    settings, *rest = read_call_log(Path(told["paths"]["run"]))
    assert isinstance(settings, Settings)
    assert (settings.model, settings.protocol) == ("fake", "tools")
    played = [line for line in rest if isinstance(line, Call)]
    assert [call.step_id for call in played] == [1, 2, 3]
    assert played[0].tokens is not None
    assert played[0].tokens.cost_usd == pytest.approx((100 * 1 + 10 * 5) / 1e6)


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ((), "--agent llm: expected --model NAME with it, got none"),
        (("--model", "m"), "expected the name of an environment variable that holds the key"),
        (("--model", "m", "--base-url", "nowhere"), "base_url: expected an http or https URL"),
        (("--model", "m", "--base-url", "http://127.0.0.1:9/v1", "--prices", "PRICES"), "expected a price of m"),
    ],
    ids=["model", "key", "url", "price"],
)
def test_what_is_missing_is_one_line(
    argv: tuple[str, ...],
    expected: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    prices = tmp_path / "prices.json"
    prices.write_text('{"other": {"prompt_usd_per_million": 1, "completion_usd_per_million": 5}}')
    assert main([*LLM, *(str(prices) if part == "PRICES" else part for part in argv)]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert expected in line
