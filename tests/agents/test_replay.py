"""A stored trajectory played again: what it finds, what it overlooks only when told to, what it refuses."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fpenv.agents.agent import play
from fpenv.agents.replay import NORMALISERS, Replay, ReplayAgent, compare_steps, load_recorded
from fpenv.cli import main
from fpenv.env import FrontierPhysicsEnv
from fpenv.errors import ConfigError
from fpenv.records import Budget, Step, ToolResult
from fpenv.store import TrajectoryWriter, read_trajectory
from fpenv.task import load_task

MakeEnv = Callable[..., FrontierPhysicsEnv]
COIN = Path(__file__).parent.parent / "packages" / "coin"
UNBOXED = COIN.parent / "unboxed"
TOSS = {"tool": "instrument", "arguments": {"operation": "toss", "arguments": {"shots": 1500}}}


class Fixed:
    """Plays a list of actions."""

    name = "fixed"

    def __init__(self, *actions: Any) -> None:
        self.reset_options: dict[str, Any] = {}
        self._actions = list(actions)

    def act(self, observation: dict[str, Any], info: dict[str, Any]) -> dict[str, Any] | None:
        return self._actions.pop(0) if self._actions else None


def bash(command: str) -> dict[str, Any]:
    return {"tool": "bash", "arguments": {"command": command}}


@pytest.fixture
def record(make_env: MakeEnv, tmp_path: Path) -> Callable[..., Path]:
    def run(*actions: Any, instance: int | str = "canonical") -> Path:
        env = make_env(record_to=tmp_path / "runs")
        play(env, Fixed(*actions), instance=instance)
        assert env.recording is not None
        return env.recording.folder.path

    return run


def replay_json(capsys: pytest.CaptureFixture[str], run: Path, tmp_path: Path, *more: str) -> dict[str, Any]:
    argv = ["run", str(COIN), "--agent", f"replay:{run}", "--out", str(tmp_path / "again"), "--json", *more]
    capsys.readouterr()
    assert main(argv) == 0
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    return told


def step(output: str, step_id: int = 1, **more: Any) -> Step:
    return Step(
        step_id=step_id,
        parent_id=step_id - 1 or None,
        tool=more.pop("tool", "bash"),
        arguments="{}",
        result=ToolResult(output=output, **more),
        budget=Budget(steps_left=1, seconds_left=1, shots_left=1),
        started_s=0.0,
        ended_s=1.0,
    )


def test_a_deterministic_run_replays_to_the_same_outputs_and_the_same_grade(
    record: Callable[..., Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run = record(
        TOSS,
        bash('lab literature \'{"query": "coin"}\''),
        bash("echo bias: 0.3 > result.md; cat nothing"),
        ["malformed"],
        {"tool": "read_file", "arguments": {"path": "result.md"}},
        instance=4,
    )
    told = replay_json(capsys, run, tmp_path)
    assert told["differences"] == []
    assert Path(told["paths"]["run"]).parent.name == "4"
    again = Path(told["paths"]["run"])
    assert (again / "grade.json").read_bytes() == (run / "grade.json").read_bytes()
    old, new = (read_trajectory(folder / "trajectory.msgpack").steps for folder in (run, again))
    assert [(s.tool, s.arguments) for s in old] == [(s.tool, s.arguments) for s in new]


def test_a_difference_names_step_tool_and_first_differing_line(
    record: Callable[..., Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run = record(bash("echo same; cat /proc/sys/kernel/random/uuid"), bash("echo same"))
    (found,) = replay_json(capsys, run, tmp_path)["differences"]
    assert (found["step_id"], found["tool"], found["what"], found["line"]) == (1, "bash", "output", 2)
    assert found["recorded"] != found["played"]
    assert replay_json(capsys, run, tmp_path, "--normalise", "uuids")["differences"] == []


def test_the_terminal_is_told_what_differs_and_hostile_output_is_escaped(
    record: Callable[..., Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run = record(bash("printf '\\033[2J'; date +%N"), bash("echo same"))
    capsys.readouterr()
    assert main(["run", str(COIN), "--agent", f"replay:{run}", "--out", str(tmp_path / "again")]) == 0
    shown = capsys.readouterr().out
    assert "replay: 1 of 3 steps differ" in shown
    assert "step 1, bash: output line 1: recorded '\\x1b[2J" in shown
    assert "\x1b[2J" not in shown


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("times", "took 0.12 s", "took 13.4 s"),
        ("times", "at 2026-11-30T10:00:00Z", "at 2026-12-01T11:59:59Z"),
        ("times", "Mon Nov 30 10:00:00 UTC 2026", "Tue Dec  1 11:00:01 UTC 2026"),
        ("times", "-rw-r--r-- 1 root root 6 Nov 30 10:00 a", "-rw-r--r-- 1 root root 6 Dec  1 11:00 a"),
        ("times", "real\t0m0.004s", "real\t1m2.100s"),
        ("uuids", "id 2f1d7e9c-0a4b-4a7e-9d51-0c6f1e2a3b4c", "id aaaaaaaa-0a4b-4a7e-9d51-0c6f1e2a3b4c"),
        ("pids", "pid 12", "pid 4021"),
        ("pids", "[1] 12", "[1] 13"),
        ("addresses", "<object at 0x7f0000001000>", "<object at 0x7f0000002000>"),
    ],
)
def test_what_changes_from_run_to_run_is_overlooked_only_when_named(name: str, old: str, new: str) -> None:
    assert compare_steps([step(old)], [step(new)], [name]) == []
    others = [other for other in NORMALISERS if other != name]
    assert len(compare_steps([step(old)], [step(new)], others)) == 1
    assert len(compare_steps([step(old)], [step(new)])) == 1


def test_results_are_not_mistaken_for_times() -> None:
    every = list(NORMALISERS)
    assert len(compare_steps([step('{"heads": 1040}')], [step('{"heads": 1041}')], every)) == 1
    assert len(compare_steps([step("bias: 0.70")], [step("bias: 0.71")], every)) == 1


def test_a_missing_line_and_a_missing_step_are_differences() -> None:
    (found,) = compare_steps([step("a\nb")], [step("a")])
    assert (found.line, found.recorded, found.played) == (2, "b", None)
    (found,) = compare_steps([step("a"), step("b", 2)], [step("a")])
    assert (found.step_id, found.what) == (2, "the replay ended before it")


def test_a_cut_trajectory_is_played_to_its_last_whole_step_then_submitted(
    record: Callable[..., Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run = record(TOSS, bash("echo one"))
    file = run / "trajectory.msgpack"
    file.write_bytes(file.read_bytes()[:-5])
    told = replay_json(capsys, run, tmp_path)
    steps = read_trajectory(Path(told["paths"]["trajectory"])).steps
    assert [s.tool for s in steps] == ["instrument", "bash", "submit"]
    assert (told["differences"], told["stop"]) == ([], "submitted")
    replay = Replay(load_recorded(file, load_task(COIN)))
    assert replay.notes == ("the trajectory is cut: played to its last whole step, then submitted",)


def test_a_changed_task_is_a_warning_and_another_task_an_error(record: Callable[..., Path], tmp_path: Path) -> None:
    run = record(TOSS)
    changed = tmp_path / "coin"
    shutil.copytree(COIN, changed)
    (changed / "task.md").write_text((COIN / "task.md").read_text() + "\nTake care.\n")
    (note,) = load_recorded(run, load_task(changed)).notes
    assert note.startswith("the task has changed since: recorded with digest ")
    with pytest.raises(ConfigError, match="expected a trajectory of task unboxed, got one of coin"):
        load_recorded(run, load_task(UNBOXED))


def test_an_oracles_run_replays_with_the_oracle(
    make_env: MakeEnv, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    capsys.readouterr()
    assert main(["run", str(COIN), "--agent", "oracle", "--out", str(tmp_path), "--json"]) == 0
    run = Path(json.loads(capsys.readouterr().out)["paths"]["run"])
    told = replay_json(capsys, run, tmp_path)
    assert (told["s_final"], told["differences"]) == (100.0, [])
    assert ReplayAgent(load_recorded(run, load_task(COIN))).reset_options["oracle"] is True


def test_a_trajectory_without_a_header_or_a_task_is_one_clear_error(tmp_path: Path) -> None:
    file = tmp_path / "trajectory.msgpack"
    file.write_bytes(b"")
    with pytest.raises(ConfigError, match="not even its header is whole"):
        load_recorded(file, load_task(COIN))
    file.unlink()
    TrajectoryWriter(file).close()
    with pytest.raises(ConfigError, match="expected a trajectory that names its task and instance"):
        load_recorded(file, load_task(COIN))


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--agent", "replay:/nowhere"], "replay: expected a run folder or a trajectory file, found no /nowhere"),
        (["--agent", "noop", "--normalise", "times"], "--normalise: expected --agent replay:RUN with it"),
        (["--agent", "random:x"], "--agent random:SEED: expected a seed >= 0, got 'x'"),
    ],
)
def test_bad_arguments_are_one_line_each(capsys: pytest.CaptureFixture[str], argv: list[str], message: str) -> None:
    assert main(["run", str(COIN), *argv]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


def test_another_instance_or_an_unknown_normaliser_is_refused_before_anything_is_played(
    record: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    run = record(TOSS)
    for more, message in (
        (["--instance", "3"], "expected none, or the recorded instance canonical, got '3'"),
        (["--normalise", "colours"], "normalise: expected some of times, uuids, pids, addresses, got 'colours'"),
    ):
        assert main(["run", str(COIN), "--agent", f"replay:{run}", *more]) == 2
        assert message in capsys.readouterr().err
