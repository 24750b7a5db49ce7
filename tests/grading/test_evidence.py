"""The review by evidence checks: verdicts, and whose fault a failure is."""

import json
import re
import runpy
from pathlib import Path

import pytest

from fpenv.errors import ReviewError, SandboxError
from fpenv.grading import evidence
from fpenv.grading.evidence import EvidenceReviewer, parse_findings
from fpenv.records import Budget, Evidence, InstrumentCall, Step, ToolResult

papers = runpy.run_path(str(Path(__file__).with_name("papers.py")))
EVIDENCE = EvidenceReviewer()


def measured() -> tuple[Step, ...]:
    call = InstrumentCall(instrument="lab", operation="measure", arguments={}, result={"p": 0.5}, shots=10)
    budget = Budget(steps_left=1, seconds_left=1, shots_left=1)
    step = Step(
        step_id=1, parent_id=None, tool="instrument", arguments="{}", result=ToolResult(output=""), budget=budget,
        instrument_calls=(call,), started_s=0, ended_s=1,
    )  # fmt: skip
    return (step,)


def scores(review):
    assert review.status == "graded", review.reason
    return [verdict.score for verdict in review.verdicts]


def test_checks_give_scores_with_located_evidence(package, right):
    handed_in = {**right, "paper.pdf": papers["paper"]("References", "[1] Slagle", "[2] Fendley")}
    review = EVIDENCE.review(package.case(handed_in, measured()))
    assert scores(review) == [1, 2]
    assert review.verdicts[0].evidence == (Evidence(source="result.md line 1", quote="x: 1.5"),)
    assert review.verdicts[1].evidence[0].source == "paper.pdf p. 1"
    assert review.reviewer == "evidence"


def test_the_same_case_gives_the_same_review(package, right):
    package.write(
        "evidence.py", "from review import *\n" + CHECK.format('Finding(1, str({"a", "b", "c"}) + repr(object()))')
    )
    case = package.case(right)
    assert EVIDENCE.review(case) == EVIDENCE.review(case)


def test_checks_meet_an_empty_paper_where_none_was_handed_in(package):
    review = EVIDENCE.review(package.case({}))
    assert scores(review) == [0, 0]
    assert review.verdicts[1].reason == "paper.pdf was not handed in"


def test_an_unreadable_paper_is_scored_not_ungraded(package):
    review = EVIDENCE.review(package.case({"paper.pdf": b"garbage"}))
    assert scores(review) == [0, 0]
    assert "not a readable PDF" in review.verdicts[1].reason


def test_a_pdf_bomb_is_scored_not_ungraded(package, monkeypatch):
    monkeypatch.setattr(
        evidence, "RUNNER", evidence.RUNNER.replace("review.main", "review.PAPER_TIME_S = 1; review.main")
    )
    review = EVIDENCE.review(package.case({"paper.pdf": papers["BOMB"]}))
    assert scores(review) == [0, 0]
    assert "could not be read within 1 s of processor time" in review.verdicts[1].reason


CHECK = "def no_fabrication(case): return Finding(1, 'fine')\ndef literature(case): return {}\n"


@pytest.mark.parametrize(
    ("checks", "reason"),
    [
        (CHECK.format("1 / 0"), r"criterion literature: its check failed: evidence\.py line 3: ZeroDivisionError"),
        (CHECK.format("None"), "criterion literature: its check failed: TypeError: expected a Finding, got NoneType"),
        (CHECK.format("Finding(1.0, 'r')"), "expected a whole number as score, got float"),
        (CHECK.format("exit(0)"), "criterion literature: its check failed: .*SystemExit"),
        (
            CHECK.replace("(1, 'fine')", "(2, 'fine')").format("0"),
            "criterion no-fabrication: expected a score from 0 to 1, got 2",
        ),
        (
            "def no_fabrication(case): return Finding(1, 'f')\n",
            r"literature: .*evidence\.py has no function literature",
        ),
        ("x = = 1\n", "could not be loaded: .*SyntaxError"),
        ("import os; os._exit(3)\n", "expected findings, got none: the runner exited with 3"),
    ],
    ids=range(8),
)
def test_a_failing_check_leaves_the_review_ungraded_and_is_named(package, right, checks, reason):
    package.write("evidence.py", "from review import Finding\n" + checks)
    review = EVIDENCE.review(package.case(right))
    assert (review.status, review.verdicts) == ("ungraded", ())
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(review.reason)


def test_a_check_that_does_not_end_is_named(package, right):
    endless = "__import__('re').match('(a+)+$', 'a' * 60 + 'b')"
    package.write("evidence.py", "from review import Finding\n" + CHECK.format(endless))
    review = EvidenceReviewer(check_time_s=0.5).review(package.case(right))
    assert review.status == "ungraded"
    assert "criterion literature: its check failed: took longer than 0.5 s" in review.reason


BREAKS_ON_FOUR = """
from review import Finding
def no_fabrication(case): return Finding(1, "f")
def literature(case):
    if len(case.results["x"].text) == 4:
        {trouble}
    return Finding(2, "cited")
"""


