"""Reading rubrics, and equation 1."""

import json
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fpenv.errors import TaskError
from fpenv.records import Criterion, Verdict
from fpenv.rubric import load_rubric, parse_rubric, score_rubric

GOOD = {"name": "no-fabrication", "blocker": 1, "weight": 3, "description": "d", "guidance": "g"}


def parse(*criteria):
    return parse_rubric(json.dumps({"criteria": criteria}).encode())


@pytest.mark.parametrize("blocker", [0, 1, True, False])
@pytest.mark.parametrize("name", ["kebab-case", "snake_case", "CamelCase2"])
def test_official_spellings_are_read(blocker, name):
    (criterion,) = parse({**GOOD, "name": name, "blocker": blocker})
    assert criterion == Criterion(name=name, blocker=bool(blocker), weight=3, description="d", guidance="g")


def test_guidance_may_be_left_out_and_order_is_kept():
    second = {"name": "a", "blocker": 0, "weight": 1, "description": "d"}
    assert [criterion.name for criterion in parse(GOOD, second)] == ["no-fabrication", "a"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "no fabrication"}, r'criteria\[0\]\.name: expected a kebab-case or snake_case name, got "no fabr'),
        ({"name": "__class__"}, r"criteria\[0\]\.name"),
        ({"blocker": 2}, r"criteria\[0\]\.blocker: expected 0, 1, true or false, got 2"),
        ({"blocker": "yes"}, r'blocker: expected 0, 1, true or false, got "yes"'),
        ({"weight": 0}, r"weight: expected a whole number from 1 to 10, got 0"),
        ({"weight": 11}, r"weight: expected a whole number"),
        ({"weight": 2.5}, r"weight: expected a whole number from 1 to 10, got 2\.5"),
        ({"weight": True}, r"weight: expected a whole number from 1 to 10, got true"),
        ({"description": ""}, r"description: expected a sentence, got none"),
        ({"guidance": ["a"]}, r"guidance: expected text"),
        ({"points": 3}, r"expected the keys name, blocker, weight, description, guidance, got 'points' too"),
    ],
)
def test_a_malformed_criterion_is_named(change, message):
    with pytest.raises(TaskError, match=message):
        parse({**GOOD, **change})


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"[]", r'rubric\.json: expected an object with a non-empty list "criteria", got \[\]'),
        (b'{"criteria": []}', "non-empty list"),
        (b'{"criteria": [1]}', r"criteria\[0\]: expected an object, got 1"),
        (b'{"criteria": [], "criteria": []}', "each key once, got 'criteria' twice"),
        (b"{", "expected JSON"),
    ],
)
def test_a_malformed_file_is_named(data, message):
    with pytest.raises(TaskError, match=message):
        parse_rubric(data)


def test_names_that_would_share_a_check_function_are_refused():
    with pytest.raises(TaskError, match="each name once, got 'a-b' and 'a_b'"):
        parse({**GOOD, "name": "a-b"}, {**GOOD, "name": "a_b"})


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(TaskError, match=r"nothing\.json: expected a readable rubric, got No such file"):
        load_rubric(tmp_path / "nothing.json")


WEIGHTED = st.lists(st.tuples(st.integers(1, 10), st.integers(0, 2)), min_size=1, max_size=20)


@given(WEIGHTED, st.lists(st.integers(0, 1), max_size=5))
def test_the_score_is_equation_1_correctly_rounded(weighted, gates):
    graded = [Criterion(name=f"n{i}", blocker=False, weight=w, description="d") for i, (w, _) in enumerate(weighted)]
    blockers = [Criterion(name=f"b{i}", blocker=True, weight=7, description="d") for i, _ in enumerate(gates)]
    scores = [s for _, s in weighted] + gates
    verdicts = [
        Verdict(criterion=c.name, score=s, reason="") for c, s in zip([*graded, *blockers], scores, strict=True)
    ]
    exact = Fraction(100 * sum(w * s for w, s in weighted), 2 * sum(w for w, _ in weighted))
    score, failed = score_rubric([*graded, *blockers], verdicts)
    assert score == float(exact)
    assert failed == tuple(f"b{i}" for i, gate in enumerate(gates) if gate == 0)


def test_a_rubric_of_blockers_only_has_no_score():
    blocker = Criterion(name="b", blocker=True, weight=1, description="d")
    assert score_rubric([blocker], [Verdict(criterion="b", score=1, reason="")]) == (None, ())
