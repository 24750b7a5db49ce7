"""The behaviour that every sandbox backend keeps, as a pytest suite to inherit.

    class TestMyBackend(SandboxConformance):
        @pytest.fixture
        def backend(self) -> Backend:
            return MyBackend()

Needs pytest. It holds backends to the protocol in `fpenv.sandbox.sandbox`; how strongly one isolates is a
matter of its own tests.
"""

from __future__ import annotations

import json
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fpenv.errors import SandboxError, SandboxGone
from fpenv.sandbox.sandbox import Backend, ExecResult, Limits, Sandbox, SandboxSpec, ServiceHandler

Start = Callable[..., Sandbox]
SOON_S = 5.0
"""What counts as prompt on a loaded machine; the things waited for would take minutes."""


def sh(box: Sandbox, script: str, timeout_s: float = 20.0, **options: object) -> ExecResult:
    """Run a shell script."""
    return box.exec(["bash", "-c", textwrap.dedent(script)], timeout_s=timeout_s, **options)  # type: ignore[arg-type]


def echo(service: str, request: bytes) -> bytes:
    """Answer with what was asked; "refuse" is refused."""
    asked = json.loads(request)
    if asked.get("refuse"):
        return json.dumps({"error": "as you wish"}).encode()
    if "size" in asked:
        return json.dumps({"text": "x" * asked["size"]}).encode()
    return json.dumps({"service": service, **asked}).encode()


class _Fixtures:
    """Override `backend`, and `runtime` where a backend does not provide an empty one by itself."""

    @pytest.fixture
    def backend(self) -> Backend:
        raise NotImplementedError

    @pytest.fixture
    def runtime(self) -> Path | None:
        return None

    @pytest.fixture
    def start(self, backend: Backend, runtime: Path | None) -> Iterator[Start]:
        """Start a sandbox from the fields of a spec; closed at the test's end."""
        boxes: list[Sandbox] = []

        def start(serve: ServiceHandler | None = None, **fields: object) -> Sandbox:
            spec = SandboxSpec(**{"runtime": runtime, **fields})  # type: ignore[arg-type]
            boxes.append(backend.start(spec, serve))
            return boxes[-1]

        yield start
        for box in boxes:
            box.close()

    @pytest.fixture
    def box(self, start: Start) -> Sandbox:
        return start()


