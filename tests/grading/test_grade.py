"""Verifier and review combined: equation 1 and what is never a number."""

import json
import runpy
from dataclasses import dataclass
from pathlib import Path

import pytest

from fpenv.errors import ConfigError, ReviewError, SandboxError
from fpenv.grading.evidence import EvidenceReviewer
from fpenv.grading.grade import Subject, apply_reviewer, combine, grade_bytes, grade_episode, ungraded
from fpenv.grading.regrade import regrade
from fpenv.grading.reviewer import NoReviewer
from fpenv.records import Criterion, Grade, Review, Verdict, VerifierResult
from fpenv.sandbox.sandbox import Collected
from fpenv.store import RunFolder, RunInfo

papers = runpy.run_path(str(Path(__file__).with_name("papers.py")))
RUBRIC = (
    Criterion(name="gate", blocker=True, weight=10, description="d"),
    Criterion(name="a", blocker=False, weight=1, description="d"),
    Criterion(name="b", blocker=False, weight=3, description="d"),
)
SUBJECT = Subject("t", "digest", "canonical", RUBRIC)
D1 = VerifierResult(status="graded", passed=True, tests=())
D0 = VerifierResult(status="graded", passed=False, tests=(), reason="a test failed")
LOST = VerifierResult(status="ungraded", passed=False, tests=(), reason="infrastructure: gone")
NOT_REVIEWED = Review(status="ungraded", reviewer="r", verdicts=(), reason="a check crashed")


def reviewed(gate, a, b):
    verdicts = [Verdict(criterion=c.name, score=s, reason="") for c, s in zip(RUBRIC, (gate, a, b), strict=True)]
    return Review(status="graded", reviewer="r", verdicts=tuple(verdicts))


@pytest.mark.parametrize(
    ("verifier", "review", "s_final", "failed", "rubric_score", "reason"),
    [
        (D1, reviewed(1, 2, 2), 100.0, (), 100.0, ""),
        (D1, reviewed(1, 1, 2), 87.5, (), 87.5, ""),
        (D1, reviewed(1, 0, 0), 0.0, (), 0.0, ""),
        (D1, reviewed(0, 2, 2), 0.0, ("gate",), 100.0, "failed blockers: gate"),
        (D0, reviewed(1, 2, 2), 0.0, (), 100.0, "a test failed"),
        (D0, reviewed(0, 2, 1), 0.0, ("gate",), 62.5, "a test failed"),
        (D0, NOT_REVIEWED, 0.0, (), None, "a test failed"),
        (D1, NOT_REVIEWED, None, (), None, "a check crashed"),
        (LOST, reviewed(1, 2, 2), None, (), 100.0, "infrastructure: gone"),
        (LOST, reviewed(0, 2, 2), None, ("gate",), 100.0, "infrastructure: gone"),
        (LOST, NOT_REVIEWED, None, (), None, "infrastructure: gone"),
    ],
)
def test_the_grade_is_equation_1_or_no_number(verifier, review, s_final, failed, rubric_score, reason):
    grade = combine(SUBJECT, verifier, review, Collected({}, {}))
    assert grade.s_final == s_final
    assert grade.status == ("ungraded" if s_final is None else "graded")
    assert (grade.failed_blockers, grade.rubric_score, grade.reason) == (failed, rubric_score, reason)


def test_a_rubric_of_blockers_only_is_worth_100_when_they_pass():
    review = Review(status="graded", reviewer="r", verdicts=reviewed(1, 0, 0).verdicts[:1])
    grade = combine(Subject("t", "d", "i", RUBRIC[:1]), D1, review, Collected({}, {}))
    assert (grade.s_final, grade.rubric_score) == (100.0, None)


def test_deliverables_are_recorded_by_their_hash():
    grade = combine(SUBJECT, D1, reviewed(1, 2, 2), Collected({"b": b"", "a": b"x"}, {"c": "is a link"}))
    assert list(grade.deliverables) == ["a", "b"]
    assert grade.deliverables["b"] == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert grade.refused_deliverables == {"c": "is a link"}


@dataclass(frozen=True)
class Says:
    """A reviewer that answers or raises what it was given."""

    answer: Review | ReviewError
    name: str = "says"

    def review(self, case):
        if isinstance(self.answer, ReviewError):
            raise self.answer
        return self.answer


def says(*verdicts):
    made = tuple(Verdict(criterion=name, score=score, reason="") for name, score in verdicts)
    return Says(Review(status="graded", reviewer="says", verdicts=made))


