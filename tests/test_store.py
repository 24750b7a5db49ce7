"""Run folders and trajectories on disk."""

import contextlib
import json
from pathlib import Path

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fpenv import store
from fpenv.errors import ConfigError
from fpenv.records import Budget, Grade, InstrumentCall, Review, Search, Step, ToolResult, VerifierResult
from fpenv.store import (
    RunFolder,
    RunInfo,
    TrajectoryWriter,
    check_name,
    export_jsonl,
    parse_trajectory,
    read_trajectory,
)

ANY = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**80), 2**80)
    | st.floats(allow_nan=False)
    | st.text(st.characters(categories=None))  # lone surrogates too
    | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
TEXT = st.text(max_size=30)
SECONDS = st.floats(0, 1e6)
CALLS = st.builds(
    InstrumentCall,
    instrument=TEXT,
    operation=TEXT,
    arguments=st.dictionaries(TEXT, ANY, max_size=2),
    result=st.none() | st.dictionaries(TEXT, ANY, max_size=2),
)
STEPS = st.builds(
    Step,
    step_id=st.integers(0, 10**9),
    parent_id=st.none() | st.integers(0, 10**9),
    tool=TEXT,
    arguments=TEXT,
    result=st.builds(ToolResult, output=TEXT, failed=st.booleans(), data=st.dictionaries(TEXT, ANY, max_size=2)),
    budget=st.just(Budget(steps_left=1, seconds_left=2, shots_left=-3)),
    instrument_calls=st.lists(CALLS, max_size=2).map(tuple),
    searches=st.lists(st.builds(Search, query=TEXT, hits=st.lists(TEXT, max_size=2).map(tuple)), max_size=1).map(tuple),
    started_s=SECONDS,
    ended_s=SECONDS,
)
HEADER = store._frame({"magic": store.MAGIC, "version": store.VERSION, "metadata": {"task": "t"}})


def step(**data):
    budget = Budget(steps_left=1, seconds_left=2, shots_left=3)
    result = ToolResult(output="out", data=data)
    return Step(
        step_id=1, parent_id=None, tool="bash", arguments="{}", result=result, budget=budget, started_s=0, ended_s=1
    )


def written(path, *steps):
    with TrajectoryWriter(path, {"task": "t"}) as writer:
        for each in steps:
            writer.append(each)
    return path.read_bytes()


@given(st.lists(STEPS, max_size=3))
@settings(max_examples=60, deadline=None)
def test_steps_read_back_as_they_were(steps):
    data = HEADER + b"".join(store._frame(store._plain(each)) for each in steps)
    header, found, complete = parse_trajectory(data)
    assert header.metadata == {"task": "t"}
    assert found == tuple(steps)
    assert complete


FRAMES = [HEADER] + [store._frame(store._plain(step(number=i))) for i in range(4)]


@given(st.integers(0, len(b"".join(FRAMES))))
def test_any_prefix_of_a_trajectory_reads_as_a_prefix_of_its_steps(length):
    header, steps, complete = parse_trajectory(b"".join(FRAMES)[:length])
    ends = [sum(map(len, FRAMES[: i + 1])) for i in range(len(FRAMES))]
    whole = sum(end <= length for end in ends)
    assert [each.result.data["number"] for each in steps] == list(range(max(whole - 1, 0)))
    assert (header is not None) == (whole > 0)
    assert complete == (length in ends)


@given(st.integers(len(HEADER), len(b"".join(FRAMES)) - 1), st.integers(1, 255))
def test_a_changed_byte_ends_the_reading_there(position, change):
    data = bytearray(b"".join(FRAMES))
    data[position] ^= change
    _, steps, complete = parse_trajectory(bytes(data))
    before = sum(sum(map(len, FRAMES[: i + 1])) <= position for i in range(len(FRAMES))) - 1
    assert len(steps) == before
    assert not complete


@given(st.binary(max_size=300))
def test_foreign_bytes_are_refused_or_empty_but_never_crash(data):
    with contextlib.suppress(ConfigError):
        assert parse_trajectory(data) == (None, (), False)


def test_a_step_is_on_disk_before_append_returns(tmp_path):
    writer = TrajectoryWriter(tmp_path / "t")
    writer.append(step())
    assert len(read_trajectory(tmp_path / "t").steps) == 1
    writer.close()


def test_an_unknown_version_is_refused(tmp_path):
    (tmp_path / "t").write_bytes(store._frame({"magic": store.MAGIC, "version": 99, "metadata": {}}))
    with pytest.raises(
        ConfigError, match="expected trajectory version 1, got 99; read it with the fpenv that wrote it"
    ):
        read_trajectory(tmp_path / "t")


@pytest.mark.parametrize("data", [b"hello, this is text", store._frame({"magic": "other"}), store._frame([1])])
def test_another_format_is_refused(data):
    with pytest.raises(ConfigError, match="expected a fpenv-trajectory file, got something else"):
        parse_trajectory(data)


def test_a_step_that_is_none_is_refused_by_key():
    with pytest.raises(ConfigError, match="frame 1, key step_id"):
        parse_trajectory(HEADER + store._frame({"tool": "bash"}))


def test_a_trajectory_is_never_overwritten(tmp_path):
    written(tmp_path / "t")
    with pytest.raises(ConfigError, match="expected no trajectory here, found one"):
        TrajectoryWriter(tmp_path / "t")


