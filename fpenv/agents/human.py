"""A person at a terminal plays an episode: the human baseline, recorded like any other agent.

A plain line is a shell command; lines that begin with a colon and a word are the rest (`:help`). What is
mistyped costs no step; what reaches the sandbox costs what it costs any agent.
"""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

from fpenv.agents.agent import SUBMIT, play
from fpenv.agents.replay import NORMALISERS, Recorded, compare_steps
from fpenv.agents.session import Abandonment, Session
from fpenv.agents.terminal import Terminal
from fpenv.agents.typed import HELP, Local, Mistake, action, clock, typed_text, understand
from fpenv.env import FrontierPhysicsEnv, Observation
from fpenv.errors import AgentError
from fpenv.records import Budget, Grade
from fpenv.store import read_trajectory
from fpenv.tools.bash import DEFAULT_TIMEOUT_S

SHOWN_DIFFERENCES = 5
ENDS = {
    "steps": "no steps are left; what is there is graded",
    "time": "the time is over; what is there is graded",
    "sandbox_ended": "its sandbox ended by what ran inside",
    "infrastructure": "something outside of it failed, so it is not graded; the run can be resumed",
}


class Left(BaseException):
    """The person left without handing in. Passes through `except Exception`, as leaving is no failure."""


class HumanAgent:
    """Asks a person for each action. `session` is what was played before, with `recorded` to play it again."""

    name = "human"

    def __init__(
        self,
        env: FrontierPhysicsEnv,
        terminal: Terminal,
        session: Session,
        recorded: Recorded | None = None,
        *,
        greets: bool = True,
    ) -> None:
        self.reset_options: dict[str, Any] = {"instance": recorded.run.instance} if recorded else {}
        self.session = session
        self._greets = greets
        self._env, self._terminal = env, terminal
        self._recorded = recorded.steps if recorded else ()
        self._resumed = recorded is not None
        self._resumed_from = recorded.path.parent if recorded else None
        self._replayed = 0
        self._taken: list[tuple[str, str, bool | None]] = []
        self._zero = time.monotonic()
        self._instance = ""
        self._timeout_s: float | None = None
        self._written: dict[str, str] = {}
        self._seen_at = self._began_at = time.monotonic()

    def act(self, observation: Observation, info: dict[str, Any]) -> dict[str, Any] | None:
        """Show what came back and return what the person does next. Raises Left."""
        self._terminal.end()
        self._seen_at = time.monotonic()
        self._instance = info.get("instance", self._instance)
        self._note_outcome(observation)
        if self._replayed < len(self._recorded):
            return self._play_again()
        if self._resumed:
            self._end_replay()
        elif not self._taken:
            self._zero = time.monotonic()
            self._greet()
        else:
            self._show(observation, info)
        self._save(None)
        return self._begin(self._ask())

    def elapsed_s(self) -> float:
        """Time of all sittings, without what a replay took."""
        return time.monotonic() - self._zero

    @property
    def replaying(self) -> bool:
        return self._resumed

    @property
    def steps_kept(self) -> int:
        """Steps that the run folder to be resumed holds."""
        if self._resumed:
            return len(self._recorded)
        run = self._run()
        return len(read_trajectory(run / "trajectory.msgpack").steps) if run else 0

    @property
    def resumable(self) -> Path | None:
        """The run folder to resume: this sitting's, or until its replay is done the one before."""
        return self._resumed_from if self._resumed else self._run()

    # A replay at the beginning

    def _play_again(self) -> dict[str, Any]:
        """The next recorded action, with the episode's clock as it stood then."""
        step = self._recorded[self._replayed]
        if not self._replayed:
            self._terminal.say(f"Playing {len(self._recorded)} recorded steps into a fresh sandbox …", "dim")
        self._replayed += 1
        self._terminal.quiet = True
        self._taken.append((step.tool, step.arguments, None))
        set_elapsed(self._env, step.started_s)
        self._terminal.begin("The recorded steps are being played again. Ctrl-C once more to leave.")
        return {"tool": step.tool, "arguments": step.arguments} if step.tool else {}

    def _end_replay(self) -> None:
        self._resumed = self._terminal.quiet = False
        self._zero = time.monotonic() - self.session.elapsed_s
        set_elapsed(self._env, self.session.elapsed_s)
        self._mark_continued()
        if self._greets:
            self._greet()
        self._tell_replay()

    def _mark_continued(self) -> None:
        self.session = self.session.model_copy(update={"resumed_from": str(self._resumed_from)})
        if self._resumed_from is not None and (run := self._run()):
            self.session.model_copy(update={"continued_in": str(run)}).write(self._resumed_from)

    def _tell_replay(self) -> None:
        say = self._terminal.say
        say(f"Resumed after {len(self._taken)} steps and {clock(self.session.elapsed_s)}; :history shows them.", "bold")
        for tool, arguments, _ in self._taken:
            self._terminal.remember(typed_text(tool, arguments))
        run = self._run()
        played = read_trajectory(run / "trajectory.msgpack").steps if run else ()
        differences = compare_steps(self._recorded, played, NORMALISERS) if run else []
        if differences:
            say("Not everything came out as before (times, ids and addresses aside):", "yellow")
        for difference in differences[:SHOWN_DIFFERENCES]:
            say(f"  {difference}", "yellow")
        if self.session.abandoned:
            last = self.session.abandoned[-1]
            say(f"Given up, and not played again: {typed_text(last.tool, last.arguments)[:120]}", "yellow")

    # What the person sees

    def _greet(self) -> None:
        task, say = self._env.task, self._terminal.say
        self._terminal.rule()
        say(f"{task.front.metadata.title or task.name} ({task.name}, instance {self._instance})", "bold")
        say(f"hand in: {', '.join(map(task.absolute, task.deliverables)) or 'every new file'}", "dim")
        say(f"left:    {self._budget()}", "dim")
        say(f"run:     {self._run() or 'not recorded'}", "dim")
        self._brief()
        say("Type shell commands; :help lists the rest, :submit hands in, Ctrl-D leaves to go on later.\n", "dim")

    def _brief(self) -> None:
        self._terminal.rule()
        self._terminal.say(self._env.task.prompt.strip(), prose=True)
        self._terminal.rule()

    def _show(self, observation: Observation, info: dict[str, Any]) -> None:
        """What came back, unless it was shown while it came, and one line on how it ended."""
        data = info.get("data", {})
        streamed = self._terminal.flush()
        if not streamed and observation["output"] and not ("exit_code" in data and not _has_output(observation)):
            tool = self._taken[-1][0]
            reads = tool == "search_literature" or (tool == "instrument" and not data)  # works, a manual
            self._terminal.say(observation["output"], prose=reads)
        cut = data.get("stdout_cut", 0) + data.get("stderr_cut", 0)
        how = [f"step {len(self._taken)}", f"{self._seen_at - self._began_at:.1f} s"]
        if data.get("timed_out"):
            how.append("killed at its time limit")
        elif data.get("exit_code"):
            how.append(f"exit code {data['exit_code']}")
        how += [f"{cut:,} bytes cut from the middle"] if cut else []
        failed = bool(observation["failed"])
        self._terminal.say(f"{'✗' if failed else '✓'} {', '.join(how)}", "red" if failed else "green")

    def _budget(self) -> str:
        left = budget_of(self._env)
        return f"{left.steps_left} steps, {clock(left.seconds_left)}, {left.shots_left} shots"

    def _history(self) -> None:
        for number, (tool, arguments, failed) in enumerate(self._taken, start=1):
            text = " ".join(typed_text(tool, arguments).split())
            self._terminal.say(f"{'✗' if failed else '✓'} {number:>3}  {text[:120]}", "red" if failed else "")
        if not self._taken:
            self._terminal.say("nothing yet")

    # What the person types

    def _ask(self) -> dict[str, Any]:
        while True:
            if budget_of(self._env).seconds_left <= 0:
                self._terminal.say("The time is over: whatever you do next ends the episode.", "yellow")
            try:
                line = self._terminal.ask(f"[{self._budget()}] $ ", remember=True)
                while line is not None and line.endswith("\\"):
                    more = self._terminal.ask("> ")
                    line = None if more is None else f"{line[:-1]}{more}"
            except KeyboardInterrupt:
                self._terminal.say("\n(:submit hands in, :quit or Ctrl-D leaves to go on later)", "dim")
                continue
            if line is None:
                raise Left
            meant = understand(line, self._timeout_s)
            if isinstance(meant, Mistake):
                self._terminal.say(meant.text, "yellow")
            chosen = self._answer(meant) if isinstance(meant, Local) else meant
            if isinstance(chosen, dict):
                return chosen

    def _answer(self, local: Local) -> dict[str, Any] | None:
        """Do what costs no step; the action that comes of it, if one does."""
        say = self._terminal.say
        match local.name:
            case "write":
                return self._compose(local.rest)
            case "submit":
                agreed = self._terminal.agrees("Hand in what is there and end the episode? It cannot be undone.")
                say("Handed in; the grade is being made …" if agreed else "not handed in", "dim")
                return SUBMIT if agreed else None
            case "timeout":
                self._timeout_s = float(local.rest) if local.rest else None
                say(f"commands may take {f'{local.rest} s' if local.rest else f'{DEFAULT_TIMEOUT_S:g} s'} from here on")
            case "brief":
                self._brief()
            case "history":
                self._history()
            case "budget":
                say(f"left: {self._budget()}; used: {clock(self.elapsed_s())}")
            case "help":
                say(HELP)
            case _:
                raise Left
        return None

    def _compose(self, path: str) -> dict[str, Any] | None:
        content = self._terminal.compose(path, self._written.get(path, ""))
        if content is None:
            self._terminal.say("nothing written", "dim")
            return None
        self._written[path] = content
        return action("write_file", {"path": path, "content": content})

    # What is kept

    def _begin(self, chosen: dict[str, Any]) -> dict[str, Any]:
        began = Abandonment(
            after_step=len(self._taken),
            tool=chosen["tool"],
            arguments=chosen["arguments"],
            elapsed_s=self.elapsed_s(),
        )
        self._save(began)
        self._taken.append((chosen["tool"], chosen["arguments"], None))
        self._began_at = time.monotonic()
        self._terminal.begin(_advice(chosen, self._timeout_s))
        return chosen

    def _note_outcome(self, observation: Observation) -> None:
        if self._taken:
            tool, arguments, _ = self._taken[-1]
            self._taken[-1] = (tool, arguments, bool(observation["failed"]))

    def _run(self) -> Path | None:
        return self._env.recording.folder.path if self._env.recording else None

    def _save(self, running: Abandonment | None) -> None:
        self.session = self.session.model_copy(update={"elapsed_s": self.elapsed_s(), "running": running})
        if run := self._run():
            self.session.write(run)

    def leave(self) -> None:
        """Keep the session as it stands, with what was running as given up."""
        self._terminal.end()
        self._terminal.flush()
        if self._resumed:
            return
        if self.session.running:
            kept = (*self.session.abandoned, self.session.running)
            self.session = self.session.model_copy(update={"abandoned": kept})
        self._save(None)

    def conclude(self, info: dict[str, Any]) -> None:
        """Show what the last action gave, if a budget or the sandbox's end came with it. Raises AgentError."""
        self._terminal.end()
        self._terminal.quiet = False
        if self._resumed:
            raise AgentError(
                f"the recorded steps ended the episode ({info['stop']}) when they were played again, after "
                f"{self._replayed} of {len(self._recorded)}; {self._resumed_from} is as it was: resume it again"
            )
        self._save(None)
        if info["stop"] != "submitted" and (run := self._run()):
            last = read_trajectory(run / "trajectory.msgpack").steps[-1]
            self._seen_at = self._began_at + last.ended_s - last.started_s
            self._show({"output": last.result.output, "failed": last.result.failed}, {"data": last.result.data})
            self._terminal.say(f"The episode ended: {ENDS[info['stop']]}.", "bold")


