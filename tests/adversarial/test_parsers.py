"""Random and mutated bytes for every parser that reads what an agent, a guest or a package sent: typed errors only."""

# ruff: noqa: E501 (the agents' programs are kept whole)

from __future__ import annotations

import contextlib
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
from adversary import PACKAGE
from hypothesis import given, settings
from hypothesis import strategies as st

from fpenv import store
from fpenv.episode import TOOLS, Episode, EpisodeConfig
from fpenv.errors import ConfigError, FpenvError, ReviewError, TaskError
from fpenv.grading.evidence import parse_findings
from fpenv.grading.outcomes import parse_report, parse_reward
from fpenv.instance import make_instance
from fpenv.instruments.instrument import Refusal
from fpenv.package.frontmatter import read_settings
from fpenv.records import Criterion, VerifierResult
from fpenv.records import TestOutcome as Outcome
from fpenv.rubric import parse_rubric
from fpenv.sandbox import guest
from fpenv.sandbox.frames import FrameParser, ProtocolError, pack_frame
from fpenv.store import TrajectoryWriter, parse_trajectory
from fpenv.task import load_task
from fpenv.testing.fake_sandbox import FakeBackend
from fpenv.tools.tool import normalise

FLAGSHIP = Path(__file__).parents[2] / "tasks" / "rydberg-ising-critical-point"
fuzz = settings(max_examples=150, deadline=None, database=None)

LEAF = (
    st.none()
    | st.booleans()
    | st.integers(-(10**40), 10**40)
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(["1e999", "\ud800", "\x1b[2J", "9" * 200, "NaN"])
)
ANY = st.recursive(
    LEAF,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=15,
)


def mutated(valid: bytes) -> st.SearchStrategy[bytes]:
    """The valid bytes with some cut out, put in or changed."""

    def mutate(edits: list[tuple[int, int, bytes]]) -> bytes:
        data = bytearray(valid)
        for position, cut, put in edits:
            at = position % (len(data) + 1)
            data[at : at + cut] = put
        return bytes(data)

    edit = st.tuples(st.integers(0, 10**6), st.integers(0, 40), st.binary(max_size=20))
    return st.lists(edit, min_size=1, max_size=4).map(mutate)


