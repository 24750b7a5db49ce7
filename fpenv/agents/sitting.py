"""Sittings of one person at one episode: `fpenv play`. Begins or resumes, and goes on where a command was given up."""

from __future__ import annotations

from pathlib import Path

from fpenv.agents.human import HumanAgent, Left, play_human
from fpenv.agents.session import Session, load_session
from fpenv.agents.terminal import Abandoned, Terminal
from fpenv.agents.typed import WORDS, clock
from fpenv.env import FrontierPhysicsEnv
from fpenv.placement import place
from fpenv.records import Grade


def sit(
    session: Session | None,
    out: Path,
    *,
    instance: str = "canonical",
    resume: Path | None = None,
    terminal: Terminal | None = None,
) -> tuple[FrontierPhysicsEnv, Grade | None]:
    """Begin a session, or `resume` one; play to the end, or until the person leaves (None).

    A command that was given up ends its sandbox; the person is asked whether to go on in a fresh one, and
    whoever leaves is told how to go on later.
    """
    terminal = terminal or Terminal(words=WORDS)
    greets = True
    while True:
        recorded = None
        if resume is not None:
            session, recorded = load_session(resume)
            cut = () if recorded.complete else ("the trajectory is cut; it goes on after its last whole step",)
            for note in (*recorded.notes, *cut):
                terminal.say(f"note: {note}", "yellow")
        assert session is not None
        env = FrontierPhysicsEnv(
            session.task_path,
            sandbox=session.sandbox,
            max_steps=session.max_steps,
            time_limit_s=session.time_limit_s,
            record_to=out,
            on_output=terminal.output,
        )
        place(env.task, session.sandbox, lambda line: terminal.say(line, "dim"))
        agent = HumanAgent(env, terminal, session, recorded, greets=greets)
        try:
            grade, _ = play_human(agent, env, instance)
            return env, grade
        except (Left, Abandoned) as gone:
            resume = agent.resumable
            if isinstance(gone, Abandoned) and not agent.replaying and resume is not None:
                terminal.say("The command was given up, and its sandbox ended.", "yellow")
                if terminal.agrees(f"Go on in a fresh one, after playing {agent.steps_kept} steps again?"):
                    greets = False
                    continue
        told = f"Left after {agent.steps_kept} steps and {clock(agent.session.elapsed_s)}."
        terminal.say(f"{told} To go on:\n  fpenv play --resume {resume}" if resume else told, "bold")
        return env, None
