"""Attacks on what surrounds an episode: the guest, the kernel, the host, other episodes. Each on a live episode."""

# ruff: noqa: E501 (the agents' programs are kept whole)

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from adversary import HONEST, WRONG, Play, bash, python

from fpenv.env import FrontierPhysicsEnv
from fpenv.sandbox import guest
from fpenv.sandbox.frames import pack_frame

Start = Callable[..., FrontierPhysicsEnv]


def tell(env: FrontierPhysicsEnv, action: dict[str, Any]) -> str:
    return str(env.step(action)[0]["output"])


GUEST = {
    "signals": "for s in $(seq 1 64); do kill -$s 1; done; kill -9 -1",
    "its descriptors": "for n in 0 1 2 3 4 5 6 7; do exec 7<>/proc/1/fd/$n; echo x >&7; exec 7>&-; done",
    "its memory": "dd if=/dev/zero of=/proc/1/mem bs=1 count=1 seek=4096; cat /proc/1/mem",
    "its terminal": "exec 3<>/dev/tty; stty -F /dev/tty; printf x > /dev/console",
    "its limits": "prlimit --pid 1 --nofile=0:0 --cpu=1:1; renice 19 1; ionice -c3 -p 1; taskset -p 1 1; chrt -i -p 0 1",
    "its socket": "rm -rf /run/fpenv; mkdir -p /run/fpenv; ln -s /root/x /run/fpenv/services.sock",
    "its folders": "mv /run/fpenv /run/other; rm -rf /tmp/* /run/*; chmod 000 /run /tmp",
    "its score": "echo 1000 > /proc/1/oom_score_adj; echo 1000 > /proc/self/oom_score_adj",
}


@pytest.mark.parametrize("target", GUEST)
def test_the_guest_serves_on_whatever_is_done_to(play: Play, target: str) -> None:
    played = play(*HONEST, bash(f"({GUEST[target]}) >/dev/null 2>&1; true", timeout_s=10), bash("echo fine"))
    assert played.outputs[-2].endswith("fine")
    played.assert_worth(100.0)


TRACE = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
calls = {"ptrace": (101, 16, 1, 0, 0), "process_vm_readv": (310, 1, 0, 0, 0, 0, 0), "pidfd_getfd": (438, os.pidfd_open(1), 0, 0),
         "unshare": (272, 0x10000000), "mount": (165, 0, 0, 0, 0, 0), "bpf": (321, 0, 0, 0), "io_uring_setup": (425, 1, 0),
         "keyctl": (250, 0, 0), "add_key": (248, 0, 0, 0, 0, 0), "perf_event_open": (298, 0, 0, 0, 0, 0), "userfaultfd": (323, 0),
         "kexec_load": (246, 0, 0, 0, 0), "init_module": (175, 0, 0, 0), "setns": (308, 0, 0), "pivot_root": (155, 0, 0),
         "reboot": (169, 0, 0, 0, 0), "swapon": (167, 0, 0), "settimeofday": (164, 0, 0), "clock_settime": (227, 0, 0),
         "open_by_handle_at": (304, 0, 0, 0), "fanotify_init": (300, 0, 0), "quotactl": (179, 0, 0, 0, 0)}
for name, call in calls.items():
    if libc.syscall(*map(ctypes.c_long, call)) != -1: print("allowed", name)
print("tried")
"""


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the numbers are those of x86_64")
def test_the_kernels_dangerous_calls_fail(start: Start) -> None:
    assert tell(start(), python(TRACE)) == "tried"


def test_privileges_cannot_be_had(start: Start) -> None:
    env = start()
    told = tell(env, bash("id -u; grep -E 'CapEff|NoNewPrivs' /proc/self/status | cut -f2 | tr '\\n' ' '"))
    user, *rest = told.split()
    assert int(user) >= 1000
    assert rest == ["0000000000000000", "1"]
    attempts = """
        for f in /proc/sys/kernel/core_pattern /proc/sysrq-trigger /sys/fs/cgroup/release_agent /proc/sys/kernel/modprobe \
                 /sys/kernel/uevent_helper /proc/sys/fs/binfmt_misc/register; do (echo x > $f) 2>/dev/null && echo $f; done
        for p in su sudo newgrp mount passwd chsh; do $p -c id root </dev/null 2>/dev/null | grep -q 'uid=0' && echo $p; done
        cp /bin/bash /root/sh; chmod 4755 /root/sh; [ "$(/root/sh -pc 'id -u')" = "$(id -u)" ] || echo setuid
        ls /var/run/docker.sock /run/docker.sock /run/containerd 2>/dev/null
        date -s 2001-01-01 >/dev/null 2>&1 && echo clock
        echo none"""
    assert tell(env, bash(attempts)) == "none"


def test_nobody_can_type_into_the_hosts_terminal(start: Start) -> None:
    program = """