@pytest.mark.parametrize(
    ("value", "back"),
    [
        (np.float32(0.5), 0.5),
        (np.float64(0.1), 0.1),
        (np.longdouble(0.5), 0.5),
        (np.int64(3), 3),
        (np.bool_(True), True),
        (np.str_("a"), "a"),
        (np.arange(3), [0, 1, 2]),
        ((1, (2,)), [1, [2]]),
        ({3, 1, 2}, [1, 2, 3]),
        (2**64, 2**64),
        (-(2**70), -(2**70)),
        ("\ud800", "\ud800"),
        ({1: "a"}, {"1": "a"}),
        (bytearray(b"a"), b"a"),
    ],
    ids=repr,
)
def test_what_msgpack_has_no_type_for_is_converted(tmp_path, value, back):
    written(tmp_path / "t", step(value=value))
    found = read_trajectory(tmp_path / "t").steps[0].result.data["value"]
    assert found == back
    assert type(found) is type(back)


def test_deep_nesting_becomes_text(tmp_path):
    deep: list = []
    for _ in range(2000):
        deep = [deep]
    written(tmp_path / "t", step(value=deep))
    assert b"nested too deep" in (tmp_path / "t").read_bytes()
    assert read_trajectory(tmp_path / "t").complete


def test_a_value_without_meaning_on_disk_is_refused_and_leaves_no_half_frame(tmp_path):
    with TrajectoryWriter(tmp_path / "t") as writer:
        with pytest.raises(ConfigError, match="expected a value that can be written to a trajectory, got object"):
            writer.append(step(value=object()))
        writer.append(step())
    assert read_trajectory(tmp_path / "t").complete


def test_a_huge_integer_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="integer of at most 4300 digits"):
        written(tmp_path / "t", step(value=10**5000))


def test_jsonl_has_a_line_a_step_and_only_json(tmp_path):
    odd = step(nan=float("nan"), raw=b"\xff", big=2**70, lone="\ud800", line="\u2028\n")
    export_jsonl([odd, step()], tmp_path / "t.jsonl")
    lines = (tmp_path / "t.jsonl").read_text().split("\n")
    assert len(lines) == 3
    data = json.loads(lines[0], parse_constant=lambda name: pytest.fail(name))["result"]["data"]
    assert data == {"nan": "nan", "raw": {"base64": "/w=="}, "big": 2**70, "lone": "\ud800", "line": "\u2028\n"}


GRADE = Grade(
    task="t",
    task_digest="d",
    instance="canonical",
    status="ungraded",
    s_final=None,
    reason="",
    verifier=VerifierResult(status="ungraded", passed=False, tests=()),
    review=Review(status="ungraded", reviewer="none", verdicts=()),
    tests_passed=0,
    tests_total=0,
    failed_blockers=(),
    rubric_score=None,
    deliverables={},
)
INFO = RunInfo(task="t", task_digest="d", instance="7", agent="oracle", stop="submitted", versions={"fpenv": "1"})


def test_a_run_folder_reads_back(tmp_path):
    run = RunFolder.create(tmp_path / "run")
    with run.start_trajectory({"task": "t"}) as writer:
        writer.append(step())
    run.write_run(INFO)
    run.write_grade(GRADE)
    run.write_deliverables({"result.md": b"x: 1", "figures/a.png": b"\x89"})
    again = RunFolder(tmp_path / "run")
    assert again.read_run() == INFO
    assert again.read_grade() == GRADE
    assert again.read_deliverables() == {"figures/a.png": b"\x89", "result.md": b"x: 1"}
    assert read_trajectory(again.trajectory).complete
    names = sorted(path.name for path in (tmp_path / "run").iterdir())
    assert names == ["deliverables", "grade.json", "run.json", "trajectory.msgpack"]


def test_a_run_folder_is_not_made_over_another(tmp_path):
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(ConfigError, match="expected an empty or new folder"):
        RunFolder.create(tmp_path)


def test_a_damaged_run_file_is_named(tmp_path):
    (tmp_path / "run.json").write_text('{"task": 1}')
    with pytest.raises(ConfigError, match=r"run\.json: key task"):
        RunFolder(tmp_path).read_run()
    with pytest.raises(ConfigError, match=r"grade\.json: expected a run's file, got No such file"):
        RunFolder(tmp_path).read_grade()


@pytest.mark.parametrize("name", ["result.md", "figures/a b.png", "Δ.md", ".hidden"])
def test_plain_names_are_kept(name):
    assert check_name(name) == name


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "/etc/passwd", "a/../b", "../a", "a//b", "./a", "a/", "a\nb", "a\0b", "a\x1b", "a\\b", "é" * 200],
)
def test_names_that_are_no_plain_path_are_refused(tmp_path, name):
    with pytest.raises(ConfigError, match="expected a plain relative path as a file's name"):
        RunFolder(tmp_path).write_deliverables({name: b""})
    assert not any(Path(tmp_path).iterdir())


def test_frames_are_plain_msgpack(tmp_path):
    data = written(tmp_path / "t", step())
    length, _ = store.FRAME.unpack_from(data)
    assert msgpack.unpackb(data[store.FRAME.size :][:length])["magic"] == "fpenv-trajectory"
