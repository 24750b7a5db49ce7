"""The command `fpenv`. Errors are one line that says what was expected, what came and what to do; exit code 2.

`fpenv run` and `fpenv grade` exit with 0 for a graded episode whatever its score, 3 for an ungraded one.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fpenv import __version__
from fpenv.errors import ConfigError, FpenvError
from fpenv.names import NAMESPACE, list_tasks
from fpenv.task import Task, find_task
from fpenv.transcript import escape

if TYPE_CHECKING:
    from fpenv.agents.replay import Replay

OK, ERROR, UNGRADED, INTERRUPTED = 0, 2, 3, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    arguments = _parser().parse_args(argv)
    try:
        return int(arguments.do(arguments))
    except FpenvError as error:
        print(f"fpenv: {type(error).__name__}: {escape(str(error))}", file=sys.stderr)
        return ERROR
    except KeyboardInterrupt:
        print("fpenv: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except OSError as error:  # of a place that the caller named or of a full disk; nothing that was whole is lost
        print(f"fpenv: {escape(_explain(error))}", file=sys.stderr)
        return ERROR


def _explain(error: OSError) -> str:
    """One line about what the operating system refused."""
    reason = error.strerror or str(error)[:300]
    where = f"{str(error.filename)[:300]}: " if error.filename is not None else ""
    return f"{where}expected to be able to read or write here, got: {reason}; free space, or name another place"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="fpenv", description="FrontierPhysics tasks as sandboxed, graded episodes")
    parser.add_argument("--version", action="version", version=f"fpenv {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    run = commands.add_parser("run", help="play one episode and print its grade")
    run.add_argument("task", help="a task's name, or the folder of a package")
    run.add_argument(
        "--agent",
        default="oracle",
        metavar="oracle|noop|llm|random[:SEED]|replay:RUN|SCRIPT.py",
        help="default: oracle",
    )
    run.add_argument("--model", default=None, metavar="NAME", help="for --agent llm: the provider's name of it")
    run.add_argument("--base-url", default=None, metavar="URL", help="where it speaks the OpenAI protocol")
    run.add_argument(
        "--api-key-env", default=None, metavar="VAR", help="environment variable with the key (never the key itself)"
    )
    run.add_argument("--protocol", default="tools", choices=("tools", "text"), help="tool calls, or JSON in the text")
    run.add_argument("--prices", type=Path, default=None, metavar="FILE", help="JSON: model -> USD per million tokens")
    run.add_argument("--instance", default=None, help="canonical (the default), or a seed; a replay has its own")
    run.add_argument("--normalise", default="", metavar="times,uuids,pids,addresses", help="what a replay looks past")
    run.add_argument("--sandbox", default="local", metavar="local|docker|auto", help="default: local")
    run.add_argument("--reward", default="s_final", metavar="s_final|verifier|tests", help="default: s_final")
    run.add_argument("--max-steps", type=int, default=500)
    run.add_argument("--time-limit", type=float, default=None, metavar="SECONDS", help="default: the task's own")
    run.add_argument("--out", type=Path, default=Path("runs"), help="where run folders go (default: runs)")
    run.add_argument("--json", action="store_true", help="print the grade as JSON; progress goes to stderr")
    run.set_defaults(do=_run)

    play = commands.add_parser("play", help="play one episode yourself, in the terminal")
    play.add_argument("task", nargs="?", default=None, help="a task's name, or the folder of a package")
    play.add_argument("--resume", type=Path, default=None, metavar="RUN", help="go on with a run that was left")
    play.add_argument("--instance", default=None, help="canonical (the default), or a seed")
    play.add_argument("--sandbox", default=None, metavar="local|docker|auto", help="default: local")
    play.add_argument("--max-steps", type=int, default=None, help="default: 500")
    play.add_argument("--time-limit", type=float, default=None, metavar="SECONDS", help="default: the task's own")
    play.add_argument("--out", type=Path, default=None, help="where run folders go (default: runs)")
    play.set_defaults(do=_play)

    grade = commands.add_parser("grade", help="grade a folder of deliverables, or a run folder, again")
    grade.add_argument("folder", type=Path)
    grade.add_argument("--task", default=None, help="for a plain folder of deliverables: which task it answers")
    grade.add_argument("--instance", default=None, help="for a plain folder: canonical (the default), or a seed")
    grade.add_argument("--sandbox", default="local", metavar="local|docker|auto", help="default: local")
    grade.add_argument("--json", action="store_true")
    grade.set_defaults(do=_grade)

    tasks = commands.add_parser("tasks", help="list, show, prepare, check and export tasks")
    verbs = tasks.add_subparsers(required=True, metavar="list|show|prepare|check|export")
    verbs.add_parser("list", help="all tasks that come with fpenv").set_defaults(do=_tasks_list)
    for verb, do, text in (
        ("show", _tasks_show, "what an agent is told, and the limits"),
        ("prepare", _tasks_prepare, "build the task's runtime now instead of at the first reset"),
        ("check", _tasks_check, "play the oracle and noop, grade every case, compare with what is expected"),
    ):
        command = verbs.add_parser(verb, help=text)
        command.add_argument("task")
        command.set_defaults(do=do)
        if verb == "prepare":
            command.add_argument("--sandbox", default="local", metavar="local|docker|auto", help="default: local")
        if verb == "check":
            command.add_argument("--instances", default="", help="further oracle instances, such as 1,2,3")
            command.add_argument("--record", action="store_true", help="write expected.json from the oracle's run")
    export = verbs.add_parser("export", help="write one instance as a package that other programs run")
    export.add_argument("task")
    export.add_argument("--format", required=True, choices=("harbor", "benchflow"))
    export.add_argument("--to", required=True, type=Path, metavar="DIR", help="a new or empty folder")
    export.add_argument("--instance", default="canonical", help="canonical (the default), or a seed")
    export.set_defaults(do=_tasks_export)

    sandboxes = commands.add_parser("sandbox", help="what sandboxes left behind")
    prune = sandboxes.add_subparsers(required=True, metavar="prune").add_parser(
        "prune", help="remove containers whose process has ended"
    )
    prune.set_defaults(do=_prune)

    doctor = commands.add_parser("doctor", help="what this machine can and cannot do, and how to fix it")
    doctor.set_defaults(do=_doctor)
    return parser


def _run(arguments: argparse.Namespace) -> int:
    from fpenv.agents.agent import play
    from fpenv.env import FrontierPhysicsEnv
    from fpenv.instance import make_instance
    from fpenv.placement import place
    from fpenv.report.grade import grade_as_json, show_grade
    from fpenv.report.progress import Progress

    task = find_task(arguments.task)
    agent = _llm(arguments) if arguments.agent == "llm" else _agent(arguments.agent, task)
    replay = _replay(agent, arguments)
    instance = arguments.instance or agent.reset_options.get("instance", "canonical")
    make_instance(task, instance)  # a wrong one is an error before anything is built or played
    progress = Progress(Console(stderr=arguments.json, highlight=False))
    env = FrontierPhysicsEnv(
        arguments.task,
        sandbox=arguments.sandbox,
        reward=arguments.reward,
        max_steps=arguments.max_steps,
        time_limit_s=arguments.time_limit,
        record_to=arguments.out,
        on_output=progress.output,
    )
    progress.say(f"{NAMESPACE}/{task.name}, instance {instance}, agent {agent.name}")
    for note in replay.notes if replay else ():
        progress.say(f"note: {note}")
    place(task, arguments.sandbox, progress.say)
    grade, info = play(env, agent, instance=instance, on_action=lambda action: progress.action(_shown(action)))
    assert env.recording is not None
    differences = replay.compare(env.recording.folder) if replay else None
    paths = _paths(env.recording.folder.path, grade.deliverables)
    if arguments.json:
        told = {
            "agent": agent.name,
            "stop": info["stop"],
            **grade_as_json(grade, task.rubric),
            "paths": paths,
            **({} if differences is None else {"differences": [asdict(difference) for difference in differences]}),
        }
        print(json.dumps(told, indent=2, ensure_ascii=False))
    else:
        console = Console(highlight=False)
        show_grade(console, grade, task.rubric)
        for name, path in paths.items():
            console.print(Text(f"{name + ':':<14}{path}"), soft_wrap=True)
        for line in replay.tell(differences or []) if replay else ():
            console.print(Text(escape(line)), soft_wrap=True)
    return OK if grade.status == "graded" else UNGRADED


def _play(arguments: argparse.Namespace) -> int:
    from fpenv.agents.session import begin_session
    from fpenv.agents.sitting import sit
    from fpenv.instance import make_instance
    from fpenv.report.grade import show_grade

    if (arguments.task is None) == (arguments.resume is None):
        raise ConfigError("play: expected a task, or --resume RUN, which knows its task; got both or neither")
    if arguments.resume is None:
        task = find_task(arguments.task)
        instance = make_instance(task, arguments.instance).name
        session = begin_session(
            task,
            max_steps=500 if arguments.max_steps is None else arguments.max_steps,
            time_limit_s=arguments.time_limit,
            sandbox=arguments.sandbox or "local",
        )
        env, grade = sit(session, arguments.out or Path("runs"), instance=instance)
    else:
        own = (arguments.instance, arguments.sandbox, arguments.max_steps, arguments.time_limit)
        if any(value is not None for value in own):
            raise ConfigError("--resume: expected no --instance, --sandbox or limits with it; the run keeps its own")
        run = arguments.resume.resolve()
        env, grade = sit(None, arguments.out or run.parent.parent.parent, resume=arguments.resume)
    if grade is None:
        return OK
    assert env.recording is not None
    console = Console(highlight=False)
    show_grade(console, grade, env.task.rubric)
    for name, path in _paths(env.recording.folder.path, grade.deliverables).items():
        console.print(Text(f"{name + ':':<14}{path}"), soft_wrap=True)
    return OK if grade.status == "graded" else UNGRADED


def _agent(name: str, task: Task) -> Any:
    from fpenv.agents.noop import NoopAgent
    from fpenv.agents.oracle import OracleAgent
    from fpenv.agents.random import RandomAgent
    from fpenv.agents.replay import ReplayAgent, load_recorded
    from fpenv.agents.scripted import ScriptedAgent

    kind, _, rest = name.partition(":")
    if name == "oracle":
        return OracleAgent(task)
    if kind == "random":
        return RandomAgent(_seed(rest))
    if kind == "replay":
        return ReplayAgent(load_recorded(Path(rest), task))
    return NoopAgent() if name == "noop" else ScriptedAgent(Path(name))


def _llm(arguments: argparse.Namespace) -> Any:
    from fpenv.agents.llm.accounting import load_prices
    from fpenv.agents.llm.config import OPENAI_URL, LlmConfig
    from fpenv.agents.llm.llm_agent import LlmAgent

    model = arguments.model
    if not model:
        raise ConfigError("--agent llm: expected --model NAME with it, got none")
    prices = load_prices(arguments.prices) if arguments.prices else {}
    if prices and model not in prices:
        raise ConfigError(f"{arguments.prices}: expected a price of {model}, found {', '.join(sorted(prices))[:200]}")
    # OpenAI's key goes to OpenAI; another endpoint gets the key that was named for it, or none.
    key = arguments.api_key_env or (None if arguments.base_url else "OPENAI_API_KEY")
    config = LlmConfig(
        model=model,
        base_url=arguments.base_url or OPENAI_URL,
        api_key_env=key,
        protocol=arguments.protocol,
        price=prices.get(model),
    )
    return LlmAgent(config)


def _seed(text: str) -> int:
    if text and not (text.isascii() and text.isdecimal()):
        raise ConfigError(f"--agent random:SEED: expected a seed >= 0, got {text!r}")
    return int(text or 0)


def _replay(agent: Any, arguments: argparse.Namespace) -> Replay | None:
    """What a replay compares with, or None for any other agent."""
    from fpenv.agents.replay import Replay, ReplayAgent

    names = [name for name in arguments.normalise.split(",") if name]
    if not isinstance(agent, ReplayAgent):
        if names:
            raise ConfigError("--normalise: expected --agent replay:RUN with it, got another agent")
        return None
    own = agent.recorded.run.instance
    if arguments.instance not in (None, own):
        raise ConfigError(f"--instance: expected none, or the recorded instance {own}, got {arguments.instance!r}")
    return Replay(agent.recorded, names)


def _shown(action: object) -> dict[str, Any]:
    """An action as progress shows it, even where it is none."""
    return action if isinstance(action, dict) else {"tool": f"(malformed: {type(action).__name__})"}


def _paths(run: Path, deliverables: dict[str, str]) -> dict[str, str]:
    papers = [name for name in deliverables if name.endswith(".pdf")]
    paths = {"run": run, "trajectory": run / "trajectory.msgpack", "deliverables": run / "deliverables"}
    paths |= {"paper": run / "deliverables" / papers[0]} if papers else {}
    return {name: str(path) for name, path in paths.items()}


def _grade(arguments: argparse.Namespace) -> int:
    from fpenv.grading.regrade import regrade
    from fpenv.report.grade import grade_as_json, show_grade

    task, grade = regrade(arguments.folder, task=arguments.task, instance=arguments.instance, sandbox=arguments.sandbox)
    if arguments.json:
        print(json.dumps(grade_as_json(grade, task.rubric), indent=2, ensure_ascii=False))
    else:
        show_grade(Console(highlight=False), grade, task.rubric)
    return OK if grade.status == "graded" else UNGRADED


def _tasks_list(arguments: argparse.Namespace) -> int:
    table = Table(show_edge=False, pad_edge=False)
    for column in ("id", "domain", "title"):
        table.add_column(column, overflow="fold", no_wrap=column == "id")  # an id is there to be copied
    for name in list_tasks():
        front = find_task(name).front.metadata
        table.add_row(f"{NAMESPACE}/{name}", front.domain, front.title)
    Console().print(table)
    return OK


def _tasks_show(arguments: argparse.Namespace) -> int:
    task = find_task(arguments.task)
    box = task.front.sandbox
    blockers = sum(line.blocker for line in task.rubric)
    facts = {
        "id": f"{NAMESPACE}/{task.name}",
        "title": task.front.metadata.title,
        "domain": task.front.metadata.domain,
        "folder": str(task.path),
        "digest": task.digest,
        "deliverables": ", ".join(map(task.absolute, task.deliverables)) or "every new file",
        "time limit": f"{task.time_limit_s:.0f} s",
        "sandbox": f"{box.cpus:g} CPUs, {box.memory_mb} MB memory, {box.storage_mb} MB disk",
        "rubric": f"{blockers} blockers, {len(task.rubric) - blockers} non-blockers",
        "hidden tests": str(len(task.expected_tests)) if task.expected_tests else "not recorded yet",
    }
    print("\n".join(f"{key + ':':<14}{value}" for key, value in facts.items()))
    _tell(task)
    print(f"\n{task.prompt}")
    return OK


def _tell(task: Task) -> None:
    for note in task.notes:
        print(f"note: {escape(note)}", flush=True)


def _tasks_export(arguments: argparse.Namespace) -> int:
    from fpenv.export import export_task
    from fpenv.instance import make_instance

    instance = make_instance(find_task(arguments.task), arguments.instance)
    exported = export_task(instance, arguments.to, arguments.format)
    print(f"wrote {exported.path}")
    for loss in exported.losses:
        print(f"left behind: {loss}")
    return OK


def _tasks_prepare(arguments: argparse.Namespace) -> int:
    from fpenv.placement import place

    place(find_task(arguments.task), arguments.sandbox, lambda line: print(escape(line), flush=True))
    return OK


def _tasks_check(arguments: argparse.Namespace) -> int:
    from fpenv.testing.task_check import check_task

    try:
        instances = [int(seed) for seed in arguments.instances.split(",") if seed.strip()]
    except ValueError:
        raise ConfigError(f"--instances: expected seeds such as 1,2,3, got {arguments.instances!r}") from None
    task = find_task(arguments.task)
    _tell(task)
    passed = 0
    failed = 0
    for result in check_task(task, instances=instances, record=arguments.record):
        word: Literal["passed", "FAILED"] = "passed" if result.ok else "FAILED"
        passed, failed = passed + result.ok, failed + (not result.ok)
        print(f"{word}  {result.name}  {escape(result.detail)}", flush=True)
    print(f"{passed} passed, {failed} failed")
    return OK if not failed else 1


def _prune(arguments: argparse.Namespace) -> int:
    from fpenv.sandbox.docker import prune

    removed = prune()
    print("\n".join(removed) if removed else "nothing to remove")
    return OK


def _doctor(arguments: argparse.Namespace) -> int:
    from fpenv.doctor import examine

    bad = 0
    console = Console(highlight=False)
    for finding in examine():
        mark = Text("ok  ", style="green") if finding.ok else Text("no  ", style="red" if finding.needed else "yellow")
        console.print(mark + Text(f"{finding.name}: {finding.found}"), soft_wrap=True)
        if not finding.ok:
            console.print(Text(f"      to fix: {finding.fix}"), soft_wrap=True)
            bad += finding.needed
    return OK if not bad else 1


if __name__ == "__main__":
    sys.exit(main())
