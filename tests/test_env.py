"""An episode through the Gymnasium interface, in a real sandbox."""

import json
import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from fpenv.env import FrontierPhysicsEnv
from fpenv.errors import ConfigError
from fpenv.grading.grade import grade_bytes
from fpenv.records import Grade

MakeEnv = Callable[..., FrontierPhysicsEnv]
COIN = Path(__file__).parent / "packages" / "coin"
FLAGSHIP = "FrontierPhysics/rydberg-ising-critical-point"
TOSS = {"tool": "instrument", "arguments": {"operation": "toss", "arguments": {"shots": 1500}}}
SUBMIT = {"tool": "submit", "arguments": {}}


def bash(command: str, **more: Any) -> dict[str, Any]:
    return {"tool": "bash", "arguments": {"command": command, **more}}


def measure_and_report(env: FrontierPhysicsEnv) -> tuple[float, dict[str, Any]]:
    _, _, _, _, info = env.step(TOSS)
    env.step({"tool": "search_literature", "arguments": {"query": "coin"}})
    content = f"bias: {info['data']['result']['heads'] / 1500}\n"
    env.step({"tool": "write_file", "arguments": {"path": "result.md", "content": content}})
    _, reward, terminated, truncated, info = env.step(SUBMIT)
    assert (terminated, truncated) == (True, False)
    return reward, info


def test_measured_work_scores_100_and_the_grade_says_why(make_env: MakeEnv) -> None:
    env = make_env()
    env.reset()
    reward, info = measure_and_report(env)
    assert reward == 100.0
    assert info["valid"] is True
    assert info["stop"] == "submitted"
    assert [test["outcome"] for test in info["grade"]["verifier"]["tests"]] == ["passed", "passed"]
    assert [verdict["score"] for verdict in info["grade"]["review"]["verdicts"]] == [1, 1, 2, 2]


def test_a_right_value_without_a_measurement_fails_its_blocker_and_scores_0(make_env: MakeEnv) -> None:
    env = make_env()
    env.reset()
    env.step({"tool": "write_file", "arguments": {"path": "/root/result.md", "content": "bias: 0.7"}})
    _, reward, _, _, info = env.step(SUBMIT)
    assert reward == 0.0
    assert info["valid"] is True
    assert info["grade"]["tests_passed"] == 2
    assert info["grade"]["failed_blockers"] == ["no_fabrication"]


def test_the_canonical_answer_fails_on_another_seed(make_env: MakeEnv) -> None:
    env = make_env()
    env.reset(seed=1)
    env.step(TOSS)
    env.step(bash("echo bias: 0.7 > result.md"))
    _, reward, _, _, info = env.step(SUBMIT)
    assert reward == 0.0
    failed = [t["test_id"] for t in info["grade"]["verifier"]["tests"] if t["outcome"] != "passed"]
    assert failed == ["test_outputs.py::test_bias"]


def test_a_plain_reset_and_the_option_canonical_play_the_canonical_instance(make_env: MakeEnv) -> None:
    env = make_env()
    names = [env.reset()[1]["instance"], env.reset(options={"instance": "canonical"})[1]["instance"]]
    names += [env.reset(seed=3)[1]["instance"], env.reset(seed=3, options={"instance": "canonical"})[1]["instance"]]
    assert names == ["canonical", "canonical", "3", "canonical"]


