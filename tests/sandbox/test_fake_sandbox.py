"""The fake behaves as a sandbox does wherever the protocol speaks."""

import pytest

from fpenv.errors import SandboxError, SandboxGone
from fpenv.sandbox.sandbox import Backend, ExecResult, SandboxSpec
from fpenv.testing.fake_sandbox import FakeBackend, FakeSandbox, finished, timed_out


def start(script: object = None, **fields: object) -> FakeSandbox:
    backend = FakeBackend(script)  # type: ignore[arg-type]
    check: Backend = backend
    assert check.name == "fake"
    return backend.start(SandboxSpec(**fields), lambda name, request: name.encode() + request)  # type: ignore[arg-type]


def test_commands_are_answered_by_the_script_and_remembered() -> None:
    def script(box: FakeSandbox, argv: tuple[str, ...]) -> ExecResult:
        box.files["/root/out"] = box.call_service("echo", b"!")
        return timed_out(b"late") if argv == ("sleep",) else finished(b"x" * 100, exit_code=3)

    box = start(script, services=("echo",))
    seen: list[bytes] = []
    result = box.exec(["a", "b"], timeout_s=1, output_limit=10, on_output=lambda stream, data: seen.append(data))
    assert (result.exit_code, result.stdout, result.stdout_head, result.stdout_cut) == (3, b"x" * 10, 5, 90)
    assert seen == [b"x" * 10]
    assert box.exec(["sleep"], timeout_s=1).exit_code is None
    assert box.calls == [("a", "b"), ("sleep",)]
    assert box.read("out") == (b"echo!", 5)


def test_files_fail_as_on_a_disk() -> None:
    box = start(files={"/root/a/b": b"1"}, read_only={"/verifier": {"test.sh": b"2"}})
    assert box.read("/verifier/test.sh") == (b"2", 1)
    with pytest.raises(FileNotFoundError):
        box.read("/root/c")
    with pytest.raises(IsADirectoryError):
        box.read("/root/a")
    with pytest.raises(OSError, match="Read-only"):
        box.write("/verifier/test.sh", b"")
    box.write("a/c", b"345")
    collected = box.collect(["a/b", "/root/a/c", "d"], max_bytes=2)
    assert collected.files == {"a/b": b"1"}
    assert set(collected.refused) == {"/root/a/c", "d"}


def test_it_can_be_lost_and_closed() -> None:
    box = start()
    box.end("gone", by_agent=True)
    with pytest.raises(SandboxGone, match="gone") as caught:
        box.exec(["true"], timeout_s=1)
    assert caught.value.by_agent
    with start() as box:
        pass
    with pytest.raises(SandboxGone, match="closed"):
        box.read("/root/x")
    with pytest.raises(SandboxError, match="none to be had"):
        FakeBackend(failure=SandboxError("none to be had")).start(SandboxSpec())
