"""A person plays through a real pseudo-terminal and a real sandbox: to the grade, across sittings, under attack."""

from __future__ import annotations

import io
import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from person import CTRL_C, CTRL_D, Person
from rich.console import Console

from fpenv.agents.human import ENDS, HumanAgent, play_human
from fpenv.agents.session import begin_session, load_session
from fpenv.agents.terminal import Terminal
from fpenv.agents.typed import Local, Mistake, action, typed_text, understand
from fpenv.cli import main
from fpenv.env import FrontierPhysicsEnv
from fpenv.errors import ConfigError
from fpenv.sandbox.sandbox import ExecResult
from fpenv.store import RunFolder, read_trajectory
from fpenv.testing.fake_sandbox import FakeBackend, FakeSandbox, finished

COIN = str(Path(__file__).parent.parent / "packages" / "coin")
TOSS = ':instrument {"operation": "toss", "arguments": {"shots": 1500}}'
Sit = Callable[..., Person]


@pytest.fixture
def sit(tmp_path: Path) -> Iterator[Sit]:
    seated: list[Person] = []

    def start(*argv: str, **settings: Any) -> Person:
        seated.append(Person("play", *(argv or (COIN, "--out", "runs")), cwd=tmp_path, **settings))
        return seated[-1]

    yield start
    for one in seated:
        one.__exit__()


def run_folder(tmp_path: Path, number: int = 1) -> Path:
    return tmp_path / "runs" / "coin" / "canonical" / f"{number:04d}"


def tools(run: Path) -> list[str]:
    return [step.tool for step in read_trajectory(run / "trajectory.msgpack").steps]


def session(run: Path) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((run / "session.json").read_text())
    return read


def test_a_person_plays_an_episode_to_100_and_it_is_recorded_like_any_other(sit: Sit, tmp_path: Path) -> None:
    one = sit()
    shown = one.sees("[500 steps, 10:00, 2000 shots] $ ")
    assert "The bias of a coin (coin, instance canonical)" in shown
    assert "Toss the coin (instrument `coin`" in shown
    assert "sheet.txt" in one.line("ls data")
    assert "toss {shots: 1 to 5000}" in one.line(":manual")
    assert "a coin" in one.line(":read data/sheet.txt")
    assert "Dynamical Bias in the Coin Toss" in one.line(":search coin")
    heads = int(re.search(r'"heads": (\d+)', one.line(TOSS))[1])  # type: ignore[index]
    one.line(":write result.md", "| ")
    one.line(f"bias: {heads / 1500}", "| ")
    assert "wrote" in one.line(".")
    one.line(":submit", "[yes/no] ")
    one.types("yes\r")
    assert one.ends() == 0
    assert "S_final = 100.0 of 100" in one.screen
    run = run_folder(tmp_path)
    info = RunFolder(run).read_run()
    assert (info.agent, info.stop) == ("human", "submitted")
    assert tools(run) == [
        "bash",
        "instrument",
        "read_file",
        "search_literature",
        "instrument",
        "write_file",
        "submit",
    ]
    assert RunFolder(run).read_grade().s_final == 100.0


def test_the_same_actions_by_another_agent_give_the_same_outputs_and_grade(
    sit: Sit, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = sit()
    one.sees("] $ ")
    for line in (TOSS, ":search coin", "echo bias: 0.7 > result.md; cat result.md"):
        one.line(line)
    one.line(":submit", "[yes/no] ")
    one.types("y\r")
    assert one.ends() == 0
    run = run_folder(tmp_path)
    argv = ["run", COIN, "--agent", f"replay:{run}", "--out", str(tmp_path / "again"), "--json"]
    assert main(argv) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["s_final"], told["differences"]) == (100.0, [])
    assert (Path(told["paths"]["run"]) / "grade.json").read_bytes() == (run / "grade.json").read_bytes()


