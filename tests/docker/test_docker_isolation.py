"""One attack for each promise of the Docker sandbox."""

import errno
import os
import platform
import signal
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import fpenv
from fpenv.errors import SandboxGone
from fpenv.sandbox import seccomp
from fpenv.sandbox.sandbox import Backend, ExecResult, Limits, Sandbox, SandboxSpec
from fpenv.testing.sandbox_conformance import SOON_S, sh

pytestmark = pytest.mark.docker
CANARY = "canary-9b27e1"
SYSCALL = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def call(*arguments):
    ctypes.set_errno(0)
    result = libc.syscall(*(ctypes.c_long(a) if isinstance(a, int) else a for a in arguments))
    return result, ctypes.get_errno()
"""
Start = Callable[..., Sandbox]


@pytest.fixture(scope="session")
def backend(docker_address: str, base_image: str) -> Backend:
    from fpenv.sandbox.docker import DockerBackend

    return DockerBackend(base_image, address=docker_address)


@pytest.fixture
def start(backend: Backend) -> Iterator[Start]:
    boxes: list[Sandbox] = []

    def start(**fields: object) -> Sandbox:
        boxes.append(backend.start(SandboxSpec(**fields)))  # type: ignore[arg-type]
        return boxes[-1]

    yield start
    for box in boxes:
        box.close()


@pytest.fixture(scope="module")
def shared(backend: Backend) -> Iterator[Sandbox]:
    """For attacks that leave a sandbox as it was."""
    with backend.start(SandboxSpec()) as box:
        yield box


def python(box: Sandbox, program: str, timeout_s: float = 30.0) -> ExecResult:
    return box.exec(["python3", "-c", textwrap.dedent(program)], timeout_s=timeout_s)


def tell_privileges(box: Sandbox) -> dict[str, str]:
    lines = sh(box, "cat /proc/self/status").stdout.decode().splitlines()
    return dict(line.split(":\t", 1) for line in lines)


class TestPrivileges:
    def test_it_runs_as_an_ordinary_user_without_any_privilege(self, shared: Sandbox) -> None:
        status = tell_privileges(shared)
        assert {status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}
        assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
        assert "0" not in (*status["Uid"].split(), *status["Gid"].split())
        assert status["Groups"].split() == status["Gid"].split()[:1]

    def test_each_sandbox_has_a_user_of_its_own(self, start: Start) -> None:
        assert tell_privileges(start())["Uid"] != tell_privileges(start())["Uid"]

    def test_setuid_programs_give_nothing(self, shared: Sandbox) -> None:
        found = sh(shared, "find / -xdev -perm -4000 -type f 2>/dev/null").stdout.split()
        assert b"/usr/bin/su" in found
        assert sh(shared, "su -c id; mount -t tmpfs none /mnt; id -u").stdout.strip() != b"0"

    def test_denied_system_calls_fail(self, shared: Sandbox) -> None:
        numbers = seccomp.MACHINES[platform.machine()].numbers
        allowed = {"ioctl", "socket", "socketpair", "clone", "prlimit64", "memfd_create"}
        allowed |= {"shmget", "shmat", "shmctl", "shmdt"}
        allowed |= {"open_tree_attr"}  # newer than many a libseccomp; without capabilities it clones nothing
        denied = {name: number for name, number in numbers.items() if name not in allowed}
        program = SYSCALL + f"for n, i in {denied!r}.items():\n    r = call(i, 0, 0, 0, 0, 0, 0)\n"
        program += "    if r[0] != -1 or r[1] not in (1, 38): print(n, r)\nprint('tried')"
        assert python(shared, program).stdout == b"tried\n"

    def test_namespaces_cannot_be_made(self, shared: Sandbox) -> None:
        flags = [0x10000000, 0x00020000, 0x20000000, 0x40000000, 0x02000000, 0x04000000, 0x08000000]
        clone = seccomp.MACHINES[platform.machine()].numbers["clone"]
        program = SYSCALL + f"for f in {flags}: print(call({clone}, f | 17, 0, 0, 0, 0))"
        assert python(shared, program).stdout == b"(-1, 1)\n" * len(flags)
        assert sh(shared, "unshare -U true").exit_code != 0

    def test_nobody_can_type_into_a_terminal(self, shared: Sandbox) -> None:
        program = """
            import fcntl, pty
            master, slave = pty.openpty()
            for request, data in ((0x5412, b"x"), (0x541C, b"\\x03"), (0x5412 | 1 << 32, b"x")):
                try: fcntl.ioctl(slave, request & 0xFFFFFFFF, data); print("typed")
                except PermissionError: print("denied")
        """
        assert python(shared, program).stdout.split() == [b"denied"] * 3

    @pytest.mark.skipif(platform.machine() != "x86_64", reason="other machines have no 32-bit calls in this way")
    def test_calls_in_the_32_bit_abi_end_the_process(self, shared: Sandbox) -> None:
        program = """
            import ctypes, mmap
            page = mmap.mmap(-1, 4096, prot=7)
            page.write(bytes.fromhex("b814000000cd80c3"))  # mov eax, 20; int 0x80; ret
            ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
        """
        assert python(shared, program).exit_code == -signal.SIGSYS

    def test_settings_of_the_machine_cannot_be_written(self, shared: Sandbox) -> None:
        targets = (
            "/proc/sys/kernel/core_pattern /proc/sys/kernel/hostname /proc/sys/vm/drop_caches /proc/sysrq-trigger "
            "/proc/1/oom_score_adj /sys/fs/cgroup/memory/release_agent /sys/kernel/uevent_helper"
        )
        done = sh(shared, f"for f in {targets}; do (echo 1 > $f) 2>/dev/null && echo $f; done; true")
        assert done.stdout == b""

    def test_the_guest_cannot_be_traced_read_or_limited(self, shared: Sandbox) -> None:
        program = """
            import os
            for name in ("mem", "environ", "maps", "fd", "cwd", "root", "exe"):
                try:
                    look = os.listdir if name == "fd" else os.readlink if name in ("cwd", "root", "exe") else open
                    look("/proc/1/" + name)
                    print("opened", name)
                except OSError: pass
        """
        assert python(shared, program).stdout == b""
        assert sh(shared, "prlimit --pid 1 --cpu=1:").exit_code != 0
        sh(shared, "kill -KILL 1; kill -STOP 1; kill -9 -1")
        assert sh(shared, "echo fine").stdout == b"fine\n"


class TestNetwork:
    def test_nothing_outside_can_be_reached(self, shared: Sandbox) -> None:
        program = """
            import socket
            for target in (("1.1.1.1", 53), ("169.254.169.254", 80), ("172.17.0.1", 22)):
                try: socket.create_connection(target, 2); print("connected")
                except OSError as error: print(error.errno)
            try: socket.getaddrinfo("example.org", 80); print("resolved")
            except OSError: print("unresolved")
        """
        unreachable = str(errno.ENETUNREACH).encode()
        assert python(shared, program).stdout.split() == [unreachable] * 3 + [b"unresolved"]
        assert sh(shared, "tail -n +3 /proc/net/dev | cut -d: -f1").stdout.split() == [b"lo"]

    def test_only_harmless_socket_families_open(self, shared: Sandbox) -> None:
        program = """
            import socket
            opened = []
            for family in (*range(64), 1 << 16, 2**31 - 1):
                for kind in (1, 2, 3, 5):
                    try: socket.socket(family, kind).close(); opened.append(family)
                    except OSError: pass
            print(sorted(set(opened)))
            for family in (0, 2, 16, 40):
                try: socket.socketpair(family); print("a pair of", family)
                except OSError: pass
            print(socket.socketpair()[0].family)
        """
        assert python(shared, program).stdout.split(b"\n")[:2] == [b"[1, 2, 10]", b"1"]

    def test_the_hosts_names_and_servers_are_not_told(self, shared: Sandbox) -> None:
        told = sh(shared, "cat /etc/resolv.conf; uname -n; cut -d: -f1 /etc/passwd").stdout
        assert told.split() == [b"sandbox", b"root", b"agent", b"nobody"]


class TestFiles:
    def test_nothing_of_the_host_but_what_was_named_is_there(self, start: Start, tmp_path: Path) -> None:
        (tmp_path / "secret").write_text(CANARY)
        (tmp_path / "given").mkdir()
        (tmp_path / "given" / "file").write_text("given")
        box = start(read_only={"/given": tmp_path / "given"})
        here = [str(tmp_path), str(Path(fpenv.__file__).parent), "/var/run/docker.sock", "/run/docker.sock"]
        assert sh(box, "ls -d " + " ".join(here)).stdout == b""
        found = sh(box, f"grep -rIls {CANARY} / --exclude-dir=proc --exclude-dir=sys")
        assert found.stdout == b""
        assert sh(box, "find / -type s 2>/dev/null; find / -xdev -type b 2>/dev/null").stdout == b""
        assert b"No module named 'fpenv'" in python(box, "import fpenv").stderr

    def test_the_hosts_environment_is_nowhere(self, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("FPENV_CANARY", CANARY)
        assert sh(start(), f"cat /proc/*/environ 2>/dev/null | grep -c {CANARY}").stdout == b"0\n"

    def test_the_root_file_system_cannot_be_written(self, shared: Sandbox) -> None:
        places = "/ /usr /usr/bin /usr/local /etc /opt /opt/lab /opt/lab/lib /dev /var /var/lib /proc /sys /home"
        done = sh(shared, f"for d in {places}; do (touch $d/x || mkdir $d/y) 2>/dev/null && echo $d; done; true")
        assert done.stdout == b""
        files = "/etc/passwd /etc/hosts /etc/resolv.conf /etc/hostname /opt/lab/lib/lab.py /bin/bash"
        done = sh(shared, f"for f in {files}; do (echo x >> $f || chmod 777 $f) 2>/dev/null && echo $f; done; true")
        assert done.stdout == b""

    def test_every_place_that_is_writable_is_small_and_in_memory(self, start: Start) -> None:
        box = start(limits=Limits(disk_bytes=20 << 20), files={"/logs/x": b"1"})
        places = sh(box, "find / -type d -writable -not -path '/proc/*' 2>/dev/null").stdout.decode().split()
        allowed = ("/root", "/tmp", "/run", "/dev/shm", "/var/tmp", "/logs", "/dev/mqueue")
        assert [place for place in places if not place.startswith(allowed)] == []
        for folder in allowed[:-1]:
            full = sh(box, f"head -c 100M /dev/zero > {folder}/fill; stat -c %s {folder}/fill; rm {folder}/fill")
            assert int(full.stdout) <= 20 << 20

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
        assert number == errno.ENOSPC


class TestLimits:
    def test_a_memory_bomb_is_the_agents_own_result(self, start: Start) -> None:
        box = start(limits=Limits(memory_bytes=200 << 20))
        result = python(box, "b = []\nwhile True: b.append(bytearray(1 << 20))")
        assert result.exit_code in (-signal.SIGKILL, 1)
        assert sh(box, "echo fine").stdout == b"fine\n"

    def test_a_sandbox_whose_files_eat_its_memory_ends_by_its_own_doing(self, start: Start) -> None:
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
        assert 20 <= int(python(box, program).stdout) <= 40
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
        began = time.monotonic()
        box.close()
        assert time.monotonic() - began < SOON_S

    def test_processors_are_limited_to_what_there_are(self, start: Start) -> None:
        box = start(limits=Limits(cpus=0.5))
        began = time.process_time()
        spent = python(box, "import time; e = time.time() + 1\nwhile time.time() < e: pass\nprint(time.process_time())")
        assert float(spent.stdout) < 0.8
        assert time.process_time() - began < 1
        assert sh(start(limits=Limits(cpus=512)), "echo fine").stdout == b"fine\n"

    def test_neither_host_nor_engine_keeps_what_was_said(self, start: Start, docker_address: str) -> None:
        box = start()
        sh(box, "head -c 300000 /dev/urandom | base64", output_limit=1 << 20)
        logs = Path(docker_address.removeprefix("unix://")).parent / "data" / "containers"
        if os.geteuid() != 0 or not logs.is_dir():
            pytest.skip("the engine's folder is not known")
        assert all(path.stat().st_size < 200_000 for path in logs.rglob("*") if path.is_file())