def test_the_same_seed_gives_the_same_episode_byte_for_byte(make_env: MakeEnv) -> None:
    def play() -> tuple[Any, bytes]:
        env = make_env()
        env.reset(seed=5)
        observation = env.step(TOSS)[0]["output"]
        info = measure_and_report(env)[1]
        return observation, grade_bytes(Grade.model_validate(info["grade"]))

    assert play() == play()


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        ("ls", "expected an action"),
        ({"tool": "bsh", "arguments": "{}"}, "expected one of bash, write_file, read_file"),
        ({"tool": "bash", "arguments": "{"}, "the arguments are not JSON"),
        ({"tool": "bash", "arguments": "[1]"}, "expected a JSON object as arguments, got list"),
        ({"tool": "bash", "arguments": '{"command": NaN}'}, "holds? NaN"),
        ({"tool": "bash", "arguments": '{"comand": "ls"}'}, "command: Field required"),
        ({"tool": "bash", "arguments": {"command": "ls", "timeout_s": -1}}, "timeout_s: .*greater than 0"),
        ({"tool": "bash", "arguments": {"command": "echo \0"}}, "command: .*without NUL"),
        ({"tool": "write_file", "arguments": {"path": "\0", "content": ""}}, "path: .*without NUL"),
        ({"tool": "write_file", "arguments": {"path": "/proc/x", "content": ""}}, "/proc/x: "),
        ({"tool": "write_file", "arguments": {"path": "/etc", "content": ""}}, "/etc: "),
        ({"tool": "write_file", "arguments": {"path": "/" + "a/" * 2000, "content": ""}}, r"(a/)+a: .*"),
        ({"tool": "read_file", "arguments": {"path": "/nothing"}}, "/nothing: No such file"),
        ({"tool": "instrument", "arguments": {"operation": "toss", "arguments": {"shots": 0}}}, "expected an integer"),
    ],
)
def test_a_bad_action_is_an_observation_and_the_episode_goes_on(make_env: MakeEnv, action: Any, expected: str) -> None:
    env = make_env()
    env.reset()
    observation, reward, terminated, truncated, _ = env.step(action)
    assert (observation["failed"], reward, terminated, truncated) == (1, 0.0, False, False)
    assert re.search(expected, observation["output"])
    assert env.step(bash("echo on"))[0]["output"] == "on"


def test_every_observation_carries_the_budget_left(make_env: MakeEnv) -> None:
    env = make_env(max_steps=3, time_limit_s=100)
    observation, _ = env.reset()
    assert [int(observation[key][0]) for key in ("steps_left", "seconds_left", "shots_left")] == [3, 100, 2000]
    observation = env.step(TOSS)[0]
    assert [int(observation[key][0]) for key in ("steps_left", "shots_left")] == [2, 500]
    assert observation in env.observation_space


def test_shots_spent_by_a_program_in_the_sandbox_are_metered_and_recorded_too(make_env: MakeEnv) -> None:
    env = make_env()
    env.reset()
    request = json.dumps({"operation": "toss", "arguments": {"shots": 700}})
    observation = env.step(bash(f"python3 -c 'import lab; print(lab.call(\"instrument\", {request}))'"))[0]
    assert "heads" in observation["output"]
    assert observation["shots_left"] == 1300


def test_running_out_of_steps_grades_what_is_there_and_truncates(make_env: MakeEnv) -> None:
    env = make_env(max_steps=2)
    env.reset()
    env.step(TOSS)
    _, reward, terminated, truncated, info = env.step(bash("echo bias: 0.7 > result.md"))
    assert (terminated, truncated, info["stop"]) == (False, True, "steps")
    assert reward == pytest.approx(75.0)


def test_running_out_of_time_kills_the_command_and_grades_what_is_there(make_env: MakeEnv) -> None:
    env = make_env(time_limit_s=1.5)
    env.reset()
    env.step(TOSS)
    observation, reward, _, truncated, info = env.step(bash("echo bias: 0.7 > result.md; sleep 60"))
    assert "killed at its time limit" in observation["output"]
    assert (truncated, info["stop"]) == (True, "time")
    assert reward == pytest.approx(75.0)


def test_an_instrument_that_breaks_leaves_the_episode_ungraded_not_scored(make_env: MakeEnv) -> None:
    env = make_env()
    env.reset()
    _, reward, terminated, truncated, info = env.step({"tool": "instrument", "arguments": {"operation": "jam"}})
    assert (reward, terminated, truncated) == (0.0, False, True)
    assert (info["valid"], info["stop"], info["grade"]["s_final"]) == (False, "infrastructure", None)
    assert "the tosser jams" in info["grade"]["reason"]


def test_without_a_reviewer_a_passing_episode_is_ungraded_and_says_so(make_env: MakeEnv) -> None:
    env = make_env(reviewer=None)
    env.reset()
    reward, info = measure_and_report(env)
    assert (reward, info["valid"], info["grade"]["status"]) == (0.0, False, "ungraded")
    assert "no reviewer" in info["grade"]["reason"]


