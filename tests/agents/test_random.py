"""The random agent, and with it the promise that no action whatever breaks an episode."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fpenv.agents.agent import play
from fpenv.agents.random import RandomAgent
from fpenv.env import FrontierPhysicsEnv
from fpenv.episode import TOOLS
from fpenv.errors import ConfigError
from fpenv.testing.fake_sandbox import FakeBackend
from fpenv.tools.tool import normalise

MakeEnv = Callable[..., FrontierPhysicsEnv]


def actions_of(seed: int, number: int = 200) -> list[Any]:
    agent = RandomAgent(seed, actions=number)
    return [agent.act({}, {"tools": TOOLS.schemas()} if n == 0 else {}) for n in range(number)]


def soak(env: FrontierPhysicsEnv, seed: int) -> int:
    agent = RandomAgent(seed, actions=200)
    observation, info = env.reset()
    for taken in range(200):
        action = agent.act(observation, info)
        observation, reward, terminated, truncated, info = env.step(action)  # type: ignore[arg-type]
        assert env.observation_space.contains(observation), action
        assert reward == 0.0
        if terminated or truncated:
            return taken + 1
    return 200


@pytest.mark.parametrize("seed", range(10))
def test_200_random_steps_never_raise_and_always_give_observations_within_the_space(
    make_env: MakeEnv, seed: int
) -> None:
    assert soak(make_env(sandbox=FakeBackend()), seed) == 200


@pytest.mark.slow
def test_200_random_steps_in_a_real_sandbox_end_neither_the_episode_nor_the_process(make_env: MakeEnv) -> None:
    assert soak(make_env(), seed=1) == 200


def test_the_same_seed_gives_the_same_actions_and_another_gives_others() -> None:
    assert repr(actions_of(3)) == repr(actions_of(3))
    assert repr(actions_of(3)) != repr(actions_of(4))


def test_actions_are_well_formed_and_malformed_and_use_every_tool() -> None:
    parsed = [normalise(action) for action in actions_of(0, 500)]
    malformed = [entry for entry in parsed if isinstance(entry, str)]
    tools = {entry[0] for entry in parsed if not isinstance(entry, str)}
    assert 50 < len(malformed) < 250
    assert {schema["name"] for schema in TOOLS.schemas()} <= tools


def test_it_submits_after_its_last_action_and_is_graded(make_env: MakeEnv, tmp_path: Path) -> None:
    env = make_env(record_to=tmp_path)
    grade, info = play(env, RandomAgent(5, actions=10))
    assert (info["stop"], info["step_id"], grade.s_final) == ("submitted", 11, 0.0)


@pytest.mark.parametrize("seed", [-1, True, "x"])
def test_a_seed_that_is_none_is_one_clear_error(seed: Any) -> None:
    with pytest.raises(ConfigError, match="expected a seed >= 0"):
        RandomAgent(seed)