@pytest.mark.parametrize("trouble", ["1 / 0", "while True: pass", "__import__('os')._exit(1)", "bytearray(9 << 30)"])
def test_a_check_that_fails_on_this_work_alone_scores_0_and_the_review_stands(package, right, trouble):
    package.write("evidence.py", BREAKS_ON_FOUR.format(trouble=trouble))
    package.write("cases/accept/oracle/deliverables/result.md", right["result.md"].decode())
    breaking = EvidenceReviewer(check_time_s=0.5).review(package.case({"result.md": b"x: 1.55\n"}))
    assert breaking.status == "graded"
    assert breaking.verdicts[1].score == 0
    assert "on the oracle's work it ends" in breaking.verdicts[1].reason
    assert [v.score for v in EVIDENCE.review(package.case(right)).verdicts] == [1, 2]


def test_a_check_that_fails_on_the_oracles_work_too_is_its_own_bug(package, right):
    package.write("evidence.py", "from review import Finding\n" + CHECK.format("1 / 0"))
    package.write("cases/accept/oracle/deliverables/result.md", right["result.md"].decode())
    review = EVIDENCE.review(package.case({"result.md": b"x: 1.55\n"}))
    assert (review.status, review.verdicts) == ("ungraded", ())
    assert "criterion literature: its check failed" in review.reason


def test_checks_that_outlast_everything_are_ungraded(package, right):
    package.write("evidence.py", "import time; time.sleep(60)\n")
    review = EvidenceReviewer(timeout_s=1).review(package.case(right))
    assert "the runner ran past 1 s" in review.reason


def test_evidence_is_capped_and_escaped(package, right):
    package.write(
        "evidence.py",
        "from review import *\n" + CHECK.format("Finding(1, chr(27) * 9999, [Quote('s', chr(8238) * 9999)] * 99)"),
    )
    verdict = EVIDENCE.review(package.case(right)).verdicts[1]
    assert verdict.reason.startswith("\\x1b\\x1b")
    assert len(verdict.reason) <= 2000
    assert len(verdict.evidence) == 20
    assert verdict.evidence[0].quote.startswith("\\u202e")
    assert len(verdict.evidence[0].quote) <= 500


def test_checks_cannot_change_what_they_read(package, right):
    package.write("evidence.py", "from review import *\n" + CHECK.format("open('/review/deliverables/result.md', 'w')"))
    assert "literature: its check failed" in EVIDENCE.review(package.case(right)).reason


def test_a_lost_sandbox_is_infrastructure(package, right, fake):
    review = EVIDENCE.review(package.case(right, backend=fake(broken=SandboxError("no room"))))
    assert review.status == "ungraded"
    assert "infrastructure: the reviewer's sandbox failed: no room" in review.reason


def test_a_task_without_checks_says_so(package, right):
    (package.folder / "evidence.py").unlink()
    assert "has no evidence.py" in EVIDENCE.review(package.case(right)).reason


FINDINGS = [
    {"criterion": "no-fabrication", "score": 1, "reason": "r", "quotes": []},
    {"criterion": "literature", "score": 2, "reason": "r", "quotes": []},
]


def answer(first=None, second=None):
    return json.dumps({"findings": [{**FINDINGS[0], **(first or {})}, {**FINDINGS[1], **(second or {})}]}).encode()


def test_a_valid_answer_is_read(package):
    assert [verdict.score for verdict in parse_findings(answer(), package.task().rubric)] == [1, 2]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'{"findings": [], "findings": []}', "each key once, got 'findings' twice"),
        (answer().replace(b'"score": 2', b'"score": 0, "score": 2'), "each key once, got 'score' twice"),
        (b"", "expected JSON"),
        (b"[]", "expected 2 findings, got"),
        (json.dumps({"findings": FINDINGS[:1]}).encode(), "expected 2 findings"),
        (json.dumps({"findings": FINDINGS[::-1]}).encode(), "criterion no-fabrication: expected its finding"),
        (json.dumps({"findings": FINDINGS[:1] * 2}).encode(), "criterion literature: expected its finding"),
        (answer(second={"score": 3}), "criterion literature: expected a score from 0 to 2, got 3"),
        (answer(second={"score": -1}), "expected a score from 0 to 2, got -1"),
        (answer(first={"score": 2}), "criterion no-fabrication: expected a score from 0 to 1, got 2"),
        (answer(second={"score": True}), "expected a score from 0 to 2, got True"),
        (answer(second={"score": 2.0}), "expected a score from 0 to 2"),
        (answer(second={"score": "2"}), "expected a score from 0 to 2"),
        (answer(second={"bonus": 1}), "expected score, reason and quotes"),
        (answer(second={"reason": None}), "expected a reason as text"),
        (answer(second={"quotes": [1]}), "expected quotes with source and quote"),
        (b"[" * 100_000, "nested at most 32 deep"),
    ],
    ids=range(17),
)
def test_an_answer_that_is_not_as_agreed_is_refused(package, data, message):
    try:
        failures = [found for found in parse_findings(data, package.task().rubric) if isinstance(found, ReviewError)]
    except ReviewError as error:
        failures = [error]
    assert re.search(message, str(failures[0]))


def test_duplicate_keys_from_the_sandbox_leave_the_review_ungraded(package, right, fake):
    forged = answer().replace(b'"score": 2', b'"score": 0, "score": 2')
    review = EVIDENCE.review(package.case(right, backend=fake(files=lambda path: forged)))
    assert review.status == "ungraded"
    assert "each key once" in review.reason