def play_human(agent: HumanAgent, env: FrontierPhysicsEnv, instance: str | None) -> tuple[Grade, dict[str, Any]]:
    """Play until the end. Raises Left or Abandoned when the person leaves; the run folder can be resumed then."""
    try:
        grade, info = play(env, agent, instance=instance)
    except BaseException:
        agent.leave()
        raise
    agent.conclude(info)
    return grade, info


def budget_of(env: FrontierPhysicsEnv) -> Budget:
    """What is left at this moment, while the person thinks."""
    assert env._episode is not None
    return env._episode.budget()


def set_elapsed(env: FrontierPhysicsEnv, elapsed_s: float) -> None:
    """Set the clock of a running episode, so that a resumed one counts what was spent before and no replay."""
    assert env._episode is not None
    env._episode._started = time.monotonic() - elapsed_s


def _advice(action: dict[str, Any], timeout_s: float | None) -> str:
    if action["tool"] == "submit":
        return "The grade is being made. Ctrl-C once more leaves without it; the run can be resumed."
    return (
        f"A running command cannot be stopped by itself: it ends when it is done or at its limit of "
        f"{timeout_s or DEFAULT_TIMEOUT_S:g} s (:timeout).\n"
        "Ctrl-C once more gives it up: its sandbox ends, and the steps before it can be played again into a fresh one."
    )


def _has_output(observation: Observation) -> bool:
    return not re.fullmatch(r"\[(exit code|killed at its).*\]", observation["output"])
