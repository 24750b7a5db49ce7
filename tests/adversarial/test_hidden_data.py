"""Attempts to see what is hidden: the task's files, the host's secrets, the instrument's parameters, the grade."""

# ruff: noqa: E501 (the agents' programs are kept whole)

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from adversary import CANARY, HONEST, PACKAGE, SUBMIT, WEIGH, Play, bash, python, write

from fpenv.env import FrontierPhysicsEnv

Start = Callable[..., FrontierPhysicsEnv]
SPLIT = f"'{CANARY[:5]}''{CANARY[5:]}'"  # so that the command itself is no hit


def ask(env: FrontierPhysicsEnv, command: str) -> str:
    """Run a command in the episode and return what it printed."""
    return str(env.step(bash(command, timeout_s=60))[0]["output"])


def test_every_hidden_file_of_the_package_carries_a_canary() -> None:
    """Otherwise the searches below would find nothing for the wrong reason."""
    hidden = [path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    bare = {path.relative_to(PACKAGE).as_posix() for path in hidden if CANARY.encode() not in path.read_bytes()}
    handed_out = {"task.md", "environment/Dockerfile", "environment/requirements.txt"}
    public_or_without_room = {"literature.json", "oracle/paper.pdf"}
    cases = {name for name in bare if name.startswith("cases/")}
    assert bare == handed_out | public_or_without_room | cases


@pytest.mark.parametrize("left_out", ["usr", pytest.param("nothing", marks=pytest.mark.slow)])
def test_no_file_in_the_sandbox_holds_a_canary(start: Start, left_out: str) -> None:
    env = start(time_limit_s=600)
    env.step(WEIGH)
    search = f"grep -rlaF --exclude-dir=proc --exclude-dir=sys --exclude-dir={left_out} {SPLIT} / 2>/dev/null | head"
    assert env.step(bash(f"{search}; echo searched", timeout_s=500))[0]["output"] == "searched"


LOOK_AT_PROCESSES = """
import glob, os, stat
seen, pids = b"", [name for name in os.listdir("/proc") if name.isdigit()]
paths = [f"/proc/{pid}/{name}" for pid in pids for name in ("environ", "cmdline", "comm", "mountinfo", "status", "maps")]
for path in [*paths, *glob.glob("/proc/[0-9]*/fd/*"), "/proc/keys", "/proc/self/cgroup", "/proc/1/environ"]:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        if path.rpartition("/")[0].endswith("fd") and not stat.S_ISREG(os.fstat(fd).st_mode): continue
        seen += os.read(fd, 1 << 20)
    except OSError: pass
print(len(pids) < 6, seen.count(b"canary-" + b"6b1d"), len(seen) > 1000)
"""


def test_no_process_descriptor_or_variable_in_the_sandbox_holds_a_canary(start: Start) -> None:
    assert start().step(python(LOOK_AT_PROCESSES))[0]["output"] == "True 0 True"


def test_the_folders_of_the_package_are_not_there(start: Start) -> None:
    env = start()
    looked = "/oracle /verifier /tests /solution /logs /review /opt/fpenv /cases /rubric.json /root/rubric.json"
    assert ask(env, f"ls -d {looked} 2>/dev/null; echo none") == "none"
    names = ["rubric.json", "test_outputs.py", "evidence.py", "instance.py", "instruments.py", "expected.json", "*.pyc"]
    search = " -o ".join(f"-name '{name}'" for name in names[:-1])
    assert ask(env, f"find / -xdev \\( {search} \\) -not -path '/usr/*' 2>/dev/null; echo none") == "none"
    assert ask(env, "ls -A /root /root/data") == "/root:\ndata\n\n/root/data:\nweights.csv"


def test_no_history_cache_or_key_of_the_host_is_there(start: Start) -> None:
    env = start()
    names = "-name .git -o -name .cache -o -name '.bash_history' -o -name '*.pem' -o -name 'id_*sa' -o -name .netrc"
    assert (
        ask(env, f"find / -xdev \\( {names} \\) -not -path '/usr/*' -not -path '/etc/ssl/*' 2>/dev/null; echo none")
        == "none"
    )


def test_a_neighbouring_episode_and_an_earlier_one_leave_nothing_to_find(start: Start) -> None:
    first = start()
    mark = "mark-of-another-episode"
    for place in ("/root", "/tmp", "/dev/shm", "/run", "/var/tmp"):
        ask(first, f"echo {mark} > {place}/{mark} 2>/dev/null")
    ask(first, f"setsid python3 -c 'import time; x = \"{mark}\"; time.sleep(60)' >/dev/null 2>&1 &")
    second = start()
    look = "find / -xdev -name 'mark-of*' 2>/dev/null; grep -rlas '[m]ark-of-another-episode' /root /tmp /dev/shm /run"
    look += "; cat /proc/[0-9]*/cmdline | tr '\\0' '\\n' | grep -c '[m]ark-of-another-episode'"
    assert ask(second, look) in ("0", "0\n[exit code 1]")
    first.close()
    assert ask(start(), look) in ("0", "0\n[exit code 1]")


REACH = """
import socket
def attempt(name, connect):
    try: connect(); print("reached", name)
    except OSError: pass
for host in ("1.1.1.1", "8.8.8.8", "169.254.169.254", "10.0.0.1", "172.17.0.1", "192.168.0.1"):
    for port in (53, 80, 443): attempt(host, lambda: socket.create_connection((host, port), 0.5))
attempt("dns", lambda: socket.getaddrinfo("pypi.org", 443))
attempt("udp", lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("1.1.1.1", 53)))
attempt("v6", lambda: socket.create_connection(("2606:4700:4700::1111", 443), 0.5))
attempt("host", lambda: socket.create_connection(("127.0.0.1", PORT), 0.5))
attempt("abstract", lambda: socket.socket(socket.AF_UNIX).connect("\\0adversary"))
attempt("docker", lambda: socket.socket(socket.AF_UNIX).connect("/var/run/docker.sock"))
for family in (16, 17, 40, 38, 21): attempt(family, lambda: socket.socket(family, socket.SOCK_DGRAM if family == 40 else socket.SOCK_RAW))
attempt("vsock", lambda: socket.socket(40, socket.SOCK_STREAM))
print("tried")
"""


def test_nothing_outside_can_be_reached_by_any_route(start: Start) -> None:
    env = start()
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as abstract:
        abstract.bind("\0adversary")
        abstract.listen()
        program = REACH.replace("PORT", str(server.getsockname()[1]))
        assert env.step(python(program))[0]["output"] == "tried"
    assert (
        ask(env, "pip download six 2>&1 | grep -c Successfully; (curl -s https://pypi.org || true) | wc -c").split()[0]
        == "0"
    )


PRY = [
    {"operation": "_mass_kg"},
    {"operation": "__dict__"},
    {"operation": "describe", "arguments": {"self": 1}},
    {"operation": "weigh", "arguments": {"shots": 1, "rng": None, "seed": 0}},
    {"operation": "weigh", "arguments": {"shots": {"$ref": "#/mass_kg"}}},
    {"instrument": "balance.__init__", "operation": "weigh"},
    {"instrument": "../../instance.py", "operation": "read"},
    {"operation": "weigh", "arguments": {"shots": 1}, "debug": True},
    {"operation": "{self._mass_kg}"},
    {"operation": "%(mass_kg)s"},
]


def test_prying_at_the_instrument_gives_refusals_and_no_hidden_state(play: Play) -> None:
    program = f"""
import json, lab, socket, struct
for request in {PRY!r}:
    try: print(json.dumps(lab.call("instrument", request)))
    except lab.ServiceError as error: print("refused", error)
for name in ("references", "verifier", "../instrument", "instrument\\0", "__class__", ""):
    try: print(json.dumps(lab.call(name, {{}})))
    except lab.ServiceError as error: print("refused", error)
"""
    tools = [{"tool": "instrument", "arguments": request} for request in PRY]
    played = play(python(program), *tools, *HONEST)
    played.assert_worth(100.0)
    assert "1.2345" not in "".join(played.outputs[: 1 + len(tools)])


def test_an_instrument_that_breaks_shows_the_agent_no_hidden_value(start: Start) -> None:
    env = start()
    observation, _, _, truncated, info = env.step({"tool": "instrument", "arguments": {"operation": "jam"}})
    assert truncated
    assert not info["valid"]
    assert CANARY not in observation["output"]
    assert "1.2345" not in observation["output"]
    inside = start().step(bash('lab instrument \'{"operation": "jam"}\''))[0]["output"]
    assert CANARY not in inside
    assert "1.2345" not in inside


def test_the_literature_does_not_say_which_works_count(start: Start) -> None:
    env = start()
    found = env.step({"tool": "search_literature", "arguments": {"query": "balance"}})
    inside = ask(env, 'lab literature \'{"query": "balance"}\'')
    for told in (found[0]["output"], json.dumps(found[4]["data"]), inside):
        assert "Kibble" in told
        assert "important" not in told
        assert "distractor" not in told


def test_nothing_of_the_grade_is_told_before_the_end(start: Start) -> None:
    env = start()
    for action in (*HONEST, write("result.md", "mass_kg: 9.0"), write("result.md", "mass_kg: 1.2345")):
        observation, reward, terminated, truncated, info = env.step(action)
        assert (reward, terminated, truncated) == (0.0, False, False)
        assert set(observation) == {"output", "failed", "steps_left", "seconds_left", "shots_left"}
        assert set(info) == {"step_id", "tool", "data"}
        assert not any(word in observation["output"] for word in ("passed", "tolerance", "S_final"))
    assert env.grade is None


def test_neither_seeds_nor_hidden_values_are_in_what_reset_tells(start: Start) -> None:
    env = start(seed=7)
    observation, info = env.reset(seed=7)
    told = json.dumps(info) + observation["output"]
    assert CANARY not in told
    assert set(info) == {"task", "task_digest", "instance", "tools"}


def test_the_noise_of_one_reading_says_nothing_about_the_next(start: Start) -> None:
    env = start()
    one = {"tool": "instrument", "arguments": {"operation": "weigh", "arguments": {"shots": 1}}}
    readings = [env.step(one)[4]["data"]["result"]["mean_kg"] for _ in range(6)]
    assert len(set(readings)) == 6
    again = start()
    assert [again.step(one)[4]["data"]["result"]["mean_kg"] for _ in range(6)] == readings


def test_the_oracle_is_not_there_and_cannot_be_asked_for_by_an_action(start: Start) -> None:
    env = start()
    assert "No such file" in ask(env, "ls /oracle")
    for action in ({"tool": "bash", "arguments": {"command": "ls /oracle", "oracle": True}}, {"tool": "oracle"}):
        assert env.step(action)[0]["failed"] == 1
    assert env.step({"tool": "bash", "arguments": {"command": "true"}, "options": {"oracle": True}})[0]["failed"] == 1


def test_reading_through_the_file_tool_reaches_nothing_more(start: Start, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(CANARY)
    env = start()
    for path in (str(tmp_path / "secret"), "/proc/1/environ", "/proc/self/environ", "/proc/1/mem", "/proc/self/mem",
                 "/proc/1/cwd/etc/shadow", "/etc/shadow", "/dev/zero", "/dev/stdin",
                 "../../../../../../" + str(tmp_path / "secret"), "/verifier/references.json"):  # fmt: skip
        observation = env.step({"tool": "read_file", "arguments": {"path": path}})[0]
        assert observation["failed"] == 1, path
        assert CANARY not in observation["output"]
    for path in (
        "/proc/self/mem",
        "/proc/1/mem",
        "/proc/self/oom_score_adj",
        "/proc/self/comm",
        "/dev/null/x",
        "/etc/passwd",
    ):
        assert env.step(write(path, "0"))[0]["failed"] == 1, path
    assert env.step(SUBMIT)[1] == 0.0
