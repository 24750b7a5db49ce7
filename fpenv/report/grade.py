"""A grade for a person (a terminal) and for a program (JSON)."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fpenv.records import Criterion, Grade, Verdict
from fpenv.transcript import escape

_MARK = {"passed": ("passed", "green"), "missing": ("did not report", "red")}


def grade_as_json(grade: Grade, rubric: tuple[Criterion, ...]) -> dict[str, Any]:
    """The whole grade as JSON-able data, each criterion with its weight, score and evidence."""
    verdicts = {verdict.criterion: verdict for verdict in grade.review.verdicts}
    return {
        "task": grade.task,
        "task_digest": grade.task_digest,
        "instance": grade.instance,
        "status": grade.status,
        "s_final": grade.s_final,
        "valid": grade.s_final is not None,
        "reason": grade.reason,
        "verifier": grade.verifier.model_dump(mode="json"),
        "rubric": {
            "status": grade.review.status,
            "reviewer": grade.review.reviewer,
            "reason": grade.review.reason,
            "score": grade.rubric_score,
            "failed_blockers": list(grade.failed_blockers),
            "criteria": [_criterion(line, verdicts.get(line.name)) for line in rubric],
        },
        "deliverables": grade.deliverables,
        "refused_deliverables": grade.refused_deliverables,
    }


def show_grade(console: Console, grade: Grade, rubric: tuple[Criterion, ...]) -> None:
    """Print tests, blockers, non-blockers and S_final. All that an agent wrote is escaped."""
    console.print(_tests(grade))
    for blocker, title in ((True, "Blockers"), (False, "Non-blockers")):
        lines = [line for line in rubric if line.blocker is blocker]
        if lines:
            console.print(_criteria(title, lines, grade))
    if grade.review.status == "ungraded":
        console.print(Text(f"rubric ungraded: {escape(grade.review.reason)}", style="yellow"))
    if grade.s_final is None:
        console.print(Text(f"UNGRADED: {escape(grade.reason)}", style="bold red"))
        return
    style = "bold green" if grade.s_final > 0 else "bold red"
    console.print(Text(f"S_final = {grade.s_final:.1f} of 100", style=style))
    if grade.reason:
        console.print(Text(escape(grade.reason)))


def _criterion(line: Criterion, verdict: Verdict | None) -> dict[str, Any]:
    return {
        "name": line.name,
        "blocker": line.blocker,
        "weight": line.weight,
        "score": None if verdict is None else verdict.score,
        "reason": None if verdict is None else verdict.reason,
        "evidence": [] if verdict is None else [item.model_dump() for item in verdict.evidence],
    }


def _tests(grade: Grade) -> Table:
    table = _table(f"Verifier: {grade.tests_passed} of {grade.tests_total} tests passed")
    table.add_column("test", overflow="fold")
    table.add_column("outcome")
    for test in grade.verifier.tests:
        word, style = _MARK.get(test.outcome, (test.outcome, "red"))
        table.add_row(Text(escape(test.test_id)), Text(word, style=style))
    for name, why in grade.refused_deliverables.items():
        table.add_row(Text(f"deliverable {escape(name)}"), Text(f"refused: {escape(why)}", style="red"))
    return table


def _criteria(title: str, lines: list[Criterion], grade: Grade) -> Table:
    verdicts = {verdict.criterion: verdict for verdict in grade.review.verdicts}
    table = _table(title)
    table.add_column("criterion", overflow="fold")
    table.add_column("score", justify="right")
    if not lines[0].blocker:
        table.add_column("weight", justify="right")
    table.add_column("why", ratio=1, overflow="fold")
    for line in lines:
        verdict = verdicts.get(line.name)
        row = [Text(line.name), _score(line, verdict)]
        row += [] if line.blocker else [Text(str(line.weight))]
        table.add_row(*row, Text(escape(verdict.reason if verdict else "no verdict")))
    return table


def _score(line: Criterion, verdict: Verdict | None) -> Text:
    if verdict is None:
        return Text("–", style="yellow")
    if line.blocker:
        return Text("pass", style="green") if verdict.score else Text("FAIL", style="red")
    return Text(f"{verdict.score} of 2", style=("red", "yellow", "green")[verdict.score])


def _table(title: str) -> Table:
    return Table(title=title, title_justify="left", title_style="bold", show_edge=False, pad_edge=False)
