"""Attacks by exhaustion: memory, disk, processes, time, shots, and the host's own memory through what it records."""

# ruff: noqa: E501 (the agents' programs are kept whole)

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from adversary import HONEST, WEIGH, WRONG, Play, bash, deliver, python

from fpenv import store
from fpenv.env import FrontierPhysicsEnv
from fpenv.store import read_trajectory

Start = Callable[..., FrontierPhysicsEnv]
LAB = "import json, lab\ndef call(request):\n    try: return lab.call('instrument', request)\n    except lab.ServiceError as error: return {'error': str(error)}\n"


BOMBS = {
    "memory": bash("python3 -c 'b = []\nwhile True: b.append(bytearray(1 << 20))'", timeout_s=20),
    "memory of many": bash(
        "for i in 1 2 3 4 5 6; do python3 -c 'b = bytearray(b\"x\") * (80 << 20)' & done; wait", timeout_s=20
    ),
    "disk": bash("for d in /root /tmp /dev/shm /run; do head -c 200M /dev/zero > $d/fill; done"),
    "inodes": python(
        "try:\n    for n in range(10**6): open(f'/tmp/{n}', 'w').close()\nexcept OSError as error: print(error.errno)"
    ),
    "processes": bash(":(){ :|:& };:", timeout_s=2),
    "output": bash("yes | tee /dev/stderr", timeout_s=1),
    "one endless line": bash("tr '\\0' a < /dev/zero", timeout_s=1),
    "descriptors": python(
        "import os\ntry:\n    while True: os.open('/dev/null', 0)\nexcept OSError as error: print(error.errno)"
    ),
    "a processor": bash("trap '' TERM INT HUP; while :; do :; done", timeout_s=1),
    "a sleep": bash("trap '' TERM; sleep 300 & setsid sleep 300 & wait", timeout_s=0.5),
    "sockets": python(
        "import socket\nheld = []\ntry:\n    while True: held.append(socket.socketpair())\nexcept OSError as error: print(error.errno)"
    ),
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_bomb_is_the_agents_own_result_and_the_episode_goes_on(play: Play, bomb: str) -> None:
    clean = bash("rm -rf /root/fill /tmp/* /dev/shm/* /run/fill; echo on")
    began = time.monotonic()
    played = play(BOMBS[bomb], clean, *HONEST)
    assert time.monotonic() - began < 60
    assert len(played.outputs[0]) < 200_000
    assert played.outputs[1] == "on"
    played.assert_worth(100.0)


def test_a_disk_that_stays_full_gets_what_could_be_written(play: Play) -> None:
    fill = "for d in /root /tmp /dev/shm /run; do head -c 200M /dev/zero > $d/fill; done"
    played = play(bash(fill), *HONEST, reviewer=None)
    assert played.info["valid"], played.grade["reason"]
    assert played.reward == 0.0


def test_files_that_eat_the_sandboxs_memory_end_it_by_the_agents_doing(play: Play, tmp_path: Path) -> None:
    hog = "python3 -c 'b = bytearray(b\"x\") * (215 << 20); import time; time.sleep(30)' & head -c 47M /dev/zero > /root/fill; wait"
    played = play(*HONEST, bash(hog, timeout_s=5), bash("head -c 47M /dev/zero > /tmp/more; echo"), reviewer=None)
    assert played.info["stop"] in ("submitted", "sandbox_ended")
    if played.info["stop"] == "sandbox_ended":
        played.assert_worth(0.0)


# ---- time ----------------------------------------------------------------------------------------------------------


def test_the_clock_of_the_sandbox_gives_no_time(start: Start) -> None:
    env = start(time_limit_s=30)
    tricks = "date -s '2001-01-01'; touch -d 2001-01-01 result.md; timedatectl set-time 2001-01-01; hwclock --set --date 2001-01-01"
    before = int(env.step(bash(f"({tricks}) >/dev/null 2>&1; true"))[0]["seconds_left"][0])
    after = int(env.step(bash("faketime 2001-01-01 true 2>/dev/null; sleep 1.2"))[0]["seconds_left"][0])
    assert 0 < after < before <= 30


@pytest.mark.parametrize(
    "timeout", [-1, 0, "NaN", "Infinity", 1e308, "1e999", True, None, "60", [60], -1e-300, 10**400]
)
def test_no_time_limit_of_a_command_is_longer_than_what_is_left(start: Start, timeout: Any) -> None:
    env = start(time_limit_s=3)
    literal = timeout if isinstance(timeout, str) and timeout != "60" else json.dumps(timeout)
    began = time.monotonic()
    arguments = f'{{"command": "sleep 60", "timeout_s": {literal}}}'
    observation, _, _, truncated, info = env.step({"tool": "bash", "arguments": arguments})
    assert time.monotonic() - began < 15
    assert observation["failed"] == 1
    if truncated:
        assert info["stop"] == "time"


def test_no_action_gives_steps_back(start: Start) -> None:
    env = start(max_steps=6)
    for action in (None, "x", {}, {"tool": "bash"}, {"tool": "bash", "arguments": {"command": "true", "steps": -5}}):
        _, _, terminated, truncated, _ = env.step(action)  # type: ignore[arg-type]
        assert not terminated
        assert not truncated
    _, reward, _, truncated, info = env.step(bash("true"))
    assert (truncated, info["stop"], reward) == (True, "steps", 0.0)


def test_a_service_call_in_flight_at_the_time_limit_ends_with_it(start: Start) -> None:
    env = start(time_limit_s=2)
    for action in HONEST:
        env.step(action)
    began = time.monotonic()
    program = LAB + "while True: call({'operation': 'settle'})"
    _, reward, _, truncated, info = env.step(python(program))
    assert time.monotonic() - began < 20
    assert (truncated, info["stop"], info["valid"]) == (True, "time", True)
    assert reward == 100.0


def test_slow_calls_of_many_callers_count_against_the_time_limit(start: Start) -> None:
    env = start(time_limit_s=1.5)
    program = (
        LAB
        + "import threading\nfor _ in range(40): threading.Thread(target=lambda: [call({'operation': 'settle'}) for _ in range(99)]).start()"
    )
    began = time.monotonic()
    _, _, _, truncated, info = env.step(python(program))
    assert time.monotonic() - began < 25
    assert truncated
    assert info["valid"]


# ---- shots ---------------------------------------------------------------------------------------------------------


def test_only_a_whole_number_of_shots_is_taken(play: Play) -> None:
    bad = [
        True,
        False,
        1.0,
        100.5,
        "100",
        "1e3",
        -1,
        0,
        -(10**30),
        10**30,
        1e308,
        None,
        [100],
        {"shots": 100},
        "\u0661",
    ]
    program = LAB + f"print([call({{'operation': 'weigh', 'arguments': {{'shots': s}}}}) for s in {bad!r}])\n"
    program += "print(call({'operation': 'weigh', 'arguments': {'shots': float('nan')}}), call({'operation': 'weigh', 'arguments': {'shots': float('-inf')}}))"
    tools = [
        {"tool": "instrument", "arguments": {"operation": "weigh", "arguments": {"shots": shots}}} for shots in bad
    ]
    played = play(python(program), *tools, *HONEST)
    assert played.outputs[0].count("expected an integer") == len(bad) + 2
    assert all("expected an integer" in output for output in played.outputs[1 : 1 + len(tools)])
    assert played.env._episode is not None
    assert played.env._episode.budget().shots_left == 600
    played.assert_worth(100.0)


def test_callers_at_once_cannot_spend_more_than_is_counted(start: Start) -> None:
    env = start()
    program = (
        LAB
        + """
import threading
got = []
def work():
    for _ in range(5): got.append(call({"operation": "weigh", "arguments": {"shots": 4}}).get("shots", 0))
threads = [threading.Thread(target=work) for _ in range(20)]
for t in threads: t.start()
for t in threads: t.join()
print(sum(got))
"""
    )
    observation = env.step(python(program))[0]
    assert observation["output"] == "400"
    assert int(observation["shots_left"][0]) == 600


def test_overspending_is_counted_and_fails_its_blocker(play: Play) -> None:
    played = play(WEIGH, WEIGH, WEIGH, *deliver())
    played.assert_worth(0.0)
    assert played.grade["failed_blockers"] == ["shot_budget"]


def test_calls_that_were_broken_off_give_no_reading_that_is_not_counted(start: Start) -> None:
    env = start()
    program = """
import json, socket, struct
for _ in range(10):
    body = json.dumps({"operation": "weigh", "arguments": {"shots": 10}}).encode()
    with socket.socket(socket.AF_UNIX) as s:
        s.connect("/run/fpenv/services.sock"); s.sendall(struct.pack("<HI", 10, len(body)) + b"instrument" + body)
import time; time.sleep(0.5)
"""
    observation = env.step(python(program))[0]
    assert env._episode is not None
    taken = sum(call.shots for step in env._episode.steps for call in step.instrument_calls)
    assert int(observation["shots_left"][0]) == 1000 - taken


# ---- what the host keeps -------------------------------------------------------------------------------------------


def test_a_call_too_large_to_record_is_refused(start: Start) -> None:
    env = start()
    program = LAB + "print(call({'operation': 'weigh', 'arguments': {'shots': 1, 'pad': 'x' * 1_000_000}}))"
    assert "expected at most 32,768 characters" in env.step(python(program))[0]["output"]
    large = {"operation": "weigh", "arguments": {"shots": 1, "pad": "x" * 1_000_000}}
    observation = env.step({"tool": "instrument", "arguments": large})[0]
    assert "expected at most 32,768 characters" in observation["output"]
    assert int(observation["shots_left"][0]) == 1000


def test_many_refused_calls_are_recorded_and_do_no_harm(play: Play, tmp_path: Path) -> None:
    program = LAB + "for n in range(3000): call({'operation': 'weigh', 'arguments': {'shots': -n}})\nprint('done')"
    played = play(python(program, timeout_s=60), *HONEST, record_to=tmp_path / "runs")
    assert played.outputs[0] == "done"
    played.assert_worth(100.0)
    trajectory = read_trajectory(played.env.recording.folder.trajectory)
    assert trajectory.complete
    assert len(trajectory.steps[0].instrument_calls) == 3000


FLOOD = (
    LAB
    + "for n in range(COUNT): call({'operation': 'weigh', 'arguments': {'shots': 0, 'pad': 'x' * 30_000}})\nprint('done')"
)


def test_what_the_host_keeps_of_refused_calls_is_bounded(start: Start) -> None:
    env = start()
    env.step(python(FLOOD.replace("COUNT", "300"), timeout_s=60))
    assert env._episode is not None
    kept = sum(len(json.dumps(call.arguments)) for step in env._episode.steps for call in step.instrument_calls)
    assert kept < 4 << 20


def test_a_step_too_large_for_the_trajectory_does_not_break_the_episode(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "MAX_FRAME_BYTES", 8 << 20)  # the same with 9000 calls and the real limit
    env = start(record_to=tmp_path / "runs")
    assert env.step(python(FLOOD.replace("COUNT", "300"), timeout_s=60))[0]["output"] == "done"


ODD_REQUESTS = """
import json, socket, struct
def send(body, name=b"instrument", length=None):
    with socket.socket(socket.AF_UNIX) as s:
        s.settimeout(10)
        try:
            s.connect("/run/fpenv/services.sock")
            s.sendall(struct.pack("<HI", len(name), len(body) if length is None else length) + name + body)
            return s.recv(100) != b""
        except OSError:
            return False
odd = [b"", b"null", b"[]", b"1", b"NaN", b'{"arguments": NaN}', b'{"arguments": {"shots": NaN}}', b'{"arguments": {"shots": 1e999}}',
       b"[" * 100000, b'{"a":' * 90000, b'{"operation": "weigh", "arguments": {"shots": ' + b"1" * 4000 + b"}}",
       b'{"operation": "weigh", "arguments": {"shots": ' + b"1" * 9000 + b"}}", b'{"operation": "\\\\ud800", "arguments": {"\\\\ud800": "\\\\udfff"}}',
       b'{"operation": "weigh", "arguments": {"x": "\\\\ud800\\\\u0000"}}', b"\\xff\\xfe{}", b'{"operation": "weigh", "operation": "jam2"}',
       b'{"query": "' + b"a OR " * 90 + b'"}', b'{"query": "\\\\u0000\\\\" NEAR(* ^ - : {} ( ) AND NOT"}', b'{"query": "x", "limit": 1e9}',
       b'{"arguments": ' + b"[" * 900 + b"]" * 900 + b"}", b'{"operation": "weigh", "arguments": {"x": ' + b"[" * 900 + b"]" * 900 + b"}}"]
answered = sum(send(body, name) for body in odd for name in (b"instrument", b"literature"))
send(b"x" * (1 << 20), b"literature"); send(b"", b"", 2**32 - 1); send(b"{}", b"n" * 60000)
print(answered == 2 * len(odd))
"""


def test_odd_requests_to_the_services_are_answered_and_recorded(play: Play, tmp_path: Path) -> None:
    played = play(python(ODD_REQUESTS, timeout_s=60), *HONEST, record_to=tmp_path / "runs")
    assert played.outputs[0] == "True"
    played.assert_worth(100.0)
    assert read_trajectory(played.env.recording.folder.trajectory).complete


ODD_ACTIONS: list[Any] = [
    {"tool": "instrument", "arguments": '{"arguments": {"shots": NaN}}'},
    {"tool": "instrument", "arguments": '{"operation": "weigh", "arguments": {"shots": 1e999}}'},
    {"tool": "instrument", "arguments": '{"operation": "weigh", "arguments": {"shots": ' + "1" * 4000 + "}}"},
    {"tool": "instrument", "arguments": '{"operation": "weigh", "arguments": {"shots": ' + "1" * 9000 + "}}"},
    {"tool": "instrument", "arguments": '{"operation": "weigh", "arguments": {"x": ' + "[" * 900 + "]" * 900 + "}}"},
    {"tool": "instrument", "arguments": "[" * 100_000},
    {"tool": "instrument", "arguments": '{"operation": "\\ud800", "arguments": {"\\ud800": 1}}'},
    {"tool": "bash", "arguments": '{"command": "echo \\ud800"}'},
    {"tool": "bash", "arguments": {"command": "true " + "x" * 200_000}},
    {"tool": "bash\x1b[2J\n1 passed", "arguments": "{}"},
    {"tool": "read_file", "arguments": '{"path": "result.md", "first_line": ' + "9" * 4000 + "}"},
    {"tool": "search_literature", "arguments": {"query": "a " * 250, "limit": 20}},
    {"tool": "search_literature", "arguments": {"query": '" OR * NEAR( -x ^y : {} \u0000'}},
    {"tool": "write_file", "arguments": {"path": "x" * 4000, "content": ""}},
    {"tool": "write_file", "arguments": {"path": "/", "content": ""}},
    {1: 2}, [], b"bash", {"tool": "bash", "arguments": 5}, {"tool": None}, {"tool": "x" * 10**6, "arguments": "{}"},
    {"tool": "submit", "arguments": {"score": 100}}, {"tool": "submit", "arguments": "[]"},
]  # fmt: skip


def test_odd_actions_are_observations_and_recorded(play: Play, tmp_path: Path) -> None:
    played = play(*ODD_ACTIONS, *HONEST, record_to=tmp_path / "runs", render_mode="ansi")
    assert len(played.outputs) == len(ODD_ACTIONS) + len(HONEST) + 1
    played.assert_worth(100.0)
    assert read_trajectory(played.env.recording.folder.trajectory).complete
    assert "\x1b" not in (played.env.render() or "")


def test_episodes_side_by_side_do_not_disturb_each_other(start: Start) -> None:
    environments = [start() for _ in range(3)]
    rewards: list[float] = []

    def run(env: FrontierPhysicsEnv, actions: list[dict[str, Any]]) -> None:
        for action in actions:
            env.step(action)
        rewards.append(env.step({"tool": "submit", "arguments": {}})[1])

    scripts = [HONEST, [bash(":(){ :|:& };:", timeout_s=1), *HONEST], WRONG]
    threads = [threading.Thread(target=run, args=pair) for pair in zip(environments, scripts, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(rewards) == [0.0, 100.0, 100.0]
