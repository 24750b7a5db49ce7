"""The parts of the Docker backend that need no engine: streams, owners, images, the filter, whose doing an end was."""

import errno
import io
import json
import os
import socket
import struct
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fpenv.errors import SandboxError, SandboxGone, TaskError
from fpenv.sandbox import seccomp
from fpenv.sandbox.docker import owner
from fpenv.sandbox.docker.image_content import SEED_LIMIT, digest_context, join_chunks, pack_seed
from fpenv.sandbox.docker.link import StdioLink
from fpenv.sandbox.docker.sandbox import DockerSandbox, Ending
from fpenv.sandbox.docker.seccomp import build_profile
from fpenv.sandbox.sandbox import SandboxSpec


def frame(stream: int, data: bytes) -> bytes:
    return struct.pack(">BxxxI", stream, len(data)) + data


class TestLink:
    @given(st.lists(st.tuples(st.sampled_from([1, 2]), st.binary(max_size=50))), st.integers(1, 20))
    def test_streams_come_apart_however_they_are_cut(self, parts: list[tuple[int, bytes]], size: int) -> None:
        ours, theirs = socket.socketpair()
        link = StdioLink(ours)
        data = b"".join(frame(stream, part) for stream, part in parts)
        out = b"".join(link._divide(data[at : at + size]) for at in range(0, len(data), size))
        assert out == b"".join(part for stream, part in parts if stream == 1)
        assert link.stderr == b"".join(part for stream, part in parts if stream == 2)[-4096:]
        link.close()
        theirs.close()

    def test_waits_end_at_their_deadline_and_at_the_end_of_the_stream(self) -> None:
        ours, theirs = socket.socketpair()
        link = StdioLink(ours)
        theirs.sendall(frame(2, b"error"))
        with pytest.raises(TimeoutError):
            link.receive(time.monotonic() + 0.05)
        assert link.stderr == b"error"
        link.send(b"call", time.monotonic() + 1)
        assert theirs.recv(10) == b"call"
        theirs.close()
        assert link.receive(time.monotonic() + 1) == b""
        link.close()


class TestOwner:
    def test_this_process_lives(self) -> None:
        assert not owner.is_gone(owner.describe_owner())

    def test_a_process_that_ended_is_gone(self) -> None:
        code = "from fpenv.sandbox.docker import owner; print(owner.describe_owner())"
        told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        assert owner.is_gone(told.strip())

    def test_an_id_that_is_used_again_is_another_process(self) -> None:
        user = owner.describe_owner().rsplit(" ", 2)[0]
        assert owner.is_gone(f"{user} {os.getpid()} 1")

    def test_of_another_users_process_only_root_may_judge(self, monkeypatch: pytest.MonkeyPatch) -> None:
        user = owner.describe_owner().rsplit(" ", 2)[0]
        monkeypatch.setattr(os, "geteuid", lambda: 4321)
        assert not owner.is_gone(f"{user} {os.getpid()} 1")
        monkeypatch.setattr(os, "geteuid", lambda: 0)
        assert owner.is_gone(f"{user} {os.getpid()} 1")

    @pytest.mark.parametrize(
        "label", ["", "x", "a b c d", "a b c d e", "boot 1 0 999999999 1", "nothing of the kind at all"]
    )
    def test_what_cannot_be_judged_is_left_alone(self, label: str) -> None:
        assert not owner.is_gone(label)


class TestImage:
    def test_the_digest_follows_content_names_modes_and_links(self, tmp_path: Path) -> None:
        (tmp_path / "Dockerfile").write_text("FROM x\n")
        digests = [digest_context(tmp_path)]
        for change in (
            lambda: (tmp_path / "a").write_text("1"),
            lambda: (tmp_path / "a").write_text("2"),
            lambda: (tmp_path / "a").chmod(0o755),
            lambda: (tmp_path / "a").rename(tmp_path / "b"),
            lambda: (tmp_path / "c").symlink_to("b"),
            lambda: (tmp_path / "d").mkdir(),
        ):
            change()
            digests.append(digest_context(tmp_path))
        assert len(set(digests)) == len(digests)
        os.utime(tmp_path / "b")
        assert digest_context(tmp_path) == digests[-1]

    def test_no_build_context_is_the_authors_mistake(self, tmp_path: Path) -> None:
        with pytest.raises(TaskError, match="Dockerfile"):
            digest_context(tmp_path)
        (tmp_path / "Dockerfile").write_text("FROM x\n")
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(TaskError, match="pipe"):
            digest_context(tmp_path)

    def test_a_seed_holds_files_folders_and_links_as_the_agents_own(self) -> None:
        data = io.BytesIO()
        with tarfile.open(fileobj=data, mode="w") as archive:
            for name, kind, mode in (
                ("root", tarfile.DIRTYPE, 0o700),
                ("root/a", tarfile.REGTYPE, 0o4755),
                ("root/b", tarfile.SYMTYPE, 0o777),
                ("root/c", tarfile.LNKTYPE, 0o644),
                ("root/d", tarfile.DIRTYPE, 0o1000),
                ("root/device", tarfile.CHRTYPE, 0o666),
                ("root/pipe", tarfile.FIFOTYPE, 0o666),
                ("root/../etc/x", tarfile.REGTYPE, 0o644),
            ):
                member = tarfile.TarInfo(name)
                member.type, member.mode, member.uid = kind, mode, 0
                member.linkname = {"root/b": "/etc/passwd", "root/c": "root/a"}.get(name, "")
                archive.addfile(member)
        with tarfile.open(fileobj=io.BytesIO(pack_seed([("/root", data.getvalue())]))) as seed:
            held = {member.name: (member.mode, member.linkname) for member in seed}
        assert held == {
            "root/a": (0o755, ""),
            "root/b": (0o777, "/etc/passwd"),
            "root/c": (0o644, "root/a"),
            "root/d": (0o700, ""),
        }

    def test_nothing_makes_no_seed(self) -> None:
        data = io.BytesIO()
        with tarfile.open(fileobj=data, mode="w") as archive:
            folder = tarfile.TarInfo("root")
            folder.type = tarfile.DIRTYPE
            archive.addfile(folder)
        assert pack_seed([("/root", data.getvalue())]) == pack_seed([]) == b""

    def test_too_much_is_refused_before_it_is_all_read(self) -> None:
        read = []

        def chunks() -> object:
            for number in range(1000):
                read.append(number)
                yield b"x" * (1 << 20)

        with pytest.raises(SandboxError, match="large inputs"):
            join_chunks(chunks(), "/root", "image")  # type: ignore[arg-type]
        assert len(read) <= SEED_LIMIT >> 20


