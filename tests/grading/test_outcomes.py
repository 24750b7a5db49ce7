"""The report's and the reward's bytes."""

import hashlib
import hmac
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fpenv.grading.outcomes import parse_report, parse_reward

KEY = b"k" * 64


def signed(number, key=KEY, **fields):
    body = json.dumps({"n": number, **fields}).encode()
    return hmac.new(key, body, hashlib.sha256).hexdigest().encode() + b" " + body + b"\n"


PASSED = {"kind": "test", "id": "a", "outcome": "passed", "message": ""}


def test_a_whole_report_is_read():
    report = parse_report(signed(0, **PASSED) + signed(1, kind="end", exitstatus=0), KEY)
    assert report.ended
    assert [test.test_id for test in report.outcomes] == ["a"]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        signed(0, **PASSED)[:-1],
        signed(0, **PASSED) + signed(1, key=b"other", kind="end", exitstatus=0),
        signed(0, **PASSED) + signed(2, kind="end", exitstatus=0),
        signed(0, **PASSED) + signed(0, kind="end", exitstatus=0),
        signed(0, kind="end", exitstatus=0) + signed(1, **PASSED),
        signed(0, **{**PASSED, "outcome": "great"}) + signed(1, kind="end", exitstatus=0),
        signed(0, **{**PASSED, "id": "a\x1b"}) + signed(1, kind="end", exitstatus=0),
        signed(0, kind="end", exitstatus=0) + b"trailing",
    ],
)
def test_a_report_that_is_cut_forged_or_disordered_has_not_ended(data):
    assert not parse_report(data, KEY).ended


def test_of_two_outcomes_of_one_test_the_worse_stays():
    failed = {**PASSED, "outcome": "failed"}
    for first, second in ((PASSED, failed), (failed, PASSED)):
        report = parse_report(signed(0, **first) + signed(1, **second), KEY)
        assert [test.outcome for test in report.outcomes] == ["failed"]


@pytest.mark.parametrize(
    ("files", "reward"),
    [
        ({}, None),
        ({"reward.txt": b"1\n"}, 1.0),
        ({"reward.txt": b"0.0"}, 0.0),
        ({"reward.json": b'{"reward": 1, "other": 0.5}'}, 1.0),
        ({"reward.json": b'{"score": 0.5}'}, 0.5),
        ({"reward.json": b'{"reward": 1.0}', "reward.txt": b"1"}, 1.0),
    ],
)
def test_rewards_are_read(files, reward):
    assert parse_reward(files) == (reward, "")


@pytest.mark.parametrize(
    "files",
    [
        {"reward.txt": b""},
        {"reward.txt": b"1 1"},
        {"reward.txt": "１".encode()},
        {"reward.txt": b"nan"},
        {"reward.txt": b"0x1"},
        {"reward.json": b'{"reward": 1, "reward": 0}'},
        {"reward.json": b'{"reward": true}'},
        {"reward.json": b'{"reward": 1e999}'},
        {"reward.json": b'{"reward": NaN}'},
        {"reward.json": b"[" * 100_000},
        {"reward.json": b'{"reward": 1}', "reward.txt": b"0"},
    ],
)
def test_a_reward_that_is_not_one_number_is_not_guessed(files):
    reward, trouble = parse_reward(files)
    assert reward is None
    assert trouble


@given(st.binary(max_size=200), st.integers(0, 400))
def test_no_bytes_crash_the_reading(noise, cut):
    good = signed(0, **PASSED) + signed(1, kind="end", exitstatus=0)
    for data in (
        noise,
        good[:cut] + noise,
        hmac.new(KEY, noise, hashlib.sha256).hexdigest().encode() + b" " + noise + b"\n",
    ):
        assert parse_report(data, KEY).ended == (data == good)
    parse_reward({"reward.txt": noise, "reward.json": noise})