import fcntl, os, sys
for fd in (0, 1, 2):
    for request, data in ((0x5412, b"x"), (0x541C, b"\\x03")):
        try: fcntl.ioctl(fd, request, data); print("typed")
        except OSError: pass
try: os.open("/dev/tty", os.O_RDWR); print("a terminal")
except OSError: print("none")
"""
    assert tell(start(), python(program)) == "none"


FRAMES = (
    pack_frame(guest.EXITED, 1, guest.EXITED_HEAD.pack(0, False, 0.1, 0, 0, 0, 0))
    + pack_frame(guest.FATAL, 0, b"MemoryError: forged")
    + pack_frame(guest.STDOUT, 2**32 - 1, b"forged")
    + guest.HEADER.pack(guest.DATA, 1, 2**32 - 1)
)


def test_bytes_that_look_like_frames_are_output_like_any_other(play: Play) -> None:
    program = f"import os\nfor fd in (1, 2):\n    for _ in range(50): os.write(fd, {FRAMES!r})\nraise SystemExit(3)"
    deliverable = f"import os; os.makedirs('figures'); open('figures/frames', 'wb').write({FRAMES!r} * 9)"
    played = play(python(program), python(deliverable), *HONEST)
    assert "[exit code 3]" in played.outputs[0]
    assert "forged" in played.outputs[0]
    played.assert_worth(100.0)


def test_frames_written_to_every_descriptor_and_socket_in_reach_do_no_harm(play: Play) -> None:
    program = f"""
import glob, os, socket
for path in glob.glob("/proc/[0-9]*/fd/*"):
    try: os.write(os.open(path, os.O_WRONLY | os.O_NONBLOCK), {FRAMES!r})
    except OSError: pass
held = []
for n in range(60):
    s = socket.socket(socket.AF_UNIX); s.settimeout(0.2)
    try: s.connect("/run/fpenv/services.sock"); s.sendall({FRAMES!r} * n); held.append(s)
    except OSError: pass
"""
    played = play(python(program, timeout_s=20), bash("lab instrument"), *HONEST)
    assert "weigh" in played.outputs[1]
    played.assert_worth(100.0)


def test_no_process_of_an_episode_outlives_it(start: Start) -> None:
    env = start()
    env.step(
        bash("setsid bash -c 'trap \"\" TERM HUP INT; exec -a adversary-survivor sleep 97' >/dev/null 2>&1 & sleep 0.5")
    )

    def survivors() -> list[str]:
        found = []
        for process in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                if b"adversary-survivor\0" in process.read_bytes():
                    found.append(process.parent.name)
            except OSError:
                continue
        return found

    assert survivors()
    env.close()
    assert not survivors()


def test_two_episodes_cannot_signal_each_other_or_lock_what_both_see(start: Start) -> None:
    first, second = start(), start()
    lock = (
        "import fcntl, glob, time\nheld = [open(p) for p in glob.glob('/etc/*') + glob.glob('/opt/lab/*/*') + "
        "['/usr/bin/python3', '/opt/runtime/bin/python3'] if __import__('os').path.isfile(p)]\n"
        "for f in held:\n    try: fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)\n    except OSError: pass\n"
        "print('held', flush=True)\nif __import__('os').fork() == 0:\n    __import__('os').setsid(); time.sleep(30)\n"
    )
    assert tell(first, python(lock)).startswith("held")
    began = time.monotonic()
    first.step(bash("kill -9 -1; pkill -9 .; killall5 -9"))
    assert tell(second, bash("python3 -c 'import json; print(1)'; lab instrument | head -c 3")).startswith("1")
    assert time.monotonic() - began < 10


def test_a_fork_bomb_leaves_a_neighbour_and_the_grade_as_they_were(play: Play, start: Start) -> None:
    neighbour = start()
    bomb = "import os\nfor _ in range(4):\n    if not os.fork():\n        os.setsid()\n        while True:\n            try: os.fork()\n            except OSError: pass"
    bombed = start()
    bombed.step(python(bomb, timeout_s=2))
    times = []
    for _ in range(10):
        began = time.monotonic()
        assert tell(neighbour, bash("echo fine")) == "fine"
        times.append(time.monotonic() - began)
    assert sorted(times)[-2] < 5
    assert bombed.step({"tool": "submit", "arguments": {}})[4]["valid"]
    bombed.close()


def test_a_fork_bomb_at_the_end_does_not_keep_wrong_work_from_its_grade(play: Play) -> None:
    bomb = ":(){ :|:& }; for i in 1 2 3; do setsid bash -c ':(){ :|:& };:' & done >/dev/null 2>&1; sleep 0.3"
    played = play(*WRONG, bash(bomb, timeout_s=3), reviewer=None)
    assert played.info["valid"], played.grade["reason"]
    assert played.reward == 0.0