def load(path: Path, name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


# ---- a hostile guest -----------------------------------------------------------------------------------------------

STREAM = b"".join(
    pack_frame(kind, 1, b"\0" * 64)
    for kind in (guest.STDOUT, guest.CALL, guest.EXITED, guest.FILE, guest.DATA, guest.DONE)
)


@fuzz
@given(mutated(STREAM))
def test_mutated_frames_are_frames_or_a_protocol_error(data: bytes) -> None:
    parser = FrameParser()
    with contextlib.suppress(ProtocolError):
        parser.feed(data)
        for frame in parser.frames():
            assert len(frame.payload) <= len(data)


# ---- what an agent sends -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def episode() -> Episode:
    instance = make_instance(load_task(PACKAGE))
    return Episode(instance, FakeBackend(), Path("/nonexistent"), EpisodeConfig(max_steps=10**6))


@fuzz
@given(
    st.sampled_from(["instrument", "literature", "other"]),
    st.binary(max_size=100)
    | ANY.map(lambda value: json.dumps(value).encode())
    | mutated(b'{"instrument": "balance", "operation": "weigh", "arguments": {"shots": 3}}')
    | mutated(b'{"query": "coin tossing", "limit": 3}'),
)
def test_any_request_to_a_service_is_answered_with_json(episode: Episode, service: str, request: bytes) -> None:
    reply = json.loads(episode._serve(service, request))
    assert isinstance(reply, dict)
    assert episode._broken is None
    assert b"1.2345" not in json.dumps(reply).encode()


NAMES = ["bash", "write_file", "read_file", "search_literature", "instrument"]
KEYS = ["command", "timeout_s", "path", "content", "first_line", "lines", "query", "limit", "operation", "arguments"]


@fuzz
@given(
    ANY
    | st.fixed_dictionaries(
        {"tool": st.sampled_from(NAMES), "arguments": st.dictionaries(st.sampled_from(KEYS), ANY) | st.text()}
    )
)
def test_any_action_is_an_observation_that_can_be_recorded(episode: Episode, action: Any) -> None:
    parsed = normalise(action)
    if isinstance(parsed, tuple) and parsed[0] == "submit":
        return
    step = episode.step(action)
    assert isinstance(step.result.output, str)
    store._frame(store._plain(step))
    json.dumps(store.jsonable(step), allow_nan=False).encode()
    assert episode.stop is None


@fuzz
@given(st.text(alphabet="abcXYZ\"'*^-:(){}[]+ .\\\0\u00e9\u0661\U0001f600 ORANDNEAR", max_size=500), st.integers(1, 20))
def test_any_query_of_the_literature_is_answered(episode: Episode, query: str, limit: int) -> None:
    assert isinstance(episode._room.library.search(query, limit), list)


def test_a_query_of_as_many_words_as_fit_is_answered(episode: Episode) -> None:
    for query in ("a " * 250, "_ " * 250, "é" * 500, "ab cd ef " * 55, "'" * 500):
        result = TOOLS.use("search_literature", json.dumps({"query": query[:500], "limit": 20}), episode._room)
        assert not result.data.get("refused")


RUN = {
    "atoms": 2, "spacing_um": 6.2, "shots": 10,
    "pulse": [{"duration_us": 1.0, "rabi_mhz": 1.0, "detuning_mhz": 0.5, "phase_rad": 0.1}],
}  # fmt: skip
EDGE = st.sampled_from(
    [0, 1, 3, -1, 0.0, 1e-300, 5e-324, 60.0, 2.5, -20.0, 20.0, 4.0, 40.0, 2000, float("nan"), 1e308, True, None, "1"]
)


@pytest.fixture(scope="module")
def apparatus() -> Any:
    instance = make_instance(load_task(FLAGSHIP))
    return instance.task.module("instruments.py").build(instance.parts.instruments)[0]


@fuzz
@given(
    st.dictionaries(st.sampled_from([*RUN, "x"]), EDGE | ANY)
    | st.fixed_dictionaries(
        {
            "atoms": EDGE,
            "spacing_um": EDGE,
            "shots": EDGE,
            "pulse": st.lists(
                st.fixed_dictionaries(
                    {"duration_us": EDGE, "rabi_mhz": EDGE, "detuning_mhz": EDGE}, optional={"phase_rad": EDGE}
                ),
                max_size=13,
            ),
        }
    )
)
def test_the_flagships_apparatus_refuses_or_measures_and_never_breaks(apparatus: Any, changes: dict[str, Any]) -> None:
    with contextlib.suppress(Refusal):
        reading = apparatus.call("run", {**RUN, **changes}, np.random.default_rng(1))
        assert sum(reading.result["counts"].values()) == reading.shots > 0


# ---- what an agent hands in ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def flagship_verifier() -> Any:
    return load(FLAGSHIP / "verifier" / "test_outputs.py", "adversarial_fuzzed_verifier")


ENTRY = "critical_detuning_mhz"
TOKENS = st.sampled_from(
    [ENTRY, "beta_over_nu", ":", "=", "|", "-", "*", "`", "1.4236", "1", ".", "e5", ",", "+/-", "±", "(", ")", "MHz", " ", "\n", "#",
     "nan", "inf", "\u2212", "\u0661", "\uff11", "\u200b", "\ufeff", "\r", "\x0b", "\u2028", "_", "1e999", "9" * 40]
)  # fmt: skip


@fuzz
@given(st.lists(TOKENS, max_size=25).map("".join) | st.text(max_size=100))
def test_a_result_gives_one_finite_number_a_name_or_is_malformed(flagship_verifier: Any, text: str) -> None:
    try:
        values = flagship_verifier.parse_results(text, tuple(flagship_verifier.REFERENCES))
    except flagship_verifier.Malformed:
        return
    for name, value in values.items():
        assert np.isfinite(value)
        named = [line for line in text.splitlines() if name in line and ":" in line.partition(name)[2][:1]]
        assert len(named) <= 1 or not all(line.strip().startswith(name) for line in named)


@fuzz
@given(st.lists(TOKENS, max_size=30).map("".join), TOKENS)
def test_putting_something_before_a_number_never_makes_another_number(
    flagship_verifier: Any, rest: str, put: str
) -> None:
    """Whatever follows a right value on its line: the value stays, or all is malformed."""
    line = rest.partition("\n")[0].splitlines()[:1]
    text = f"{ENTRY}: 1.4236{put}{''.join(line)}".splitlines()[0]
    with contextlib.suppress(flagship_verifier.Malformed):
        value = flagship_verifier.parse_results(text, (ENTRY,)).get(ENTRY)
        assert value is None or str(value).startswith("1.4236") or "e" in put + rest or put[:1].isdigit()


# ---- what a verifier or a reviewer's sandbox answers ---------------------------------------------------------------

CRITERIA = (
    Criterion(name="no_fabrication", blocker=True, weight=1, description="d"),
    Criterion(name="literature", blocker=False, weight=1, description="d"),
)
FINDINGS = {
    "findings": [
        {"criterion": "no_fabrication", "score": 1, "reason": "r", "quotes": [{"source": "s", "quote": "q"}]},
        {"criterion": "literature", "score": 2, "reason": "r", "quotes": []},
    ]
}


@fuzz
@given(
    st.binary(max_size=60) | mutated(json.dumps(FINDINGS).encode()) | ANY.map(lambda value: json.dumps(value).encode())
)
def test_findings_are_one_valid_verdict_a_criterion_or_a_review_error(data: bytes) -> None:
    with contextlib.suppress(ReviewError):
        for criterion, finding in zip(CRITERIA, parse_findings(data, CRITERIA), strict=True):
            if not isinstance(finding, ReviewError):
                assert finding.criterion == criterion.name
                assert finding.score in ((0, 1) if criterion.blocker else (0, 1, 2))


def signed(lines: list[dict[str, Any]], key: bytes) -> bytes:
    import hashlib
    import hmac

    bodies = [json.dumps(line, sort_keys=True).encode() for line in lines]
    return b"".join(hmac.new(key, body, hashlib.sha256).hexdigest().encode() + b" " + body + b"\n" for body in bodies)


KEY = b"k" * 64
REPORT = signed(
    [
        {"n": 0, "kind": "collected", "ids": ["a", "b"]},
        {"n": 1, "kind": "test", "id": "a", "outcome": "failed", "message": ""},
        {"n": 2, "kind": "test", "id": "b", "outcome": "passed", "message": ""},
        {"n": 3, "kind": "end", "exitstatus": 1},
    ],
    KEY,
)


@fuzz
@given(mutated(REPORT))
def test_no_change_to_a_report_turns_a_failed_test_into_a_passed_one(data: bytes) -> None:
    report = parse_report(data, KEY)
    assert not [test for test in report.outcomes if test.test_id == "a" and test.outcome == "passed"]
    assert not report.ended or data == REPORT


def test_no_rearrangement_of_a_reports_lines_drops_a_failure() -> None:
    import itertools

    lines = REPORT.splitlines(keepends=True)
    for size in range(len(lines) + 2):
        for chosen in itertools.product(lines, repeat=min(size, 4)):
            report = parse_report(b"".join(chosen), KEY)
            assert not report.ended or list(chosen) == lines


@fuzz
@given(
    st.sampled_from(["reward.txt", "reward.json"]),
    st.binary(max_size=40) | mutated(b'{"reward": 1.0}') | ANY.map(lambda v: json.dumps(v).encode()),
)
def test_a_reward_is_a_number_or_trouble(name: str, data: bytes) -> None:
    reward, trouble = parse_reward({name: data})
    assert (reward is None) == bool(trouble)
    assert reward is None or np.isfinite(reward)


# ---- what a package or a run folder holds --------------------------------------------------------------------------

RUBRIC = (PACKAGE / "rubric.json").read_bytes()


@fuzz
@given(st.binary(max_size=60) | mutated(RUBRIC) | ANY.map(lambda value: json.dumps({"criteria": [value]}).encode()))
def test_a_rubric_is_valid_or_a_task_error(data: bytes) -> None:
    with contextlib.suppress(TaskError):
        criteria = parse_rubric(data)
        assert all(1 <= criterion.weight <= 10 for criterion in criteria)


FIELDS = st.sampled_from(
    ["schema_version", "metadata", "verifier", "agent", "sandbox", "environment", "oracle", "name", "image", "task", "env", "cpus",
     "memory", "memory_mb", "storage", "timeout_sec", "deliverables", "artifacts", "steps", "gpus", "os", "network_mode", "user"]
)  # fmt: skip
SETTINGS = st.recursive(
    LEAF | st.sampled_from(["2G", "512 MiB", "1.5TB", "${HOME}", "${A:-b}", "linux"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(FIELDS, inner, max_size=4),
    max_leaves=12,
)


@fuzz
@given(SETTINGS)
def test_settings_are_valid_or_a_task_error(raw: Any) -> None:
    with contextlib.suppress(TaskError):
        front, notes = read_settings(raw, "task.md")
        assert front.agent.timeout_sec > 0
        assert all(isinstance(note, str) for note in notes)


@fuzz
@given(st.dictionaries(FIELDS, st.text(max_size=40) | LEAF, max_size=3), st.text(max_size=200))
def test_a_sheet_of_any_text_is_read_or_a_task_error(
    tmp_path_factory: pytest.TempPathFactory, extra: Any, body: str
) -> None:
    import yaml

    folder = tmp_path_factory.mktemp("sheet")
    (folder / "verifier").mkdir()
    (folder / "verifier" / "test.sh").write_text("")
    front = yaml.safe_dump(extra, allow_unicode=True)
    (folder / "task.md").write_bytes(f"---\n{front}---\n{body}".encode("utf-8", "replace"))
    with contextlib.suppress(FpenvError):
        load_task(folder)


@pytest.fixture(scope="module")
def trajectory(tmp_path_factory: pytest.TempPathFactory, episode: Episode) -> bytes:
    path = tmp_path_factory.mktemp("trajectory") / "t"
    with TrajectoryWriter(path, {"task": "t"}) as writer:
        for _ in range(2):
            writer.append(
                episode.step({"tool": "instrument", "arguments": {"operation": "weigh", "arguments": {"shots": 1}}})
            )
    return path.read_bytes()


@fuzz
@given(st.data())
def test_a_mutated_trajectory_gives_whole_steps_or_a_config_error(trajectory: bytes, data: st.DataObject) -> None:
    with contextlib.suppress(ConfigError):
        header, steps, _ = parse_trajectory(data.draw(mutated(trajectory)))
        assert header is not None or not steps


HEADERS = st.dictionaries(
    st.sampled_from(["magic", "version", "metadata", "x"]), LEAF | st.just(store.MAGIC) | st.just(1), max_size=4
)


@pytest.mark.parametrize("more", [{"metadata": 5}, {"x": 1}, {"metadata": {}, "version": True}])
def test_a_header_that_is_not_as_agreed_is_a_config_error(more: dict[str, Any]) -> None:
    frame = store._frame({"magic": store.MAGIC, "version": store.VERSION, **more})
    with pytest.raises(ConfigError):
        parse_trajectory(frame)


@fuzz
@given(ANY)
def test_whole_frames_of_anything_are_steps_or_a_config_error(value: Any) -> None:
    header = store._frame({"magic": store.MAGIC, "version": store.VERSION, "metadata": {}})
    body = msgpack.packb(store._plain(value), unicode_errors="surrogatepass")
    frame = store.FRAME.pack(len(body), __import__("zlib").crc32(body)) + body
    with contextlib.suppress(ConfigError):
        assert parse_trajectory(header + frame).steps == ()


@fuzz
@given(st.text(max_size=300))
def test_messages_of_a_test_survive_in_a_record(text: str) -> None:
    from fpenv.untrusted import show

    outcome = Outcome(test_id="t", outcome="failed", message=show(text))
    result = VerifierResult(status="graded", passed=False, tests=(outcome,))
    assert VerifierResult.model_validate_json(store.canonical_json(result)) == result
