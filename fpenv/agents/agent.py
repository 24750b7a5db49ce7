"""Whoever chooses the actions: the protocol, and the loop that plays one through an environment.

An agent sees what the environment shows and returns actions; it never sees the grade before the end.
`play` runs it until the episode ends; an agent that stops early has its deliverables graded as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from fpenv.env import FrontierPhysicsEnv, Observation
from fpenv.errors import AgentError, ProviderError
from fpenv.records import Grade

SUBMIT: dict[str, Any] = {"tool": "submit", "arguments": "{}"}


class Agent(Protocol):
    """Chooses actions. `reset_options` are for the task checker's own agents; ordinary ones have none."""

    name: str
    reset_options: dict[str, Any]

    def act(self, observation: Observation, info: dict[str, Any]) -> dict[str, Any] | None:
        """Return the next action, or None when there is nothing left to do. The first call gets the prompt."""
        ...


def play(
    env: FrontierPhysicsEnv,
    agent: Agent,
    *,
    instance: int | str | None = None,
    on_action: Callable[[dict[str, Any]], None] | None = None,
) -> tuple[Grade, dict[str, Any]]:
    """Play one episode to its end and return the grade and the last info.

    A provider that failed for good (ProviderError) makes the episode end as infrastructure, ungraded. Raises
    AgentError where the agent's own code failed; the sandbox is closed in any case.
    """
    options = {"instance": "canonical" if instance is None else instance, **agent.reset_options}
    env.agent_name = agent.name
    try:
        observation, info = env.reset(options=options)
        ended = False
        while not ended:
            try:
                action = _next(agent, observation, info)
            except ProviderError as error:
                info = env.abandon(error)
                break
            if on_action:
                on_action(action)
            observation, _, terminated, truncated, info = env.step(action)
            ended = terminated or truncated
    finally:
        env.close()
    assert env.grade is not None
    return env.grade, info


def _next(agent: Agent, observation: Observation, info: dict[str, Any]) -> dict[str, Any]:
    try:
        action = agent.act(observation, info)
    except ProviderError:
        raise
    except Exception as error:
        raise AgentError(f"agent {agent.name}: act() raised {type(error).__name__}: {error}") from error
    return SUBMIT if action is None else action