class TestProfile:
    def decide(self, call: str, *arguments: int) -> int | None:
        """Return the error that a call gets, as the engine reads a profile; None if it passes."""
        compare = {
            "SCMP_CMP_EQ": lambda value, rule: value == rule["value"],
            "SCMP_CMP_NE": lambda value, rule: value != rule["value"],
            "SCMP_CMP_GT": lambda value, rule: value > rule["value"],
            "SCMP_CMP_MASKED_EQ": lambda value, rule: value & rule["value"] == rule["valueTwo"],
        }
        profile = json.loads(build_profile())
        assert profile["defaultAction"] == "SCMP_ACT_ALLOW"
        for rule in profile["syscalls"]:
            conditions = rule.get("args", [])
            assert len(conditions) <= 1, "the engine takes several conditions on one argument as alternatives"
            if call in rule["names"] and all(compare[c["op"]](arguments[c["index"]], c) for c in conditions):
                return int(rule["errnoRet"])
        return None

    def test_every_call_that_the_local_filter_denies_is_denied(self) -> None:
        for table, number in ((seccomp._DENIED_EPERM, errno.EPERM), (seccomp._DENIED_ENOSYS, errno.ENOSYS)):
            for calls in table.values():
                assert {self.decide(call) for call in calls.split()} == {number}
        assert self.decide("read", 0) is self.decide("execve") is None

    @pytest.mark.parametrize(
        ("call", "arguments", "number"),
        [
            *(("socket", (family, 1), None if family in (1, 2, 10) else 97) for family in range(64)),
            ("socket", (1 << 32 | 40, 1), 97),
            *(("socketpair", (family, 1), None if family == 1 else 97) for family in range(64)),
            ("ioctl", (0, 0x5401), None),
            ("ioctl", (0, 0x5412), 1),
            ("ioctl", (0, 0x5412 | 1 << 32), 1),
            ("ioctl", (0, 0x541C), 1),
            ("clone", (17,), None),
            ("clone", (0x003D0F00,), None),
            ("clone", (0x10000000 | 17,), 1),
            ("clone", (0x00020000 | 17,), 1),
            ("prlimit64", (0, 7), None),
            ("prlimit64", (1, 7), 1),
        ],
    )
    def test_arguments_decide(self, call: str, arguments: tuple[int, ...], number: int | None) -> None:
        assert self.decide(call, *arguments) == number


class FakeContainer:
    """A container whose guest has gone; tells an ending, or that the engine has gone too."""

    def __init__(self, ending: Ending | None) -> None:
        ours, theirs = socket.socketpair()
        theirs.close()
        self.link, self._ending, self.removed = StdioLink(ours), ending, 0

    def start(self) -> None:
        raise SandboxError("cannot start")

    def tell_ending(self, since: float) -> Ending:
        if self._ending is None:
            raise SandboxError("no engine")
        return self._ending

    def remove(self) -> None:
        self.removed += 1
        self.link.close()


@pytest.mark.parametrize(
    ("ending", "by_agent", "match"),
    [
        (None, False, "lost with its engine"),
        (Ending(None), False, "killed from outside"),
        (Ending(137, was_killed=True), False, "killed or removed from outside"),
        (Ending(137, was_killed=True, ran_out_of_memory=True), False, "killed or removed from outside"),
        (Ending(137), False, "killed from outside"),
        (Ending(0), False, "connection"),
        (Ending(137, ran_out_of_memory=True), True, "memory"),
        (Ending(1), True, "status 1"),
        (Ending(139), True, "status 139"),
    ],
)
def test_whose_doing_an_end_was(ending: Ending | None, by_agent: bool, match: str) -> None:
    container = FakeContainer(ending)
    box = DockerSandbox(container, {}, SandboxSpec(), None)
    with pytest.raises(SandboxGone, match=match) as caught:
        box.exec(["true"], timeout_s=1)
    assert caught.value.by_agent is by_agent
    with pytest.raises(SandboxGone, match=match):
        box.write("/root/x", b"")
    box.close()
    assert container.removed == 1


def test_a_start_that_fails_removes_the_container() -> None:
    container = FakeContainer(None)
    with pytest.raises(SandboxError, match="cannot start"):
        DockerSandbox(container, {}, SandboxSpec(), None).start(b"")
    assert container.removed == 1