def test_leaving_keeps_the_run_and_resuming_plays_it_again_with_the_elapsed_time_counted(
    sit: Sit, tmp_path: Path
) -> None:
    one = sit()
    one.sees("] $ ")
    one.line(TOSS)
    one.line("echo bias: 0.7 > result.md; sleep 2.2")
    one.types(CTRL_D)
    assert one.ends() == 0
    assert "Left after 2 steps and 0:02" in one.screen
    assert f"fpenv play --resume {Path('runs/coin/canonical/0001')}" in one.screen
    assert RunFolder(run_folder(tmp_path)).read_run().stop == "running"
    before = session(run_folder(tmp_path))["elapsed_s"]

    again = sit("--resume", "runs/coin/canonical/0001")
    again.sees("Resumed after 2 steps and 0:02")
    again.sees("] $ ")
    assert re.search(r"\[498 steps, 9:5\d, 500 shots\] \$ ", again.screen)
    assert "bias: 0.7" in again.line("cat result.md")
    assert "✓   1  " + TOSS in again.line(":history")
    again.line(":search coin")
    again.line(":submit", "[yes/no] ")
    again.types("yes\r")
    assert again.ends() == 0
    assert "S_final = 100.0 of 100" in again.screen
    run = run_folder(tmp_path, 2)
    steps = read_trajectory(run / "trajectory.msgpack").steps
    assert [step.tool for step in steps] == ["instrument", "bash", "bash", "search_literature", "submit"]
    assert steps[2].started_s >= before
    assert session(run)["resumed_from"].endswith("0001")

    late = sit("--resume", "runs/coin/canonical/0001")
    assert late.ends() == 2
    assert "this run goes on in" in late.screen


def test_time_spent_in_earlier_sittings_can_be_all_there_is(sit: Sit, tmp_path: Path) -> None:
    one = sit()
    one.sees("] $ ")
    one.line("echo kept > kept")
    one.types(CTRL_D)
    assert one.ends() == 0
    run = run_folder(tmp_path)
    (run / "session.json").write_text(json.dumps({**session(run), "elapsed_s": 601.0}))
    again = sit("--resume", "runs/coin/canonical/0001")
    again.sees("The time is over: whatever you do next ends the episode.")
    again.sees("[499 steps, 0:00, 2000 shots] $ ")
    again.types("echo late\r")
    assert again.ends() == 0
    assert "The episode ended: the time is over" in again.screen
    assert RunFolder(run_folder(tmp_path, 2)).read_run().stop == "time"


def test_a_resumed_run_that_comes_out_differently_says_so(sit: Sit, tmp_path: Path) -> None:
    one = sit()
    one.sees("] $ ")
    one.line("date +%s%N; cat /proc/sys/kernel/random/uuid")
    one.line("od -An -N4 -tu4 /dev/urandom")
    one.types(CTRL_D)
    assert one.ends() == 0
    again = sit("--resume", "runs/coin/canonical/0001")
    again.sees("Not everything came out as before")
    again.sees("step 2, bash: output line 1: recorded ")


def test_a_run_cut_by_a_crash_goes_on_after_its_last_whole_step(sit: Sit, tmp_path: Path) -> None:
    one = sit()
    one.sees("] $ ")
    one.line("echo one")
    one.line("echo two")
    one.kill()
    file = run_folder(tmp_path) / "trajectory.msgpack"
    file.write_bytes(file.read_bytes()[:-3])
    again = sit("--resume", "runs/coin/canonical/0001")
    again.sees("the trajectory is cut; it goes on after its last whole step")
    again.sees("Resumed after 1 steps")
    again.sees("[499 steps, ")


def test_a_replay_that_ends_the_episode_is_an_error_and_leaves_the_run_as_it_was(sit: Sit, tmp_path: Path) -> None:
    one = sit()
    one.sees("] $ ")
    one.line("echo one")
    one.line("echo two")
    one.types(CTRL_D)
    assert one.ends() == 0
    run = run_folder(tmp_path)
    (run / "session.json").write_text(json.dumps({**session(run), "max_steps": 1}))
    again = sit("--resume", "runs/coin/canonical/0001")
    assert again.ends() == 2
    assert "the recorded steps ended the episode (steps) when they were played again, after 1 of 2" in again.screen
    assert session(run)["continued_in"] == ""


@pytest.mark.parametrize(("by_agent", "stop"), [(True, "sandbox_ended"), (False, "infrastructure")])
def test_a_sandbox_that_ends_says_whose_doing_it_was_and_what_was_not_the_persons_can_be_resumed(
    make_env: Callable[..., FrontierPhysicsEnv],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    by_agent: bool,
    stop: str,
) -> None:
    def die(box: FakeSandbox, argv: tuple[str, ...]) -> ExecResult:
        if "die" in argv:
            box.end("lost", by_agent=by_agent)
        return finished(b"fine\n")

    screen = io.StringIO()
    monkeypatch.setattr("sys.stdin", io.StringIO("live\ndie\n"))
    terminal = Terminal(Console(file=screen, width=200))
    env = make_env(sandbox=FakeBackend(die), record_to=tmp_path, on_output=terminal.output)
    begun = begin_session(env.task, max_steps=500, time_limit_s=None, sandbox="local")
    _, info = play_human(HumanAgent(env, terminal, begun), env, None)
    assert info["stop"] == stop
    assert f"The episode ended: {ENDS[stop]}" in screen.getvalue()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if by_agent:
        with pytest.raises(ConfigError, match=r"it has ended \(sandbox_ended\)"):
            load_session(Path(info["run"]))
    else:
        _, recorded = load_session(Path(info["run"]))
        assert [step.tool for step in recorded.steps] == ["bash"]


