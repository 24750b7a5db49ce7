"""The Gymnasium environment: `gymnasium.make("FrontierPhysics/rydberg-ising-critical-point")`.

    observation, info = env.reset()          # the prompt; instance "canonical", or reset(seed=k) for instance k
    observation, reward, terminated, truncated, info = env.step({"tool": "bash", "arguments": '{"command": "ls"}'})

The reward is 0 until the end and then S_final in [0, 100]. `terminated` means submitted, or that the agent
ended its own sandbox; `truncated` means that a budget ran out, or that the infrastructure failed. At the end
`info["grade"]` is the whole grade as a mapping, `info["stop"]` says why the episode ended, and
`info["valid"]` whether the reward may be trained on: an ungraded episode has reward 0.0 with `valid` False,
because Gymnasium wants a number there; mask it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, get_args

import gymnasium
import numpy as np

from fpenv import spaces
from fpenv.episode import TOOLS, Episode, EpisodeConfig
from fpenv.errors import ConfigError, FpenvError
from fpenv.grading.evidence import EvidenceReviewer
from fpenv.grading.reviewer import Reviewer
from fpenv.instance import make_instance
from fpenv.placement import Placement, check_place, place
from fpenv.recording import Recording
from fpenv.records import Budget, Grade, Step
from fpenv.sandbox.sandbox import Backend, OutputSink
from fpenv.task import Task, find_task, load_task
from fpenv.transcript import Transcript

Observation = dict[str, Any]
Reward = Literal["s_final", "verifier", "tests"]
REWARDS = get_args(Reward)


class FrontierPhysicsEnv(gymnasium.Env[Observation, dict[str, Any]]):
    """A task as a multi-step environment. One episode at a time, each in a fresh sandbox.

    Args:
        task: name of a task, or the folder of a package.
        sandbox: "local" (bubblewrap; the default), "docker", "auto" (by the task's size), or a Backend.
        reviewer: "evidence" (the task's evidence checks; the default), a Reviewer, or None, which leaves the
            rubric, and with it every grade that needs it, ungraded.
        reward: "s_final" (the grade; the default), or, for packages without evidence checks or rubric, "verifier"
            (100 if every hidden test passed) or "tests" (100 times the share that passed). The grade is the same.
        max_steps: actions per episode.
        time_limit_s: wall-clock seconds per episode; None for the task's own limit.
        record_to: folder in which each episode leaves a run folder (trajectory, deliverables, grade).
        render_mode: "ansi", or None.
        on_output: called with a command's output while it runs.
    """

    metadata = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012 - Gymnasium's own class attribute

    def __init__(
        self,
        task: str | Path,
        *,
        sandbox: str | Backend = "local",
        reviewer: Literal["evidence"] | Reviewer | None = "evidence",
        reward: Reward = "s_final",
        max_steps: int = 500,
        time_limit_s: float | None = None,
        record_to: str | Path | None = None,
        render_mode: str | None = None,
        on_output: OutputSink | None = None,
    ) -> None:
        if render_mode not in (None, "ansi"):
            raise ConfigError(f"render_mode: expected 'ansi' or None, got {render_mode!r}")
        if isinstance(reviewer, str) and reviewer != "evidence":
            raise ConfigError(f"reviewer: expected 'evidence', a Reviewer or None, got {reviewer!r}")
        if reward not in REWARDS:
            raise ConfigError(f"reward: expected one of {', '.join(REWARDS)}, got {reward!r}")
        self.task: Task = find_task(task)
        self._reward = reward
        self.action_space = spaces.action_space()
        self.observation_space = spaces.observation_space()
        self.render_mode = render_mode
        self.grade: Grade | None = None
        self.recording: Recording | None = None
        self.agent_name = "python"
        check_place(sandbox)
        self._sandbox = sandbox
        self._placed: Placement | None = None
        self._reviewer = EvidenceReviewer() if reviewer == "evidence" else reviewer
        self._limits = EpisodeConfig(max_steps=max_steps, time_limit_s=time_limit_s, on_output=on_output)
        self._record_to = Path(record_to) if record_to is not None else None
        self._episode: Episode | None = None
        self._transcript = Transcript()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start an episode.

        seed: play instance `seed`. options: {"instance": "canonical" or a seed} overrides it, and
        {"oracle": True} lays the task's solution into /oracle, for checking tasks only. A plain reset plays
        the canonical instance. Raises ConfigError, TaskError, SandboxError.
        """
        super().reset(seed=seed)
        chosen = dict(options or {})
        instance = make_instance(self.task, chosen.pop("instance", seed))
        oracle = chosen.pop("oracle", False)
        if chosen:
            raise ConfigError(f"reset options: expected 'instance' and 'oracle', got {sorted(map(str, chosen))}")
        self.close()
        self.grade, self.recording = None, None
        placed = self._placed = self._placed or place(self.task, self._sandbox)
        config = EpisodeConfig(
            max_steps=self._limits.max_steps,
            time_limit_s=self._limits.time_limit_s,
            oracle=bool(oracle),
            on_output=self._limits.on_output,
            on_step=self._on_step,
        )
        if self._record_to is not None:
            self.recording = Recording(self._record_to, instance, agent=self.agent_name, oracle=bool(oracle))
        self._episode = Episode(instance, placed.backend, placed.runtime, config)
        self._transcript = Transcript(title=f"{self.task.name}, instance {instance.name}")
        info = {
            "task": self.task.name,
            "task_digest": self.task.digest,
            "instance": instance.name,
            "tools": TOOLS.schemas(),
            **self._where(),
        }
        return _observe(self.task.prompt, False, self._episode.budget()), info

    def step(self, action: dict[str, Any]) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Take one action. Whatever it holds, the answer is an observation."""
        if self._episode is None:
            raise ConfigError("expected reset() before step(), got none")
        step = self._episode.step(action)
        observation = _observe(step.result.output, step.result.failed, step.budget)
        info: dict[str, Any] = {"step_id": step.step_id, "tool": step.tool, "data": dict(step.result.data)}
        if self._episode.stop is None:
            return observation, 0.0, False, False, info
        info |= self._end(self._episode)
        assert self.grade is not None
        earned = reward_of(self.grade, self._reward)
        terminated = self._episode.stop in ("submitted", "sandbox_ended")
        return observation, earned or 0.0, terminated, not terminated, info

    def abandon(self, error: FpenvError) -> dict[str, Any]:
        """End the episode ungraded, because what serves the agent failed; returns the last info, as of `step`."""
        if self._episode is None:
            raise ConfigError("expected reset() before abandon(), got none")
        self._episode.abandon(error)
        return self._end(self._episode)

    def render(self) -> str | None:
        """The episode so far, as text for a person; control characters are shown, not obeyed."""
        return self._transcript.text() if self.render_mode == "ansi" else None

    def close(self) -> None:
        """End the sandbox of the current episode. Idempotent."""
        if self._episode is not None:
            self._episode.close()
        self._episode = None
        if self.recording is not None:
            self.recording.close()

    def _on_step(self, step: Step) -> None:
        self._transcript.add(step)
        if self.recording is not None:
            self.recording.append(step)

    def _end(self, episode: Episode) -> dict[str, Any]:
        grade = self._finish(episode)
        info: dict[str, Any] = {
            "stop": episode.stop,
            "grade": grade.model_dump(mode="json"),
            "valid": reward_of(grade, self._reward) is not None,
        }
        return info | self._where()

    def _where(self) -> dict[str, str]:
        return {"run": str(self.recording.folder.path)} if self.recording else {}

    def _finish(self, episode: Episode) -> Grade:
        self.grade = episode.finish(self._reviewer)
        assert episode.stop is not None
        self._transcript.end(episode.stop, self.grade)
        if self.recording is not None:
            self.recording.finish(episode.stop, self.grade, episode.collected)
        return self.grade


def make_from_path(path: str | Path | None = None, **settings: Any) -> FrontierPhysicsEnv:
    """What `gymnasium.make("fpenv:FrontierPhysics/task", path=FOLDER)` makes: a task from any package folder."""
    if path is None:
        raise ConfigError("FrontierPhysics/task: expected path=FOLDER of a task package, got none")
    return FrontierPhysicsEnv(load_task(path).path, **settings)


def reward_of(grade: Grade, reward: Reward) -> float | None:
    """The reward in [0, 100] that a grade is worth, or None where that part of it is ungraded."""
    if reward == "s_final":
        return grade.s_final
    if grade.verifier.status == "ungraded" or not grade.tests_total:
        return None
    return 100.0 * grade.verifier.passed if reward == "verifier" else 100.0 * grade.tests_passed / grade.tests_total


def _observe(output: str, failed: bool, budget: Budget) -> Observation:
    return {
        "output": output,
        "failed": int(failed),
        "steps_left": np.array([budget.steps_left], dtype=np.int64),
        "seconds_left": np.array([budget.seconds_left], dtype=np.int64),
        "shots_left": np.array([budget.shots_left], dtype=np.int64),
    }
