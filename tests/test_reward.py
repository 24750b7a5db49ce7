"""What an episode's reward is made of: the whole grade, or the hidden tests alone."""

import pytest

from fpenv import records
from fpenv.env import FrontierPhysicsEnv, reward_of
from fpenv.errors import ConfigError
from fpenv.records import Grade, Review, VerifierResult


def grade(s_final: float | None, outcomes: list[str], status: str = "graded") -> Grade:
    tests = tuple(records.TestOutcome(test_id=f"t{i}", outcome=outcome) for i, outcome in enumerate(outcomes))
    passed = outcomes.count("passed")
    return Grade(
        task="t",
        task_digest="d",
        instance="canonical",
        status="ungraded" if s_final is None else "graded",
        s_final=s_final,
        reason="",
        verifier=VerifierResult(status=status, passed=passed == len(outcomes) > 0, tests=tests),
        review=Review(status="ungraded", reviewer="none", verdicts=()),
        tests_passed=passed,
        tests_total=len(outcomes),
        failed_blockers=(),
        rubric_score=None,
        deliverables={},
    )


@pytest.mark.parametrize(
    ("found", "rewards"),
    [
        (grade(62.5, ["passed"] * 4), (62.5, 100.0, 100.0)),
        (grade(None, ["passed"] * 4), (None, 100.0, 100.0)),
        (grade(0.0, ["passed", "failed", "missing", "error"]), (0.0, 0.0, 25.0)),
        (grade(None, ["passed", "missing"], status="ungraded"), (None, None, None)),
        (grade(None, [], status="ungraded"), (None, None, None)),
    ],
)
def test_each_reward_reads_its_part_of_the_grade_and_ungraded_is_no_number(
    found: Grade, rewards: tuple[float | None, ...]
) -> None:
    assert tuple(reward_of(found, mode) for mode in ("s_final", "verifier", "tests")) == rewards


def test_an_unknown_reward_is_one_clear_error() -> None:
    with pytest.raises(ConfigError, match="reward: expected one of s_final, verifier, tests, got 'best'"):
        FrontierPhysicsEnv("rydberg-ising-critical-point", reward="best")  # type: ignore[arg-type]
