"""Whatever an agent sends, `normalise` answers with an action or a sentence; never an exception."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fpenv.tools.tool import normalise

JUNK = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text() | st.binary() | st.integers(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def test_arguments_may_be_json_text_or_a_mapping() -> None:
    text = normalise({"tool": "bash", "arguments": '{"command": "ls"}'})
    mapping = normalise({"tool": "bash", "arguments": {"command": "ls"}})
    assert text == ("bash", '{"command": "ls"}') == mapping


@pytest.mark.parametrize(
    ("action", "complaint"),
    [
        ("ls", "got str"),
        (None, "got NoneType"),
        ({"arguments": "{}"}, r"got keys \['arguments'\]"),
        ({"tool": "bash", "arguments": 3}, "arguments of type int"),
        ({"tool": "bash", "arguments": "{}", "x": 1}, "got keys"),
        ({"tool": "bash", "arguments": {"command": object()}}, "not JSON"),
        ({"tool": "bash", "arguments": "x" * (4 << 20 | 1)}, "at most 4,194,304 characters"),
    ],
)
def test_a_malformed_action_is_answered_with_what_was_expected(action: object, complaint: str) -> None:
    answer = normalise(action)
    assert isinstance(answer, str)
    assert answer.startswith("expected an action")
    assert re.search(complaint, answer)


@given(JUNK)
def test_no_junk_raises_and_what_passes_can_be_encoded(junk: object) -> None:
    answer = normalise({"tool": "bash", "arguments": junk})
    for part in (answer,) if isinstance(answer, str) else answer:
        part.encode("utf-8")


def test_a_lone_surrogate_is_replaced_because_no_file_can_carry_it() -> None:
    _, arguments = normalise({"tool": "bash", "arguments": {"command": "echo \ud800"}})
    assert "\ud800" not in json.loads(arguments)["command"]
