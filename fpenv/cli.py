"""The command `fpenv`. Errors are one line that says what was expected, what came and what to do; exit code 2.

`fpenv run` and `fpenv grade` exit with 0 for a graded episode whatever its score, 3 for an ungraded one.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fpenv import __version__
from fpenv.errors import ConfigError, FpenvError
from fpenv.names import NAMESPACE, list_tasks
from fpenv.task import Task, find_task
from fpenv.transcript import escape

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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="fpenv", description="FrontierPhysics tasks as sandboxed, graded episodes")
    parser.add_argument("--version", action="version", version=f"fpenv {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    run = commands.add_parser("run", help="play one episode and print its grade")
    run.add_argument("task", help="a task's name, or the folder of a package")
    run.add_argument("--agent", default="oracle", metavar="oracle|noop|SCRIPT.py", help="default: oracle")
    run.add_argument("--instance", default="canonical", help="canonical (the default), or a seed")
    run.add_argument("--sandbox", default="local", metavar="local|docker|auto", help="default: local")
    run.add_argument("--reward", default="s_final", metavar="s_final|verifier|tests", help="default: s_final")
    run.add_argument("--max-steps", type=int, default=500)
    run.add_argument("--time-limit", type=float, default=None, metavar="SECONDS", help="default: the task's own")
    run.add_argument("--out", type=Path, default=Path("runs"), help="where run folders go (default: runs)")
    run.add_argument("--json", action="store_true", help="print the grade as JSON; progress goes to stderr")
    run.set_defaults(do=_run)

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
    agent = _agent(arguments.agent, task)
    make_instance(task, arguments.instance)  # a wrong one is an error before anything is built or played
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
    progress.say(f"{NAMESPACE}/{task.name}, instance {arguments.instance}, agent {agent.name}")
    place(task, arguments.sandbox, progress.say)
    grade, info = play(env, agent, instance=arguments.instance, on_action=progress.action)
    assert env.recording is not None
    paths = _paths(env.recording.folder.path, grade.deliverables)
    if arguments.json:
        told = {
            "agent": agent.name,
            "stop": info["stop"],
            **grade_as_json(grade, task.rubric),
            "paths": paths,
        }
        print(json.dumps(told, indent=2, ensure_ascii=False))
    else:
        console = Console(highlight=False)
        show_grade(console, grade, task.rubric)
        for name, path in paths.items():
            console.print(Text(f"{name + ':':<14}{path}"), soft_wrap=True)
    return OK if grade.status == "graded" else UNGRADED


def _agent(name: str, task: Task) -> Any:
    from fpenv.agents.noop import NoopAgent
    from fpenv.agents.oracle import OracleAgent
    from fpenv.agents.scripted import ScriptedAgent

    if name == "oracle":
        return OracleAgent(task)
    return NoopAgent() if name == "noop" else ScriptedAgent(Path(name))


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
        table.add_column(column, overflow="fold")
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