def test_a_killed_session_is_resumed_and_what_was_running_is_named(sit: Sit, tmp_path: Path) -> None:
    one = sit()
    one.sees("] $ ")
    one.line("echo kept > kept")
    one.line("echo begun; sleep 60", "begun\r\n")
    one.kill()
    again = sit("--resume", "runs/coin/canonical/0001")
    again.sees("Given up, and not played again: echo begun; sleep 60")
    again.sees("] $ ")
    assert "kept" in again.line("cat kept")
    assert session(run_folder(tmp_path, 2))["abandoned"][0]["after_step"] == 1


def test_ctrl_c_at_the_prompt_drops_the_line_and_nothing_else(sit: Sit, tmp_path: Path) -> None:
    one = sit()
    one.sees("] $ ")
    one.types("echo half a li")
    one.sees("half a li")
    one.presses_until(CTRL_C, ":quit or Ctrl-D leaves")
    one.sees("] $ ")
    one.line("echo whole")
    assert tools(run_folder(tmp_path)) == ["bash"]


def test_one_ctrl_c_during_a_command_explains_and_lets_it_end(sit: Sit, tmp_path: Path) -> None:
    one = sit()
    one.sees("] $ ")
    one.line("echo begun; sleep 2; echo done", "begun\r\n")
    one.types(CTRL_C)
    one.sees("A running command cannot be stopped by itself")
    assert "at its limit of 120 s" in one.screen
    one.sees("done\r\n")
    one.sees("✓ step 1")
    one.sees("] $ ")
    assert "alive" in one.line("echo alive")


def test_a_second_ctrl_c_gives_the_command_up_and_the_session_goes_on_in_a_fresh_sandbox(
    sit: Sit, tmp_path: Path
) -> None:
    one = sit()
    one.sees("] $ ")
    one.line("echo kept > kept")
    one.line("echo gone > gone; echo begun; sleep 60", "begun\r\n")
    one.types(CTRL_C)
    one.sees("Ctrl-C once more")
    one.types(CTRL_C)
    one.sees("[yes/no] ")
    one.types("yes\r")
    one.sees("Given up, and not played again: echo gone")
    one.sees("] $ ")
    shown = one.line("ls")
    assert "kept" in shown
    assert "gone" not in shown
    run = run_folder(tmp_path, 2)
    assert tools(run) == ["bash", "bash"]
    assert [entry["tool"] for entry in session(run)["abandoned"]] == ["bash"]


def test_giving_a_command_up_and_not_going_on_leaves_a_run_that_can_be_resumed(sit: Sit, tmp_path: Path) -> None:
    one = sit()
    one.sees("] $ ")
    one.line("echo begun; sleep 60", "begun\r\n")
    one.types(CTRL_C)
    one.sees("Ctrl-C once more")
    one.types(CTRL_C)
    one.sees("[yes/no] ")
    one.types(CTRL_D)
    assert one.ends() == 0
    assert "fpenv play --resume" in one.screen
    again = sit("--resume", "runs/coin/canonical/0001")
    again.sees("] $ ")


def test_hostile_output_is_shown_not_obeyed(sit: Sit) -> None:
    one = sit()
    one.sees("] $ ")
    start = len(one.screen)
    one.line(r"printf '\033[2J\033]0;owned\007\r\342\200\256forged\n\377\b\b'; printf '\033[1A' >&2")
    one.line(r"printf '\033[2J' > 'x'; cp x $'\033[31mname'; ls --show-control-chars")
    one.line(":read x")
    shown = one.screen[start:]
    assert "\\x1b[2J\\x1b]0;owned\\x07\\x0d\\u{202e}forged" in shown
    # Readline moves the cursor itself, so that the attack's own sequences are looked for.
    for sequence in ("\x1b[2J", "\x1b]0;", "\x07", "\u202e", "\x1b[1A", "\x1b[31m"):
        assert sequence not in shown


def test_a_flood_of_output_is_capped_and_the_prompt_comes_back(sit: Sit) -> None:
    one = sit()
    one.sees("] $ ")
    one.line("yes flood | head -c 3000000", "bytes cut from the middle")
    one.sees("] $ ")
    assert len(one.screen) < 300_000


