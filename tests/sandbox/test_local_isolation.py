"""One attack for each promise of the local sandbox."""

import os
import platform
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import fpenv
from fpenv.errors import SandboxGone
from fpenv.sandbox import seccomp
from fpenv.sandbox.local import LocalBackend, LocalSandbox, describe_isolation
from fpenv.sandbox.local.launcher import get_launcher
from fpenv.sandbox.local.watchdog import _tree as process_tree
from fpenv.sandbox.sandbox import ExecResult, Limits, SandboxSpec
from fpenv.testing.sandbox_conformance import SOON_S, sh

CANARY = "canary-4f1c9a"
SYSCALL = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def call(*arguments):
    ctypes.set_errno(0)
    result = libc.syscall(*(ctypes.c_long(a) if isinstance(a, int) else a for a in arguments))
    return result, ctypes.get_errno()
"""
Start = Callable[..., LocalSandbox]


@pytest.fixture
def start(local_backend: LocalBackend) -> Iterator[Start]:
    boxes: list[LocalSandbox] = []

    def start(**fields: object) -> LocalSandbox:
        boxes.append(local_backend.start(SandboxSpec(**fields)))  # type: ignore[arg-type]
        return boxes[-1]

    yield start
    for box in boxes:
        box.close()


@pytest.fixture
def box(start: Start) -> LocalSandbox:
    return start()


def python(box: LocalSandbox, program: str, timeout_s: float = 30.0) -> ExecResult:
    return box.exec(["python3", "-c", textwrap.dedent(program)], timeout_s=timeout_s)


def has_cgroup(kind: str) -> bool:
    return any(promise.name == kind and "cgroup" in promise.means for promise in describe_isolation())


def wait_until_gone(pids: set[int]) -> set[int]:
    """Return those of the processes that live on."""
    deadline = time.monotonic() + SOON_S
    while pids and time.monotonic() < deadline:
        pids = {pid for pid in pids if is_alive(pid)}
        time.sleep(0.01)
    return pids


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in ("Z", "X")
    except OSError:
        return False


class TestHostIsInvisible:
    def test_the_hosts_environment_is_nowhere(self, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("FPENV_CANARY", CANARY)
        get_launcher().close()  # the next one is started with the canary about
        box = start()
        assert sh(box, f"cat /proc/*/environ 2>/dev/null | grep -c {CANARY}").stdout == b"0\n"
        assert sh(box, "cat /proc/1/environ").exit_code == 1

    def test_no_process_of_the_host_is_visible(self, box: LocalSandbox) -> None:
        seen = sh(box, "cat /proc/[0-9]*/comm").stdout.split()
        assert set(seen) <= {b"python3", b"bash", b"cat"}
        assert len(seen) <= 3

    def test_descriptors_of_the_host_are_not_inherited(self, start: Start, tmp_path: Path) -> None:
        (tmp_path / "secret").write_text(CANARY)
        fd = os.open(tmp_path / "secret", os.O_RDONLY)
        try:
            os.set_inheritable(fd, True)
            get_launcher().close()
            box = start()
            told = sh(box, "ls -l /proc/[0-9]*/fd /proc/self/fd; cat /proc/self/fd/[3-9]*", timeout_s=5)
        finally:
            os.close(fd)
        assert b"secret" not in told.stdout
        assert CANARY.encode() not in told.stdout

    def test_files_of_the_host_are_absent(self, box: LocalSandbox, tmp_path: Path) -> None:
        (tmp_path / "reference.json").write_text(CANARY)
        here = [str(tmp_path), str(Path(fpenv.__file__).parent), "/home", "/var/lib", "/boot", "/sys/fs"]
        if sys.prefix != sys.base_prefix:
            here.append(sys.prefix)
        assert sh(box, "ls -d " + " ".join(here)).stdout == b""
        found = sh(box, f"grep -rIls {CANARY} / --exclude-dir=proc --exclude-dir=usr --exclude-dir=runtime")
        assert found.stdout == b""
        assert sh(box, "find / -name 'fpenv*' -not -path '/proc/*' 2>/dev/null").stdout == b""
        assert b"No module named 'fpenv'" in python(box, "import fpenv").stderr
        assert set(sh(box, "ls -A /usr/local /usr/lib/python3/dist-packages 2>/dev/null | grep -v :").stdout) <= {10}

    def test_folders_below_usr_are_hidden_on_demand(self) -> None:
        assert any(Path("/usr/share/doc").iterdir())
        with LocalBackend(hidden_paths=[Path("/usr/share/doc")]).start(SandboxSpec()) as box:
            assert sh(box, "ls -A /usr/share/doc").stdout == b""
            assert sh(box, "umount /usr/share/doc; touch /usr/share/doc/x").exit_code != 0

    def test_accounts_and_settings_of_the_host_are_absent(self, box: LocalSandbox) -> None:
        accounts = sh(box, "cut -d: -f1 /etc/passwd").stdout.split()
        assert accounts == [b"root", b"agent", b"nobody"]
        assert sh(box, "ls /etc/shadow /etc/ssh /etc/hosts.allow /etc/machine-id").stdout == b""
        assert sh(box, "hostname; id -u").stdout == b"sandbox\n1000\n"


class TestNoNetwork:
    def test_nothing_outside_can_be_reached(self, box: LocalSandbox) -> None:
        program = """
            import socket
            for target in (("1.1.1.1", 53), ("169.254.169.254", 80)):
                try: socket.create_connection(target, 2); print("connected")
                except OSError as error: print(error.errno)
            try: socket.getaddrinfo("example.org", 80); print("resolved")
            except OSError: print("unresolved")
            print([name for _, name in socket.if_nameindex()] if hasattr(socket, "if_nameindex") and 0 else "")
        """
        assert python(box, program).stdout.split() == [b"101", b"101", b"unresolved"]
        assert sh(box, "tail -n +3 /proc/net/dev | cut -d: -f1").stdout.split() == [b"lo"]

    def test_sockets_of_the_host_are_out_of_reach(self, box: LocalSandbox) -> None:
        with socket.socket(socket.AF_UNIX) as abstract, socket.create_server(("127.0.0.1", 0)) as local:
            abstract.bind("\0fpenv-" + CANARY)
            abstract.listen()
            program = f"""
                import socket
                for family, target in ((socket.AF_UNIX, "\\0fpenv-{CANARY}"),
                                       (socket.AF_INET, ("127.0.0.1", {local.getsockname()[1]}))):
                    try: socket.socket(family).connect(target); print("connected")
                    except OSError: print("refused")
            """
            assert python(box, program).stdout.split() == [b"refused", b"refused"]

    def test_only_harmless_socket_families_open(self, box: LocalSandbox) -> None:
        program = """
            import socket
            opened = []
            for family in range(64):
                for kind in (1, 2, 3, 5):
                    try: socket.socket(family, kind).close(); opened.append(family)
                    except OSError: pass
            print(sorted(set(opened)))
            try: socket.socketpair(40)
            except OSError: print("no pair")
            print(socket.socketpair()[0].family)
        """
        assert python(box, program).stdout.split(b"\n")[:3] == [b"[1, 2, 10]", b"no pair", b"1"]


class TestKernel:
    def test_settings_of_the_machine_cannot_be_written(self, box: LocalSandbox) -> None:
        targets = (
            "/proc/sys/kernel/core_pattern /proc/sys/kernel/hostname /proc/sys/vm/drop_caches /proc/sysrq-trigger "
            "/proc/sys/user/max_user_namespaces /proc/sys/kernel/shmmax /proc/1/oom_score_adj /proc/1/setgroups"
        )
        done = sh(box, f"for f in {targets}; do (echo 1 > $f) 2>/dev/null && echo $f; done; true")
        assert done.stdout == b""

    def test_denied_system_calls_fail(self, box: LocalSandbox) -> None:
        numbers = seccomp.MACHINES[platform.machine()].numbers
        by_argument = {"ioctl", "socket", "socketpair", "clone", "prlimit64"}
        unbounded = set() if not has_cgroup("memory") else {"memfd_create", "shmget", "shmat", "shmctl", "shmdt"}
        denied = {name: number for name, number in numbers.items() if name not in by_argument | unbounded}
        program = SYSCALL + f"for n, i in {denied!r}.items():\n    r = call(i, 0, 0, 0, 0, 0, 0)\n"
        program += "    if r[0] != -1 or r[1] not in (1, 38): print(n, r)\nprint('tried')"
        assert python(box, program).stdout == b"tried\n"

    def test_namespaces_cannot_be_made(self, box: LocalSandbox) -> None:
        assert sh(box, "unshare -U true").exit_code != 0
        flags = [0x10000000, 0x00020000, 0x20000000, 0x40000000, 0x02000000, 0x04000000, 0x08000000]
        clone = seccomp.MACHINES[platform.machine()].numbers["clone"]
        program = SYSCALL + f"for f in {flags}: print(call({clone}, f | 17, 0, 0, 0, 0))"
        assert python(box, program).stdout == b"(-1, 1)\n" * len(flags)

    @pytest.mark.skipif(platform.machine() != "x86_64", reason="other machines have no 32-bit calls in this way")
    def test_calls_in_the_32_bit_abi_end_the_process(self, box: LocalSandbox) -> None:
        program = """
            import ctypes, mmap
            page = mmap.mmap(-1, 4096, prot=7)
            page.write(bytes.fromhex("b814000000cd80c3"))  # mov eax, 20; int 0x80; ret
            ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
        """
        assert python(box, program).exit_code == -signal.SIGSYS

    def test_nobody_can_type_into_a_terminal(self, box: LocalSandbox) -> None:
        program = """
            import fcntl, os, pty
            master, slave = pty.openpty()
            for request, data in ((0x5412, b"x"), (0x541C, b"\\x03")):
                try: fcntl.ioctl(slave, request, data); print("typed")
                except PermissionError: print("denied")
            try: os.open("/dev/tty", os.O_RDWR); print("a terminal")
            except OSError: print("none")
        """
        assert python(box, program).stdout.split() == [b"denied", b"denied", b"none"]

    def test_there_are_no_privileges_to_gain(self, box: LocalSandbox) -> None:
        status = dict(line.split(":\t") for line in sh(box, "cat /proc/self/status").stdout.decode().splitlines())
        assert {status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}
        assert (status["NoNewPrivs"], status["Seccomp"], status["Uid"]) == ("1", "2", "1000\t1000\t1000\t1000")
        mounts = sh(box, "cat /proc/self/mounts").stdout.decode().splitlines()
        assert all("nosuid" in mount.split()[3].split(",") for mount in mounts)

    def test_as_root_each_sandbox_has_a_user_of_its_own(self, start: Start) -> None:
        status = [Path(f"/proc/{start().pid}/status").read_text() for _ in range(2)]
        uids = [line.split()[1] for text in status for line in text.splitlines() if line.startswith("Uid:")]
        assert "0" not in uids
        assert len(set(uids)) == (2 if os.geteuid() == 0 else 1)


class TestFiles:
    def test_the_root_file_system_cannot_be_written(self, box: LocalSandbox) -> None:
        places = (
            "/ /usr /usr/bin /usr/local /etc /opt /opt/lab /opt/lab/lib /opt/runtime /opt/runtime/bin /dev /var /proc"
        )
        done = sh(box, f"for d in {places}; do (touch $d/x || mkdir $d/y) 2>/dev/null && echo $d; done; true")
        assert done.stdout == b""

    def test_a_full_disk_is_bounded_everywhere_together(self, start: Start) -> None:
        box = start(limits=Limits(disk_bytes=20 << 20))
        script = "for d in /root /tmp /dev/shm /run; do head -c 100M /dev/zero > $d/fill; done 2>/dev/null\n"
        sizes = sh(box, script + "cat /root/fill /tmp/fill /dev/shm/fill /run/fill | wc -c").stdout
        assert int(sizes) <= 21 << 20

    def test_inodes_are_bounded(self, start: Start) -> None:
        box = start(limits=Limits(disk_bytes=20 << 20))
        program = """
            made = 0
            try:
                while made < 200_000: open(f"/tmp/{made}", "w").close(); made += 1
            except OSError as error: print(made, error.errno)
        """
        made, number = map(int, python(box, program).stdout.split())
        assert made <= 16500
        assert number == 28


class TestLimits:
    def test_a_memory_bomb_is_the_agents_own_result(self, start: Start) -> None:
        box = start(limits=Limits(memory_bytes=200 << 20))
        result = python(box, "b = []\nwhile True: b.append(bytearray(1 << 20))")
        assert result.exit_code in (-signal.SIGKILL, 1)
        assert not result.timed_out
        assert sh(box, "echo fine").stdout == b"fine\n"

    def test_many_processes_share_one_memory_limit(self, start: Start) -> None:
        box = start(limits=Limits(memory_bytes=200 << 20))
        program = """
            import os, time
            for _ in range(8):
                if not os.fork():
                    held = bytearray(os.urandom(1 << 20)) * 60
                    time.sleep(20); os._exit(0)
            survivors = sum(os.wait()[1] == 0 for _ in range(5))
            print(survivors)
        """
        assert python(box, program, timeout_s=15).stdout == b"0\n"
        assert sh(box, "echo fine").stdout == b"fine\n"

    def test_a_sandbox_whose_files_eat_its_memory_ends_by_its_own_doing(self, start: Start) -> None:
        if not has_cgroup("memory"):
            pytest.skip("without a memory cgroup files count apart, and this cannot happen")
        box = start(limits=Limits(memory_bytes=60 << 20))
        with pytest.raises(SandboxGone, match="memory") as caught:
            sh(box, "for i in $(seq 99); do head -c 100M /dev/zero > /tmp/$i; done")
        assert caught.value.by_agent

    def test_a_fork_bomb_is_bounded_and_leaves_the_sandbox_usable(self, start: Start) -> None:
        box = start(limits=Limits(processes=40))
        program = """
            import os, time
            made, end = 0, time.time() + 2
            while time.time() < end:
                try:
                    if not os.fork(): time.sleep(60)
                    made += 1
                except OSError: time.sleep(0.01)
            print(made)
        """
        assert int(python(box, program).stdout) <= 40
        assert sh(box, ":(){ :|:& };:", timeout_s=1).exit_code in (0, None, 1, 254)
        assert sh(box, "echo fine").stdout == b"fine\n"

    def test_a_fork_bomb_that_left_its_group_cannot_stop_the_end(self, start: Start) -> None:
        box = start(limits=Limits(processes=40))
        program = """
            import os
            def spread():
                while True:
                    try:
                        if not os.fork(): os.setsid()
                    except OSError: pass
            for _ in range(4):
                if not os.fork(): os.setsid(); spread()
        """
        python(box, program)
        time.sleep(0.3)
        pids = set(process_tree(box.pid))
        assert 5 <= len(pids) <= 42
        began = time.monotonic()
        box.close()
        assert time.monotonic() - began < SOON_S
        assert not wait_until_gone(pids)


class TestGuest:
    def test_the_guest_cannot_be_traced_or_read(self, box: LocalSandbox) -> None:
        numbers = seccomp.MACHINES[platform.machine()].numbers
        program = (
            SYSCALL
            + f"""
