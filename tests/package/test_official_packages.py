"""Hand-made packages in each published variant, as others write them, played in a real sandbox."""

import shutil
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from fpenv.agents.agent import play
from fpenv.agents.noop import NoopAgent
from fpenv.agents.oracle import OracleAgent
from fpenv.env import FrontierPhysicsEnv
from fpenv.errors import TaskError
from fpenv.export import FORMATS, export_task
from fpenv.instance import make_instance
from fpenv.records import Grade
from fpenv.task import load_task

PACKAGES = Path(__file__).parent.parent / "packages"
VARIANTS = {
    "boxed": "task.md with sandbox:, pass/fail rubric, no deliverables named",
    "unboxed": "older task.md with environment:, scored rubric, reward.json and reward.txt",
    "harbor": "task.toml, tests/, solution/, everything in /app",
    "pinned": "pinned pip dependency, imported by oracle and tests",
    "wordless": "no pytest: the reward alone",
}


EAGER = """
from pathlib import Path

TEXT = Path("/root/result.md").read_text()


def test_speed():
    assert TEXT == "speed: 2.5\\n"
"""


class Observed:
    """An environment that remembers its last reward."""

    def __init__(self, env: FrontierPhysicsEnv) -> None:
        self.env, self.reward = env, 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)

    def step(self, action: dict[str, Any]) -> Any:
        result = self.env.step(action)
        self.reward = float(result[1])
        return result


def play_once(folder: Path, agent: Any, **settings: Any) -> tuple[Grade, float, dict[str, Any]]:
    env = gymnasium.make("fpenv:FrontierPhysics/task", path=folder, disable_env_checker=True, **settings)
    player = env.unwrapped
    assert isinstance(player, FrontierPhysicsEnv)
    observed = Observed(player)
    grade, info = play(observed, agent)  # type: ignore[arg-type]
    return grade, observed.reward, info


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("mode", ["verifier", "tests"])
def test_the_oracle_earns_everything(name: str, mode: str) -> None:
    grade, reward, info = play_once(PACKAGES / name, OracleAgent(load_task(PACKAGES / name)), reward=mode)
    assert (reward, info["valid"], grade.verifier.passed) == (100.0, True, True)
    assert grade.tests_passed == grade.tests_total > 0
    assert info["grade"]["status"] == "ungraded"


@pytest.mark.parametrize("name", VARIANTS)
def test_an_empty_submission_earns_nothing_in_the_grade_either(name: str) -> None:
    grade, reward, info = play_once(PACKAGES / name, NoopAgent(), reward="verifier")
    assert (reward, info["valid"]) == (0.0, True)
    assert (grade.status, grade.s_final) == ("graded", 0.0)


def test_without_checks_a_passing_submission_is_ungraded_by_the_rubric_and_says_so() -> None:
    for name, reason in (("boxed", "has no evidence.py"), ("harbor", "the package has no rubric")):
        grade, reward, info = play_once(PACKAGES / name, OracleAgent(load_task(PACKAGES / name)))
        assert (grade.s_final, reward, info["valid"]) == (None, 0.0, False)
        assert reason in grade.review.reason


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("name", VARIANTS)
def test_an_exported_package_loads_again_and_its_oracle_earns_everything(name: str, form: Any, tmp_path: Path) -> None:
    exported = export_task(make_instance(load_task(PACKAGES / name)), tmp_path / name, form)
    task = load_task(exported.path)
    assert (exported.path / {"harbor": "task.toml", "benchflow": "task.md"}[form]).is_file()
    assert task.prompt == load_task(PACKAGES / name).prompt
    assert play_once(exported.path, OracleAgent(task), reward="verifier")[1] == 100.0
    assert play_once(exported.path, NoopAgent(), reward="verifier")[1] == 0.0


def test_a_package_that_needs_an_engine_says_so_before_anything_starts(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(PACKAGES / "boxed", tmp_path / "boxed"))
    with (folder / "environment" / "Dockerfile").open("a") as file:
        file.write("RUN apt-get update && apt-get install -y gfortran\n")
    assert any("use Docker: line 10: RUN apt-get install -y gfortran" in note for note in load_task(folder).notes)
    env = FrontierPhysicsEnv(folder)
    with pytest.raises(TaskError, match=r"Dockerfile: .* line 10: RUN apt-get install -y gfortran; use the Docker"):
        env.reset()


def test_tests_that_cannot_be_imported_without_deliverables_are_still_expected(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(PACKAGES / "boxed", tmp_path / "boxed"))
    (folder / "verifier" / "test_outputs.py").write_text(EAGER)
    grade, reward, _ = play_once(folder, OracleAgent(load_task(folder)), reward="verifier")
    assert (reward, [test.test_id for test in grade.verifier.tests]) == (100.0, ["test_outputs.py::test_speed"])
    grade, reward, info = play_once(folder, NoopAgent(), reward="tests")
    assert (grade.s_final, reward, info["valid"]) == (0.0, 0.0, True)
    assert "own reward is 0" in grade.verifier.reason


def test_a_verifier_that_fails_without_a_reward_is_ungraded_not_0(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(PACKAGES / "wordless", tmp_path / "wordless"))
    (folder / "verifier" / "test.sh").write_text("exit 1\n")
    for mode in ("s_final", "verifier", "tests"):
        grade, reward, info = play_once(folder, NoopAgent(), reward=mode)
        assert (grade.s_final, reward, info["valid"]) == (None, 0.0, False)
    assert "no reward was written" in grade.reason


def test_rewards_that_disagree_are_ungraded(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(PACKAGES / "wordless", tmp_path / "wordless"))
    (folder / "verifier" / "test.sh").write_text(
        "echo 1 > /logs/verifier/reward.txt; echo '{\"reward\": 0.5}' > /logs/verifier/reward.json\n"
    )
    grade, _, info = play_once(folder, NoopAgent(), reward="verifier")
    assert not info["valid"]
    assert "expected them to agree" in grade.reason


PLANT = """
cd /app; echo 0 > period.txt; mkdir -p _pytest pytest
for name in conftest pytest/__init__ _pytest/__init__ sitecustomize usercustomize json os test_state; do
  printf 'import os\\nos._exit(0)\\n' > $name.py
done
printf '[pytest]\\naddopts = --co\\n' > pytest.ini; cp pytest.ini tox.ini; echo 1 > reward.txt; cp -r . /root
mkdir -p /app/tests /app/logs/verifier; echo 1 > /app/logs/verifier/reward.txt; echo 1.5 > pendulum.txt
"""


def test_files_planted_where_harbors_tests_start_neither_help_nor_harm() -> None:
    grade, reward, info = play_once(PACKAGES / "harbor", Player(PLANT), reward="tests")
    assert (reward, info["valid"]) == (0.0, True)
    assert "app/conftest.py" in grade.deliverables
    assert "app/pendulum.txt" not in grade.deliverables
    right = PLANT + "cd / && python3 -I -c 'print(2 * 3.141592653589793 * (1.5 / 9.81) ** 0.5)' > /app/period.txt"
    assert play_once(PACKAGES / "harbor", Player(right), reward="tests")[1] == 100.0


class Player:
    """Runs one command, then submits."""

    name = "player"

    def __init__(self, command: str) -> None:
        self.reset_options: dict[str, Any] = {}
        self._commands = [command]

    def act(self, observation: Any, info: dict[str, Any]) -> dict[str, Any] | None:
        return {"tool": "bash", "arguments": {"command": self._commands.pop()}} if self._commands else None
