"""The command line: what it prints, where it leaves things, and how it says what went wrong."""

import json
from pathlib import Path

import pytest

from fpenv.cli import main
from fpenv.env import FrontierPhysicsEnv
from fpenv.store import read_trajectory

COIN = str(Path(__file__).parent / "packages" / "coin")
SCRIPT = """
TOSS = {"tool": "instrument", "arguments": {"operation": "toss", "arguments": {"shots": 200}}}
steps = iter([TOSS, {"tool": "bash", "arguments": {"command": "echo bias: 0.7 > result.md"}}])

def act(observation, info):
    return next(steps, None)
"""


def run_json(capsys: pytest.CaptureFixture[str], *argv: str, code: int = 0) -> dict:
    assert main([*argv, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def test_run_prints_the_grade_and_leaves_a_run_folder(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    told = run_json(capsys, "run", COIN, "--agent", "oracle", "--out", str(tmp_path))
    assert {"s_final", "status", "valid", "stop", "verifier", "rubric", "paths"} <= told.keys()
    assert (told["s_final"], told["status"], told["valid"], told["stop"]) == (100.0, "graded", True, "submitted")
    assert [t["outcome"] for t in told["verifier"]["tests"]] == ["passed", "passed"]
    assert told["rubric"]["criteria"][0]["name"] == "no_fabrication"
    trajectory = read_trajectory(Path(told["paths"]["trajectory"]))
    assert trajectory.complete
    assert [step.tool for step in trajectory.steps] == ["bash", "bash", "bash", "submit"]
    assert (Path(told["paths"]["deliverables"]) / "result.md").read_text().startswith("bias: ")


def test_grading_a_run_folder_again_gives_the_same_grade(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    told = run_json(capsys, "run", COIN, "--agent", "oracle", "--instance", "4", "--out", str(tmp_path))
    again = run_json(capsys, "grade", told["paths"]["run"], "--task", COIN)
    assert again == {key: told[key] for key in again}


def test_a_plain_folder_of_deliverables_is_graded_without_a_trajectory(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "result.md").write_text("bias: 0.7\n")
    told = run_json(capsys, "grade", str(tmp_path), "--task", COIN)
    assert (told["s_final"], told["rubric"]["failed_blockers"]) == (0.0, ["no_fabrication"])
    assert told["verifier"]["passed"] is True


def test_a_script_plays(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    script = tmp_path / "agent.py"
    script.write_text(SCRIPT)
    told = run_json(capsys, "run", COIN, "--agent", str(script), "--out", str(tmp_path / "runs"))
    assert told["s_final"] == pytest.approx(100 * 3 / 8)


def test_noop_scores_nothing_and_the_terminal_shows_why(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["run", COIN, "--agent", "noop", "--out", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "1 of 2 tests passed" in shown
    assert "S_final = 0.0 of 100" in shown


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["run", "nothing"], "ConfigError: expected a task's name or the folder of a package, got 'nothing'"),
        (["run", COIN, "--agent", "me.py"], "--agent: expected oracle, noop or a Python file, found no file me.py"),
        (["run", COIN, "--instance", "-1"], "expected an instance: 'canonical' or a seed >= 0, got '-1'"),
        (["run", COIN, "--instance", "9" * 5000], "expected a seed of at most 100 digits, got 5000 of them"),
        (["run", COIN, "--max-steps", "0"], "max_steps: expected an integer >= 1"),
        (["run", COIN, "--max-steps", "9" * 30], "max_steps: expected an integer >= 1 and at most 1e+09"),
        (["run", COIN, "--time-limit", "1e300"], "time_limit_s: expected seconds > 0, at most 1e+09"),
        (["tasks", "export", COIN, "--format", "harbor", "--to", f"{COIN}/task.md/x"], "task.md/x"),
        (["grade", "/nowhere"], "/nowhere: expected a run folder or a folder of deliverables"),
        (["tasks", "check", COIN, "--instances", "a"], "--instances: expected seeds such as 1,2,3"),
    ],
)
def test_an_error_is_one_line_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], argv: list[str], message: str
) -> None:
    assert main(argv) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert message in captured.err


def test_a_place_that_cannot_be_written_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert main(["run", COIN, "--agent", "noop", "--out", str(tmp_path / "file")]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith(f"fpenv: {tmp_path}/file/coin/canonical: expected to be able to read or write here")


def test_a_run_that_was_left_has_no_grade(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    env = FrontierPhysicsEnv(COIN, record_to=tmp_path)
    env.reset()
    env.close()
    assert env.recording is not None
    assert main(["grade", str(env.recording.folder.path), "--task", COIN]) == 2
    assert "expected a run that has ended; the run was left before its end" in capsys.readouterr().err


@pytest.mark.parametrize("kept", [0, 300, -1])
def test_a_run_whose_trajectory_is_damaged_has_no_grade(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, kept: int
) -> None:
    told = run_json(capsys, "run", COIN, "--agent", "oracle", "--out", str(tmp_path))
    file = Path(told["paths"]["trajectory"])
    file.write_bytes(file.read_bytes()[:kept])
    assert main(["grade", told["paths"]["run"], "--task", COIN]) == 2
    assert "expected a whole trajectory, got one that is cut or damaged" in capsys.readouterr().err
    file.unlink()
    assert main(["grade", told["paths"]["run"], "--task", COIN]) == 2
    assert "expected the run's trajectory, found none" in capsys.readouterr().err


def test_what_the_infrastructure_ended_stays_ungraded(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    script = tmp_path / "agent.py"
    script.write_text(
        'def act(observation, info):\n    return {"tool": "instrument", "arguments": {"operation": "jam"}}\n'
    )
    told = run_json(capsys, "run", COIN, "--agent", str(script), "--out", str(tmp_path / "runs"), code=3)
    again = run_json(capsys, "grade", told["paths"]["run"], "--task", COIN, code=3)
    assert again == {key: told[key] for key in again}


def test_what_was_refused_is_refused_for_the_same_reason_again(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    script = tmp_path / "agent.py"
    script.write_text(
        'steps = iter([{"tool": "bash", "arguments": {"command": "ln -s /etc/passwd result.md"}}])\n'
        "def act(observation, info):\n    return next(steps, None)\n"
    )
    told = run_json(capsys, "run", COIN, "--agent", str(script), "--out", str(tmp_path / "runs"))
    again = run_json(capsys, "grade", told["paths"]["run"], "--task", COIN)
    assert "symbolic link" in again["refused_deliverables"]["result.md"]
    assert again == {key: told[key] for key in again}


def test_a_run_of_a_package_says_that_it_needs_the_package(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    told = run_json(capsys, "run", COIN, "--agent", "noop", "--out", str(tmp_path))
    assert main(["grade", told["paths"]["run"]]) == 2
    assert "the run's task 'coin' does not come with fpenv: expected --task with its folder" in capsys.readouterr().err


def test_only_what_the_task_asks_for_is_read(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "result.md").write_text("bias: 0.7\n")
    (tmp_path / "data.bin").write_bytes(b"x")
    read: list[str] = []
    plain = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: read.append(path.name) or plain(path))
    told = run_json(capsys, "grade", str(tmp_path), "--task", COIN)
    assert told["verifier"]["passed"] is True
    assert "result.md" in read
    assert "data.bin" not in read


def test_a_script_that_raises_is_the_agents_error(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    script = tmp_path / "agent.py"
    script.write_text("def act(observation, info):\n    return 1 / 0\n")
    assert main(["run", COIN, "--agent", str(script), "--out", str(tmp_path / "runs")]) == 2
    assert "AgentError: agent agent.py: act() raised ZeroDivisionError" in capsys.readouterr().err


def test_tasks_show_tells_what_an_agent_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tasks", "show", COIN]) == 0
    shown = capsys.readouterr().out
    assert "Toss the coin" in shown
    assert "2 blockers, 2 non-blockers" in shown


def test_doctor_says_what_is_wrong_with_the_cache_and_goes_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FPENV_CACHE", "/dev/null")
    assert main(["doctor"]) == 1
    shown = capsys.readouterr().out
    assert "no  cache: the cache folder /dev/null cannot be made" in shown
    assert "no  sandbox: " in shown


def test_doctor_asks_the_docker_engine_itself(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere.sock")
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert "no  docker (optional): " in shown
    assert "only tasks that need Docker do" in shown


def test_doctor_starts_a_sandbox_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    assert "sandbox: started one and ran Python in it" in capsys.readouterr().out