def test_nothing_can_be_done_after_the_end(make_env: MakeEnv) -> None:
    env = make_env()
    with pytest.raises(ConfigError, match=r"expected reset\(\) before step\(\)"):
        env.step(SUBMIT)
    env.reset()
    env.step(SUBMIT)
    with pytest.raises(ConfigError, match=r"the episode has ended: expected reset\(\)"):
        env.step(SUBMIT)


def test_nothing_can_be_done_after_close(make_env: MakeEnv, tmp_path: Path) -> None:
    env = make_env(record_to=tmp_path)
    env.reset()
    env.close()
    with pytest.raises(ConfigError, match=r"expected reset\(\) before step\(\)"):
        env.step(SUBMIT)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sandbox": "vm"}, "sandbox: expected one of local, docker, auto, or a Backend; got 'vm'"),
        ({"reviewer": "me"}, "reviewer: expected 'evidence', a Reviewer or None"),
        ({"max_steps": 0}, "max_steps: expected an integer >= 1 and at most 1e"),
        ({"max_steps": 10**10}, "max_steps: expected an integer >= 1 and at most 1e.09, got 10000000000"),
        ({"time_limit_s": float("nan")}, "time_limit_s: expected seconds > 0"),
        ({"time_limit_s": 1e300}, "time_limit_s: expected seconds > 0, at most 1e"),
        ({"render_mode": "human"}, "render_mode: expected 'ansi' or None"),
        ({"task": "no-such-task"}, "expected a task's name or the folder of a package, got 'no-such-task'"),
    ],
)
def test_a_wrong_setting_is_one_clear_error(make_env: MakeEnv, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_env(**settings)


@pytest.mark.parametrize("options", [{"instance": "seven"}, {"instance": -1}, {"instance": True}, {"colour": 1}])
def test_a_wrong_reset_option_is_one_clear_error_and_the_episode_before_goes_on(
    make_env: MakeEnv, options: dict[str, Any]
) -> None:
    env = make_env()
    env.reset()
    with pytest.raises(ConfigError, match="expected"):
        env.reset(options=options)
    assert env.step(bash("echo on"))[0]["output"] == "on"


def test_render_shows_the_episode_to_a_person(make_env: MakeEnv) -> None:
    env = make_env(render_mode="ansi")
    env.reset()
    env.step(bash("printf 'a\\033[31mred'; exit 3"))
    env.step(SUBMIT)
    text = env.render()
    assert text is not None
    assert "coin, instance canonical" in text
    assert "a\\x1b[31mred" in text
    assert "[exit code 3]" in text
    assert "S_final 0.0: ended by submitted; tests 1 of 2" in text


def test_check_env_finds_nothing_to_warn_about() -> None:
    gymnasium.register("FpenvTests/coin", entry_point="fpenv.env:FrontierPhysicsEnv", kwargs={"task": COIN})
    env = gymnasium.make("FpenvTests/coin", render_mode="ansi")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env.unwrapped)
    env.close()


def test_the_readmes_id_is_registered_without_a_warning() -> None:
    env = gymnasium.make(FLAGSHIP, max_steps=5)
    assert env.spec is not None
    assert env.spec.id == FLAGSHIP
    check_env(env.unwrapped, skip_render_check=True)
    env.close()


def test_a_process_that_has_not_imported_fpenv_makes_it_by_the_module_prefix() -> None:
    code = f"import gymnasium; gymnasium.make('fpenv:{FLAGSHIP}').close()"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_vector_of_environments_plays_side_by_side(make_env: MakeEnv) -> None:
    envs = gymnasium.vector.SyncVectorEnv([make_env, make_env])
    envs.reset(seed=[1, 2])
    observation, rewards, *_ = envs.step({"tool": ("bash", "bash"), "arguments": ('{"command": "echo a"}',) * 2})
    assert observation["output"] == ("a", "a")
    assert np.array_equal(rewards, [0.0, 0.0])
    envs.close()