def test_mistakes_cost_no_step_and_say_what_was_expected(sit: Sit) -> None:
    one = sit()
    one.sees("] $ ")
    assert "there is no :nothing" in one.line(":nothing")
    assert "expected :instrument JSON" in one.line(":instrument {")
    assert "expected :read FILE" in one.line(":read 'a")
    assert ":submit" in one.line(":help")
    assert "left: 500 steps" in one.line(":budget")
    one.line(":submit", "[yes/no] ")
    assert "not handed in" in one.line("no")
    assert "commands may take 0.5 s" in one.line(":timeout 0.5")
    assert "killed at its time limit" in one.line("sleep 20")
    assert "[499 steps, " in one.screen[-60:]


def test_tab_completes_a_command_and_the_arrow_key_recalls_the_last_line(sit: Sit) -> None:
    one = sit()
    one.sees("] $ ")
    assert "used: 0:0" in one.line(":bud\t")
    one.line("echo $((40 + 2))")
    assert "42" in one.line("\x1b[A")


def test_a_file_is_written_in_the_editor_that_the_person_has_chosen(sit: Sit, tmp_path: Path) -> None:
    editor = tmp_path / "editor.sh"
    editor.write_text('#!/bin/sh\necho "edited: $(cat "$1")" > "$1"\n')
    editor.chmod(0o755)
    one = sit(editor=str(editor))
    one.sees("] $ ")
    one.line(":write notes.md")
    one.line(":write notes.md")
    assert "edited: edited: " in one.line("cat notes.md")


def test_an_editor_that_fails_writes_nothing(sit: Sit) -> None:
    one = sit(editor="false")
    one.sees("] $ ")
    assert "false ended with exit code 1: nothing written" in one.line(":write notes.md")


def test_a_budget_that_ends_the_episode_shows_the_last_output_and_the_grade(sit: Sit) -> None:
    one = sit(COIN, "--out", "runs", "--max-steps", "1")
    one.sees("[1 steps, ")
    one.types("echo last words\r")
    assert one.ends() == 0
    assert "last words\r\n✓ step 1" in one.screen
    assert "The episode ended: no steps are left" in one.screen
    assert "S_final = 0.0 of 100" in one.screen


def test_input_from_a_pipe_plays_too(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fpenv.cli", "play", COIN, "--out", "runs"],
        input=f"{TOSS}\n:search coin\necho bias: 0.7 > result.md\n:submit\nyes\n".encode(),
        capture_output=True,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0
    assert b"S_final = 100.0 of 100" in done.stdout


@pytest.mark.parametrize(
    ("line", "meaning"),
    [
        ("", None),
        ("  ls -l ", action("bash", {"command": "ls -l"})),
        (": > file", action("bash", {"command": ": > file"})),
        (":read 'a b' 5 10", action("read_file", {"path": "a b", "first_line": 5, "lines": 10})),
        (":write out.md", Local("write", "out.md")),
        (":search two words", action("search_literature", {"query": "two words"})),
        (":manual", action("instrument", {"operation": "manual"})),
        (":submit", Local("submit")),
        (":instrument [1]", Mistake("expected :instrument and a JSON object {...}, got a list")),
        (":timeout soon", Mistake("expected :timeout SECONDS, more than 0 and at most 36000")),
        (":timeout nan", Mistake("expected :timeout SECONDS, more than 0 and at most 36000")),
    ],
)
def test_a_line_means_what_the_help_says(line: str, meaning: Any) -> None:
    assert understand(line) == meaning


@pytest.mark.parametrize("line", ["ls -l", ":read 'a b' 5", ":search coin", ":manual", TOSS])
def test_what_was_done_is_told_as_it_was_typed(line: str) -> None:
    meant = understand(line)
    assert isinstance(meant, dict)
    assert typed_text(meant["tool"], meant["arguments"]) == line


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["play"], "play: expected a task, or --resume RUN, which knows its task; got both or neither"),
        (["play", COIN, "--resume", "x"], "got both or neither"),
        (["play", "nothing"], "expected a task's name or the folder of a package, got 'nothing'"),
        (["play", "--resume", "/nowhere"], "/nowhere/run.json: expected a run's file"),
        (["play", COIN, "--instance", "x"], "expected an instance"),
        (["play", "--resume", "x", "--max-steps", "9"], "--resume: expected no --instance, --sandbox or limits"),
    ],
)
def test_bad_arguments_are_one_line_each(capsys: pytest.CaptureFixture[str], argv: list[str], message: str) -> None:
    assert main(argv) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


def test_only_a_persons_unfinished_run_is_resumed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", COIN, "--agent", "noop", "--out", str(tmp_path)]) == 0
    assert main(["play", "--resume", str(tmp_path / "coin" / "canonical" / "0001")]) == 2
    assert "expected a run that a person played, got one of agent noop" in capsys.readouterr().err