print(call({numbers["ptrace"]}, 16, 1, 0, 0)[1], call({numbers["ptrace"]}, 0x4206, 1, 0, 0)[1])
fd = os.pidfd_open(1)
print(call({numbers["pidfd_getfd"]}, fd, 0, 0)[1])
for name in ("mem", "environ", "maps", "fd", "cwd", "root", "exe", "io", "stack", "syscall", "auxv"):
    try:
        (os.listdir if name == "fd" else os.readlink if name in ("cwd", "root", "exe") else open)("/proc/1/" + name)
        print("opened", name)
    except OSError: pass
"""
        )
        assert python(box, program).stdout.split() == [b"1", b"1", b"1"]

    def test_dumpability_protects_the_guest_even_where_the_filter_would_not(self, box: LocalSandbox) -> None:
        assert sh(box, "stat -c %u /proc/1/mem").stdout != sh(box, "stat -c %u /proc/self/mem").stdout

    def test_limits_of_the_guest_cannot_be_lowered(self, box: LocalSandbox) -> None:
        for limit in ("--cpu=1", "--nofile=0", "--as=0", "--data=0"):
            assert sh(box, f"prlimit --pid 1 {limit}:").exit_code != 0
        assert sh(box, "ulimit -n 100; ulimit -n").stdout == b"100\n"

    def test_signals_from_inside_do_not_end_the_guest(self, box: LocalSandbox) -> None:
        sh(box, "for s in $(seq 1 64); do kill -$s 1; done")
        sh(box, "kill -KILL 1; kill -STOP 1; kill -9 -1")
        assert sh(box, "echo fine").stdout == b"fine\n"

    def test_orphans_are_reaped(self, box: LocalSandbox) -> None:
        sh(box, "for i in $(seq 30); do (setsid bash -c 'sleep 0.1' &) ; done")
        time.sleep(0.5)
        assert sh(box, "grep -l '^State:.Z' /proc/[0-9]*/status | wc -l").stdout == b"0\n"


class TestEnd:
    def test_a_daemon_dies_when_the_sandbox_closes(self, start: Start) -> None:
        box = start()
        sh(box, "setsid bash -c 'trap \"\" TERM HUP; while :; do sleep 0.1; done' &\nsetsid sleep 300 & sleep 0.2")
        pids = set(process_tree(box.pid))
        assert len(pids) >= 3
        box.close()
        assert not {pid for pid in pids if is_alive(pid)}

    def test_what_kills_the_guest_from_outside_is_infrastructure(self, start: Start) -> None:
        box = start()
        os.kill(box.pid, signal.SIGKILL)
        with pytest.raises(SandboxGone, match="from outside") as caught:
            sh(box, "true")
        assert not caught.value.by_agent
        with pytest.raises(SandboxGone, match="from outside"):
            box.read("/root/x")

    def test_the_end_of_the_outer_process_is_infrastructure(self, start: Start) -> None:
        box = start()
        os.kill(box._running.outer_pid, signal.SIGKILL)
        with pytest.raises(SandboxGone) as caught:
            sh(box, "sleep 20")
        assert not caught.value.by_agent
        assert not wait_until_gone({box.pid})

    def test_the_end_of_the_launcher_is_infrastructure_and_is_mended(self, start: Start) -> None:
        box = start()
        launcher = get_launcher()._process
        assert launcher is not None
        os.kill(launcher.pid, signal.SIGKILL)
        with pytest.raises(SandboxGone) as caught:
            sh(box, "sleep 20")
        assert not caught.value.by_agent
        assert sh(start(), "echo fine").stdout == b"fine\n"

    def test_a_guest_that_stops_answering_is_the_agents_doing(
        self, start: Start, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("fpenv.sandbox.channel.GRACE_S", 0.3)
        box = start()
        os.kill(box.pid, signal.SIGSTOP)
        with pytest.raises(SandboxGone, match="does not answer") as caught:
            sh(box, "true", timeout_s=0.2)
        assert caught.value.by_agent
        assert not wait_until_gone({box.pid})

    def test_everything_dies_with_a_killed_host_process_and_the_next_one_sweeps(
        self, local_backend: LocalBackend
    ) -> None:
        program = """
            import sys, time
            from fpenv.sandbox.local import LocalBackend
            from fpenv.sandbox.sandbox import SandboxSpec
            from fpenv.sandbox.local.watchdog import _tree
            box = LocalBackend().start(SandboxSpec())
            script = "setsid sleep 300 & setsid bash -c 'trap \\"\\" TERM; while :; do :; done' & sleep 0.3"
            box.exec(["bash", "-c", script], timeout_s=5)
            print(box._running.outer_pid, box._running.launcher._process.pid, *_tree(box.pid))
            print(box._lease._path, *box._cgroup.folders, flush=True)
            time.sleep(300)
        """
        helper = subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, text=True)
        try:
            assert helper.stdout is not None
            pids = set(map(int, helper.stdout.readline().split()))
            leftovers = [Path(path) for path in helper.stdout.readline().split()]
            assert len(pids) >= 5
            assert all(path.exists() for path in leftovers)
        finally:
            helper.kill()
            helper.communicate()
        assert not wait_until_gone(pids)
        sweep = "from fpenv.sandbox.local import lease, cgroup; lease.take_lease(cgroup.remove_groups).release()"
        subprocess.run([sys.executable, "-c", sweep], check=True)
        assert not [path for path in leftovers if path.exists()]

    def test_a_failed_start_leaves_nothing(self, local_backend: LocalBackend, tmp_path: Path) -> None:
        before = sorted(Path("/proc/self/fd").iterdir())
        for _ in range(3):
            with pytest.raises(fpenv.errors.SandboxError, match="did not start"):
                local_backend.start(SandboxSpec(runtime=tmp_path))
        assert len(sorted(Path("/proc/self/fd").iterdir())) <= len(before) + 1