class ExecConformance(_Fixtures):
    def test_a_command_returns_its_exit_code_and_both_outputs(self, box: Sandbox) -> None:
        result = sh(box, "echo out; echo err >&2; exit 7")
        assert (result.exit_code, result.stdout, result.stderr) == (7, b"out\n", b"err\n")
        assert not result.timed_out
        assert 0 < result.duration_s < SOON_S

    def test_a_command_killed_by_a_signal_has_a_negative_exit_code(self, box: Sandbox) -> None:
        assert sh(box, "kill -SEGV $$").exit_code == -11

    def test_an_unknown_program_exits_with_127(self, box: Sandbox) -> None:
        result = box.exec(["no-such-program"], timeout_s=5)
        assert result.exit_code == 127
        assert b"no-such-program" in result.stderr

    def test_a_file_that_is_no_program_exits_with_126(self, box: Sandbox) -> None:
        box.write("/root/data", b"1,2")
        assert box.exec(["./data"], timeout_s=5).exit_code == 126

    def test_a_missing_working_directory_exits_with_126(self, box: Sandbox) -> None:
        result = box.exec(["true"], timeout_s=5, cwd="/root/gone")
        assert result.exit_code == 126
        assert b"/root/gone" in result.stderr

    def test_commands_start_in_the_workspace_and_share_no_state(self, box: Sandbox) -> None:
        sh(box, "cd /tmp; export LEAK=1; umask 077")
        assert sh(box, "pwd; echo $LEAK; umask").stdout == b"/root\n\n0022\n"

    def test_a_time_limit_kills_the_whole_process_group(self, box: Sandbox) -> None:
        began = time.monotonic()
        result = sh(
            box,
            """
            trap '' TERM INT HUP
            (trap '' TERM; while :; do date +%N > beat; sleep 0.05; done) &
            echo before; wait
            """,
            timeout_s=0.6,
        )
        assert (result.exit_code, result.timed_out, result.stdout) == (None, True, b"before\n")
        assert time.monotonic() - began < SOON_S
        beat = box.read("/root/beat")
        time.sleep(0.3)
        assert box.read("/root/beat") == beat

    def test_what_a_command_leaves_in_the_background_is_killed_with_it(self, box: Sandbox) -> None:
        began = time.monotonic()
        assert sh(box, "sleep 300 & echo started").stdout == b"started\n"
        assert time.monotonic() - began < SOON_S
        assert b"sleep 300" not in sh(box, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '").stdout.replace(b"cat", b"")

    def test_a_daemon_that_holds_the_pipe_open_does_not_stall_the_call(self, box: Sandbox) -> None:
        began = time.monotonic()
        result = sh(box, "setsid sleep 300 & setsid yes & sleep 0.2; echo done", output_limit=1000)
        assert result.exit_code == 0
        assert time.monotonic() - began < SOON_S

    def test_output_up_to_the_limit_is_whole(self, box: Sandbox) -> None:
        result = sh(box, "printf %0100d 1; printf %099d 2 >&2", output_limit=100)
        assert (len(result.stdout), result.stdout_cut) == (100, 0)
        assert (len(result.stderr), result.stderr_cut) == (99, 0)

    def test_long_output_keeps_head_and_tail_and_counts_the_rest(self, box: Sandbox) -> None:
        result = sh(box, "seq 100000", output_limit=2000)
        whole = b"".join(b"%d\n" % number for number in range(1, 100001))
        assert result.stdout_head == 1000
        assert result.stdout == whole[:1000] + whole[-1000:]
        assert result.stdout_cut == len(whole) - 2000

    def test_endless_output_is_bounded(self, box: Sandbox) -> None:
        result = sh(box, "yes | tee /dev/stderr", timeout_s=0.7, output_limit=5000)
        assert result.timed_out
        assert (len(result.stdout), len(result.stderr)) == (5000, 5000)
        assert result.stdout_cut > 5000

    def test_binary_output_comes_through(self, box: Sandbox) -> None:
        everything = bytes(range(256)) * 8
        box.write("/root/data", everything)
        assert sh(box, "cat data").stdout == everything

    def test_output_is_streamed_while_the_command_runs(self, box: Sandbox) -> None:
        seen: list[tuple[str, bytes, float]] = []
        began = time.monotonic()
        sh(
            box,
            "echo one; echo two >&2; sleep 1; echo three",
            on_output=lambda stream, data: seen.append((stream, data, time.monotonic() - began)),
        )
        assert {(stream, data) for stream, data, _ in seen} == {
            ("stdout", b"one\n"),
            ("stderr", b"two\n"),
            ("stdout", b"three\n"),
        }
        assert seen[-1][2] - seen[0][2] > 0.8

    def test_a_call_that_the_caller_broke_off_does_not_disturb_the_next(self, box: Sandbox) -> None:
        def interrupt(stream: str, data: bytes) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            sh(box, "while :; do date +%N > beat; echo x; done", on_output=interrupt)
        assert sh(box, "echo fine; sleep 0.2; cat beat > first").stdout == b"fine\n"
        assert sh(box, "cmp beat first").exit_code == 0

    def test_stdin_reaches_the_command_and_ends(self, box: Sandbox) -> None:
        data = bytes(range(256)) * 8192
        assert sh(box, "sha256sum | cut -c1-64; wc -c", stdin=data).stdout.split()[1] == b"0"
        assert sh(box, "wc -c", stdin=data).stdout.strip() == b"%d" % len(data)
        assert sh(box, "wc -c").stdout.strip() == b"0"

    def test_stdin_that_nobody_reads_does_not_stall(self, box: Sandbox) -> None:
        assert sh(box, "exec <&-; echo ok", stdin=b"x" * (1 << 20)).stdout == b"ok\n"

    def test_the_environment_holds_only_what_was_named(self, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("FPENV_CANARY", "host-secret")
        box = start(env={"ONE": "1", "TWO": "a=b"})
        told = box.exec(["env"], timeout_s=5, env={"TWO": "3", "FÜNF": "ü"}).stdout.decode()
        variables = dict(line.split("=", 1) for line in told.splitlines())
        assert set(variables) == {"PATH", "HOME", "LANG", "TMPDIR", "ONE", "TWO", "FÜNF"}
        assert (variables["HOME"], variables["ONE"], variables["TWO"]) == ("/root", "1", "3")
        assert variables["FÜNF"] == "ü"

    def test_python_is_the_runtimes(self, box: Sandbox) -> None:
        told = sh(box, "python3 -c 'import sys; print(sys.prefix, sys.version_info >= (3, 11))'")
        assert told.stdout == b"/opt/runtime True\n"

    @pytest.mark.parametrize(
        ("arguments", "match"),
        [
            ({"argv": []}, "non-empty"),
            ({"argv": "true"}, "non-empty"),
            ({"argv": ["a\0b"]}, "NUL"),
            ({"argv": ["\ud800"]}, "UTF-8"),
            ({"timeout_s": 0.0}, "more than 0 s"),
            ({"timeout_s": float("nan")}, "more than 0 s"),
            ({"output_limit": -1}, "output limit"),
        ],
    )
    def test_malformed_calls_are_refused_and_do_no_harm(
        self, box: Sandbox, arguments: dict[str, object], match: str
    ) -> None:
        with pytest.raises(SandboxError, match=match):
            box.exec(**{"argv": ["true"], "timeout_s": 5.0, **arguments})  # type: ignore[arg-type]
        assert sh(box, "echo fine").stdout == b"fine\n"

    def test_there_is_no_gpu(self, box: Sandbox) -> None:
        assert sh(box, "ls -d /dev/nvidia* /dev/dri /dev/kfd 2>/dev/null | wc -l").stdout == b"0\n"


class FileConformance(_Fixtures):
    def test_the_specs_files_are_there_and_belong_to_the_agent(self, start: Start) -> None:
        files = {"/root/in/data.csv": b"1,2\n", "/root/run.sh": b"#!/bin/sh\necho ran\n", "/logs/x/.keep": b""}
        box = start(files=files)
        assert box.read("/root/in/data.csv") == (b"1,2\n", 4)
        assert sh(box, "echo 3 >> in/data.csv; ./run.sh; touch in/new /logs/x/new /logs/new && echo ok").stdout == (
            b"ran\nok\n"
        )

    def test_read_only_content_can_be_read_and_not_changed(self, start: Start, tmp_path: Path) -> None:
        (tmp_path / "folder").mkdir()
        (tmp_path / "folder" / "file").write_text("from a folder")
        (tmp_path / "folder" / "closed").write_text("0600")
        (tmp_path / "folder" / "closed").chmod(0o600)
        box = start(
            read_only={
                "/made": {"a/b.txt": b"made", "run": b"#!/bin/sh\necho ran\n"},
                "/bound": tmp_path / "folder",
                "/root/one.txt": tmp_path / "folder" / "file",
            }
        )
        assert sh(box, "cat /made/a/b.txt /bound/file /bound/closed /root/one.txt; /made/run").stdout == (
            b"madefrom a folder0600from a folderran\n"
        )
        for path in ("/made/a/b.txt", "/made/new", "/bound/file", "/root/one.txt"):
            done = sh(box, f"echo x > {path}; chmod 777 {path}; rm -f {path}; mv {path} /tmp/x")
            assert done.exit_code != 0
        assert (tmp_path / "folder" / "file").read_text() == "from a folder"

    @pytest.mark.parametrize("size", [0, 1, 65536, 5_000_001])
    def test_what_is_written_is_read_back(self, box: Sandbox, size: int) -> None:
        content = (b"0123456789abcdef" * (size // 16 + 1))[:size]
        box.write("/root/new/folder/file", content)
        assert box.read("/root/new/folder/file", limit=10_000_000) == (content, size)

    def test_a_file_a_thousand_folders_deep_is_written_and_the_sandbox_lives(self, box: Sandbox) -> None:
        path = "/root/" + "a/" * 1000 + "deep"
        box.write(path, b"1")
        assert box.read(path) == (b"1", 1)

    def test_a_write_replaces_the_whole_file(self, box: Sandbox) -> None:
        box.write("/root/file", b"longer than the next")
        box.write("/root/file", b"short")
        assert box.read("/root/file") == (b"short", 5)

    def test_reads_take_a_part_and_tell_the_size(self, box: Sandbox) -> None:
        box.write("/root/file", b"0123456789")
        assert box.read("/root/file", offset=3, limit=4) == (b"3456", 10)
        assert box.read("/root/file", offset=8, limit=100) == (b"89", 10)
        assert box.read("/root/file", offset=99) == (b"", 10)
        assert box.read("/root/file", limit=0) == (b"", 10)

    def test_relative_paths_start_at_the_workspace(self, box: Sandbox) -> None:
        box.write("out/x", b"1")
        assert box.read("/root/out/x") == (b"1", 1)

    @pytest.mark.parametrize("name", ["größe Ω.txt", "two\nlines", "-rf", " ", "a'b\"c$(d)"])
    def test_any_name_will_do(self, box: Sandbox, name: str) -> None:
        box.write(f"/root/{name}", b"content")
        assert box.read(f"/root/{name}") == (b"content", 7)
        assert sh(box, "ls | wc -l").stdout.strip() in (b"1", b"2")

    def test_failures_are_those_of_a_local_file_system(self, box: Sandbox) -> None:
        sh(box, "mkdir folder; echo secret > closed; chmod 0 closed; mkfifo pipe; ln -s loop loop")
        with pytest.raises(FileNotFoundError):
            box.read("/root/missing")
        with pytest.raises(IsADirectoryError):
            box.read("/root/folder")
        with pytest.raises(PermissionError):
            box.read("/root/closed")
        with pytest.raises(PermissionError):
            box.read("/root/pipe")
        with pytest.raises(OSError, match="loop"):
            box.read("/root/loop")
        with pytest.raises(IsADirectoryError):
            box.write("/root/folder", b"")
        with pytest.raises(OSError, match="closed"):
            box.write("/root/closed/below", b"")
        with pytest.raises(OSError, match="/usr/bin/new"):
            box.write("/usr/bin/new", b"")
        with pytest.raises(OSError, match="pipe"):
            box.write("/root/pipe", b"x")

    def test_the_guest_does_not_read_itself_to_the_host(self, box: Sandbox) -> None:
        for path in ("/proc/1/environ", "/proc/self/mem", "/proc/thread-self/cmdline"):
            with pytest.raises(PermissionError):
                box.read(path)

    def test_a_full_disk_is_an_os_error_and_the_sandbox_goes_on(self, start: Start) -> None:
        box = start(limits=Limits(disk_bytes=4 << 20))
        assert sh(box, "head -c 100M /dev/zero > big").exit_code == 1
        with pytest.raises(OSError, match="space"):
            box.write("/root/more", b"x" * 100_000)
        assert sh(box, "rm big && echo ok").stdout == b"ok\n"
        box.write("/root/more", b"x" * 100_000)


class ServiceConformance(_Fixtures):
    def test_processes_call_services_by_module_and_by_command(self, start: Start) -> None:
        box = start(echo, services=("echo",))
        by_module = sh(box, """python3 -c 'import lab; print(lab.call("echo", {"a": 1})["a"])'""")
        assert by_module.stdout == b"1\n"
        by_command = sh(box, """lab echo '{"b": [2]}' && lab echo""")
        assert [json.loads(line) for line in by_command.stdout.splitlines()] == [
            {"service": "echo", "b": [2]},
            {"service": "echo"},
        ]

    def test_refusals_reach_the_caller(self, start: Start) -> None:
        box = start(echo, services=("echo",))
        done = sh(box, "lab echo '{\"refuse\": 1}'; echo $?; lab other; echo $?; lab echo '[1]'; echo $?")
        assert done.stdout.split() == [b"1", b"1", b"2"]
        assert b"as you wish" in done.stderr
        assert b"no service 'other'; there are: echo" in done.stderr
        raised = sh(box, 'python3 -c \'import lab; lab.call("echo", {"refuse": 1})\'')
        assert b"ServiceError: as you wish" in raised.stderr

    def test_without_services_there_are_none(self, box: Sandbox) -> None:
        done = sh(box, "lab echo")
        assert done.exit_code == 1
        assert b"no services here" in done.stderr

    def test_services_without_a_handler_are_refused(self, start: Start) -> None:
        with pytest.raises(SandboxError, match="echo"):
            start(None, services=("echo",))

    def test_large_requests_and_replies_are_bounded(self, start: Start) -> None:
        box = start(echo, services=("echo",))
        program = """
            import lab
            print(len(lab.call("echo", {"text": "x" * 1_000_000})["text"]))
            print(len(lab.call("echo", {"size": 1_000_000})["text"]))
            for request in ({"text": "x" * 1_100_000}, {"size": 1_100_000}):
                try: lab.call("echo", request)
                except lab.ServiceError as error: print("refused")
        """
        box.write("/root/program.py", textwrap.dedent(program).encode())
        assert sh(box, "python3 program.py").stdout.split() == [b"1000000", b"1000000", b"refused", b"refused"]

    def test_concurrent_callers_are_served_one_at_a_time(self, start: Start) -> None:
        running: list[int] = []

        def slow(service: str, request: bytes) -> bytes:
            assert not running
            running.append(1)
            time.sleep(0.01)
            running.pop()
            return request

        box = start(slow, services=("slow",))
        program = """
            import lab, threading
            def work(n):
                for i in range(5):
                    assert lab.call("slow", {"n": n, "i": i}) == {"n": n, "i": i}
                print("done")
            threads = [threading.Thread(target=work, args=(n,)) for n in range(12)]
            for t in threads: t.start()
            for t in threads: t.join()
        """
        box.write("/root/program.py", textwrap.dedent(program).encode())
        assert sh(box, "python3 program.py").stdout == b"done\n" * 12

    def test_nonsense_on_the_socket_does_no_harm(self, start: Start) -> None:
        box = start(echo, services=("echo",))
        program = """
            import socket, os
            held = []
            for data in (b"", b"x", b"\\xff" * 6, b"\\x04\\x00\\x10\\x00\\x00\\x00echo", os.urandom(4000)) * 20:
                s = socket.socket(socket.AF_UNIX); s.settimeout(1)
                try: s.connect("/run/fpenv/services.sock"); s.sendall(data)
                except OSError: pass
                held.append(s)
        """
        box.write("/root/program.py", textwrap.dedent(program).encode())
        sh(box, "timeout 5 python3 program.py")
        assert sh(box, "lab echo").exit_code == 0

    def test_a_handler_that_raises_is_raised_once_the_command_has_ended(self, start: Start) -> None:
        def fail(service: str, request: bytes) -> bytes:
            raise ZeroDivisionError("in the handler")

        box = start(fail, services=("broken",))
        with pytest.raises(ZeroDivisionError):
            sh(box, "lab broken")
        assert sh(box, "echo fine").stdout == b"fine\n"


HOSTILE = {
    "link": "ln -s /etc/passwd link",
    "link_inside": "echo 1 > real; ln -s real link_inside",
    "linked/file": "mkdir real_folder; echo 1 > real_folder/file; ln -s real_folder linked",
    "dangling": "ln -s nowhere dangling",
    "hard": "echo 1 > first; ln first hard",
    "pipe": "mkfifo pipe",
    "socket": "python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"socket\")'",
    "folder": "mkdir folder",
    "sparse": "truncate -s 50M sparse",
    "huge": "truncate -s 10G huge",
    "big": "head -c 3M /dev/zero > big",
    "closed": "echo 1 > closed; chmod 0 closed",
    "missing": "true",
    "../etc/passwd": "true",
    "a/../../etc/passwd": "mkdir a",
    "file/below": "echo 1 > file",
    "/etc/passwd": "true",
    "/dev/zero": "true",
    "/proc/self/environ": "true",
    "/root": "true",
    "x" * 300: "true",
}


class CollectConformance(_Fixtures):
    def test_regular_files_are_collected_as_they_are(self, start: Start) -> None:
        box = start(files={"/logs/.keep": b""})
        box.write("/root/result.md", b"x = 1\n")
        box.write("/root/out/data.bin", bytes(range(256)) * 1000)
        box.write("/root/empty", b"")
        box.write("/logs/reward", b"1")
        wanted = ["result.md", "/root/out/data.bin", "empty", "/logs/reward", "result.md"]
        collected = box.collect(wanted)
        assert collected.files == {
            "result.md": b"x = 1\n",
            "/root/out/data.bin": bytes(range(256)) * 1000,
            "empty": b"",
            "/logs/reward": b"1",
        }
        assert collected.refused == {}

    def test_everything_but_a_plain_file_is_refused_at_once(self, box: Sandbox) -> None:
        sh(box, "\n".join(HOSTILE.values()) + "\necho fine > fine")
        began = time.monotonic()
        collected = box.collect([*HOSTILE, "fine"], max_bytes=2 << 20)
        assert time.monotonic() - began < SOON_S
        assert collected.files == {"fine": b"fine\n"}
        assert set(collected.refused) == set(HOSTILE)
        assert all(collected.refused.values())

    def test_the_byte_limit_holds_for_all_files_together(self, box: Sandbox) -> None:
        sh(box, "for i in 1 2 3; do head -c 1000 /dev/zero > $i; done")
        collected = box.collect(["1", "2", "3"], max_bytes=2500)
        assert set(collected.files) == {"1", "2"}
        assert "1000 bytes, 500 are left" in collected.refused["3"]

    def test_a_daemon_cannot_alter_what_is_collected(self, box: Sandbox) -> None:
        script = """
            setsid bash -c 'trap "" TERM; while :; do date +%s%N > swap; mv swap out; done' &
            setsid bash -c 'while :; do ln -sf /etc/passwd out; done' & sleep 0.3
        """
        sh(box, script)
        first = box.collect(["out"])
        time.sleep(0.2)
        second = box.collect(["out"])
        assert (first.files, first.refused) == (second.files, second.refused)

    def test_nothing_runs_after_collecting(self, box: Sandbox) -> None:
        box.collect([])
        with pytest.raises(SandboxError, match="collected"):
            sh(box, "true")


class EndConformance(_Fixtures):
    def test_close_is_idempotent_and_ends_all_calls(self, start: Start) -> None:
        box = start()
        sh(box, "setsid sleep 300 &")
        began = time.monotonic()
        box.close()
        box.close()
        assert time.monotonic() - began < SOON_S
        for call in (
            lambda: sh(box, "true"),
            lambda: box.read("/root/x"),
            lambda: box.write("/root/x", b""),
            lambda: box.collect([]),
        ):
            with pytest.raises(SandboxGone, match="closed") as caught:
                call()
            assert not caught.value.by_agent

    def test_leaving_the_context_closes(self, start: Start) -> None:
        with start() as box:
            assert sh(box, "true").exit_code == 0
        with pytest.raises(SandboxGone):
            sh(box, "true")

    def test_killing_everything_from_inside_only_ends_the_command(self, box: Sandbox) -> None:
        began = time.monotonic()
        sh(box, "sleep 300 & setsid sleep 300 & python3 -c 'import os; os.kill(-1, 9)'; wait")
        assert time.monotonic() - began < SOON_S
        sh(box, "for s in $(seq 1 64); do kill -$s 1; done 2>/dev/null")
        assert sh(box, "echo fine").stdout == b"fine\n"

    def test_two_sandboxes_do_not_see_one_another(self, start: Start) -> None:
        first, second = start(), start()
        sh(first, "echo secret-of-first > /tmp/canary; echo secret-of-first > /dev/shm/canary; setsid sleep 271 &")
        seen = sh(second, "cat /tmp/canary /dev/shm/canary /root/*; cat /proc/*/cmdline | tr '\\0' ' '")
        assert b"secret" not in seen.stdout + seen.stderr
        assert b"sleep 271" not in seen.stdout


class SandboxConformance(ExecConformance, FileConformance, ServiceConformance, CollectConformance, EndConformance):
    """All of it."""