@pytest.mark.parametrize(
    ("reviewer", "reason"),
    [
        (says(("literature", 2)), "expected verdicts on no-fabrication, literature, got literature"),
        (says(("no-fabrication", 1), ("no-fabrication", 1)), "expected verdicts on"),
        (says(("literature", 2), ("no-fabrication", 1)), "expected verdicts on"),
        (
            says(("no-fabrication", 2), ("literature", 2)),
            "criterion no-fabrication: expected 0 or 1 for a blocker, got 2",
        ),
        (Says(ReviewError("no answer")), "no answer"),
        (NoReviewer(), "no reviewer was given"),
    ],
)
def test_any_reviewer_is_held_to_one_verdict_a_criterion(package, reviewer, reason):
    review = apply_reviewer(reviewer, package.case({}))
    assert review.status == "ungraded"
    assert reason in review.reason


def grade(package, deliverables, **changes) -> Grade:
    package.write("verifier/references.json", json.dumps({"x": 1.5}))
    given = {
        "task": package.task(), "instance": "canonical", "inputs": {"data.txt": b"data"}, "references": {},
        "collected": Collected(deliverables, {}), "steps": (), "backend": package.backend, "runtime": package.runtime,
        "reviewer": EvidenceReviewer(),
    }  # fmt: skip
    return grade_episode(**{**given, **changes})


FAIR = "from review import *\ndef no_fabrication(c): return Finding(1, '')\ndef literature(c): return Finding(1, '')\n"


def test_an_episode_is_graded_whole(package, right):
    package.write("evidence.py", FAIR)
    found = grade(package, right)
    assert (found.status, found.s_final, found.tests_passed, found.tests_total) == ("graded", 50.0, 2, 2)
    assert found.task_digest == package.task().digest


def test_the_same_deliverables_give_the_same_bytes(package):
    handed_in = {"result.md": b"x: 2", "paper.pdf": b"broken"}
    first, second = (grade_bytes(grade(package, handed_in)) for _ in range(2))
    assert first == second
    assert Grade.model_validate_json(first).s_final == 0.0


def test_nothing_handed_in_is_zero(package):
    found = grade(package, {}, collected=Collected({}, {"result.md": "does not exist"}))
    assert (found.status, found.s_final) == ("graded", 0.0)
    assert found.failed_blockers == ("no-fabrication",)


def test_without_a_reviewer_a_passed_verifier_is_ungraded(package, right):
    found = grade(package, right, reviewer=None)
    assert (found.status, found.s_final) == ("ungraded", None)
    assert "no reviewer was given" in found.reason
    assert found.verifier.passed


def test_a_failing_backend_is_ungraded(package, right, fake):
    found = grade(package, right, backend=fake(broken=SandboxError("no room")))
    assert (found.status, found.s_final) == ("ungraded", None)
    assert "infrastructure" in found.reason


def test_an_episode_that_the_infrastructure_ended_is_ungraded(package):
    found = ungraded(package.task(), "7", "SandboxError: the pipe broke")
    assert (found.status, found.s_final, found.instance) == ("ungraded", None, "7")
    assert found.reason == "SandboxError: the pipe broke"


def test_a_run_folder_is_graded_again(package, right, tmp_path):
    package.write("evidence.py", FAIR)
    package.write("environment/requirements.txt", "pytest\npypdf\n")
    package.write("instance.py", INSTANCE)
    run = RunFolder.create(tmp_path / "run")
    run.write_run(RunInfo(task=str(package.folder), task_digest="d", instance="canonical", agent="a", stop="submitted"))
    run.start_trajectory().close()
    run.write_deliverables({**right, "planted.txt": b""})
    task, found = regrade(tmp_path / "run", sandbox=package.backend)
    assert task.name == "tiny"
    assert found.s_final == 50.0
    assert list(found.deliverables) == ["result.md"]


INSTANCE = """\
from fpenv.instance import InstanceParts

def make_instance(rng):
    return InstanceParts(inputs={"data.txt": b"data"}, references={"x": 1.5})
"""


def test_a_plain_folder_needs_a_task(tmp_path):
    with pytest.raises(ConfigError, match=r"no run\.json here: expected --task"):
        regrade(tmp_path)
    with pytest.raises(ConfigError, match="expected a run folder or a folder of deliverables, found none"):
        regrade(tmp_path / "nowhere")
