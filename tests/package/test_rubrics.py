"""Rubrics of every published version become the same criteria."""

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fpenv.errors import TaskError
from fpenv.package.rubrics import PASS_FAIL_GUIDANCE, normalise_rubric


def read(raw: Any):
    return normalise_rubric(json.dumps(raw).encode())


def test_a_scored_rubric_is_read_as_it_is() -> None:
    given = {"name": "finite-size", "blocker": 0, "weight": 3, "description": "Scales.", "guidance": "2: yes"}
    criteria, notes = read({"criteria": [given]})
    assert [line.model_dump() for line in criteria] == [{**given, "blocker": False}]
    assert notes == ()


@pytest.mark.parametrize(
    ("whole", "own"),
    [
        ({"scale": "pass_fail"}, {}),
        ({"scoring": "Pass/Fail"}, {}),
        ({}, {"type": "binary"}),
        ({}, {"scores": {"pass": "It does.", "fail": "It does not."}}),
        ({}, {"scores": [0, 1]}),
    ],
)
def test_a_criterion_that_passes_or_fails_counts_fully_or_not_at_all(whole: Any, own: Any) -> None:
    item = {"name": "states-the-unit", "blocker": 0, "weight": 2, "description": "The unit is stated.", **own}
    (line,), notes = read({**whole, "criteria": [item]})
    assert (line.blocker, line.weight) == (False, 2)
    assert line.guidance.endswith(PASS_FAIL_GUIDANCE)
    assert notes == ()


def test_a_blocker_passes_or_fails_in_every_version() -> None:
    (line,), _ = read({"scale": "pass_fail", "criteria": [{"name": "honest", "required": True, "description": "d"}]})
    assert line.blocker
    assert line.weight == 1
    assert line.guidance == ""


def test_ids_titles_and_match_criteria_stand_in_for_names_descriptions_and_guidance() -> None:
    (line,), notes = read([{"id": "Cites the key work!", "title": "Cites it.", "match_criteria": "By DOI.", "page": 3}])
    assert (line.name, line.description, line.guidance) == ("cites-the-key-work", "Cites it.", "By DOI.")
    assert notes == ("rubric fields not known here, not used: page",)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"criteria": []}, 'non-empty list "criteria"'),
        ({"lines": [1]}, 'non-empty list "criteria"'),
        ({"criteria": [{"description": "x"}]}, r"criteria\[0\]\.name: expected a kebab-case"),
        (
            {"criteria": [{"name": "a", "description": "x", "scale": "stars"}]},
            "scale: expected pass_fail or score, got 'stars'",
        ),
        ({"criteria": [{"name": "a", "description": "x", "weight": 11}]}, "weight: expected a whole number"),
        ({"criteria": [{"name": n, "description": "x"} for n in ("a-b", "a_b")]}, "expected each name once"),
    ],
)
def test_a_wrong_rubric_is_one_clear_error(raw: Any, message: str) -> None:
    with pytest.raises(TaskError, match=message):
        read(raw)


KEYS = st.sampled_from(["criteria", "name", "id", "scale", "type", "scores", "blocker", "weight", "description", "x"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.sampled_from(["pass_fail", "a", "score"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


@given(VALUES.map(lambda raw: json.dumps(raw).encode()) | st.binary(max_size=40))
def test_no_bytes_make_the_reader_fail_in_another_way(data: bytes) -> None:
    with contextlib.suppress(TaskError):
        normalise_rubric(data)
