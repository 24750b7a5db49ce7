"""What containers are created with, without an engine: never anything that would give away the host."""

import json
import os
from pathlib import Path

import pytest

from fpenv.errors import ConfigError, SandboxError
from fpenv.sandbox.docker import owner
from fpenv.sandbox.docker.plan import Gpus, Host, Image, Plan, plan, plan_probe
from fpenv.sandbox.sandbox import Limits, SandboxSpec

IMAGE = Image("task:1", "sha256:1", {"PATH": "/venv/bin:/usr/bin", "OMP_NUM_THREADS": "1", "HOME": "/home/x"})


@pytest.fixture
def host(tmp_path: Path) -> Host:
    stage = tmp_path / "stage"
    stage.mkdir()
    return Host("fpenv-1", 1234567, stage, tmp_path / "support", 2, tmp_path / "engine" / "docker.sock")


def settings(planned: Plan) -> dict[str, object]:
    return dict(planned.config["HostConfig"])


def test_no_container_is_privileged_or_shares_a_namespace_with_the_host(host: Host) -> None:
    for config in (plan(SandboxSpec(), IMAGE, host).config, plan_probe(IMAGE, host)):
        asked = config["HostConfig"]
        assert asked["Privileged"] is False
        assert asked["CapDrop"] == ["ALL"]
        assert asked["CapAdd"] == []
        assert "no-new-privileges:true" in asked["SecurityOpt"]
        assert not any("unconfined" in option for option in asked["SecurityOpt"])
        assert asked["NetworkMode"] == "none"
        assert asked["IpcMode"] == asked["CgroupnsMode"] == "private"
        assert asked["PidMode"] == asked["UTSMode"] == ""
        assert asked["ReadonlyRootfs"] is True
        assert asked["AutoRemove"] is True
        assert not {"Binds", "Devices", "VolumesFrom", "UsernsMode", "DeviceCgroupRules", "GroupAdd"} & set(asked)
        assert config["NetworkDisabled"] is True
        assert config["User"] == "1234567:1234567"
        assert config["Tty"] is False


def test_every_mount_is_read_only_and_named(host: Host, tmp_path: Path) -> None:
    given = tmp_path / "given"
    given.mkdir()
    spec = SandboxSpec(runtime=given, read_only={"/a": given, "/b": {"x/y": b"1"}})
    mounts = settings(plan(spec, IMAGE, host))["Mounts"]
    assert all(mount["Type"] == "bind" and mount["ReadOnly"] is True for mount in mounts)
    assert all(mount["BindOptions"] == {"NonRecursive": True, "Propagation": "rprivate"} for mount in mounts)
    sources = {mount["Target"]: Path(mount["Source"]) for mount in mounts}
    assert sources["/opt/runtime"] == sources["/a"] == given
    assert {target for target, source in sources.items() if not source.is_relative_to(host.stage)} == {
        "/opt/lab",
        "/opt/runtime",
        "/a",
    }
    assert (sources["/b"] / "x/y").read_bytes() == b"1"


@pytest.mark.parametrize(
    "source", ["/", "/proc", "/sys", "/dev", "/etc", "/etc/passwd", "/run", "/var", "/var/lib/docker", "/boot"]
)
def test_folders_of_the_hosts_system_are_refused(host: Host, source: str) -> None:
    if not Path(source).exists():
        pytest.skip("not here")
    with pytest.raises(SandboxError, match="cannot be mounted"):
        plan(SandboxSpec(read_only={"/x": Path(source)}), IMAGE, host)


def test_the_engines_socket_is_refused_however_it_is_named(host: Host, tmp_path: Path) -> None:
    host.socket.parent.mkdir()
    host.socket.touch()
    (tmp_path / "link").symlink_to(host.socket)
    for source in (host.socket, host.socket.parent, tmp_path, tmp_path / "link"):
        with pytest.raises(SandboxError, match="cannot be mounted"):
            plan(SandboxSpec(read_only={"/x": source}), IMAGE, host)
    with pytest.raises(SandboxError, match="cannot be mounted"):
        plan(SandboxSpec(runtime=tmp_path), IMAGE, host)


def test_devices_and_pipes_are_refused(host: Host, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SandboxError, match="regular file"):
        plan(SandboxSpec(read_only={"/x": tmp_path / "pipe"}), IMAGE, host)
    with pytest.raises(SandboxError, match="does not exist"):
        plan(SandboxSpec(read_only={"/x": tmp_path / "none"}), IMAGE, host)


@pytest.mark.parametrize("target", ["/usr/x", "/", "/opt", "/etc", "/opt/runtime/x", "/run", "relative", "/a/../etc"])
def test_targets_in_the_system_are_refused(host: Host, target: str) -> None:
    with pytest.raises(SandboxError, match=r"part of the system|absolute path"):
        plan(SandboxSpec(read_only={target: {"x": b""}}), IMAGE, host)


@pytest.mark.parametrize("path", ["/x", "/usr/x/y", "/bin/y", "/opt/x/y", "x", "/root/../etc/x"])
def test_files_in_the_system_are_refused(host: Host, path: str) -> None:
    with pytest.raises(SandboxError, match=r"part of the system|absolute path"):
        plan(SandboxSpec(files={path: b""}), IMAGE, host)


def test_content_escapes_its_folder_nowhere(host: Host) -> None:
    with pytest.raises(SandboxError, match="absolute path"):
        plan(SandboxSpec(read_only={"/x": {"../../y": b""}}), IMAGE, host)


def test_what_others_may_not_read_is_copied_without_links_that_lead_out(host: Host, tmp_path: Path) -> None:
    given = tmp_path / "given"
    (given / "folder").mkdir(parents=True)
    (given / "folder" / "closed").write_text("closed")
    (given / "folder" / "closed").chmod(0o600)
    (tmp_path / "secret").write_text("secret")
    (given / "out").symlink_to(tmp_path / "secret")
    mounts = settings(plan(SandboxSpec(read_only={"/x": given}), IMAGE, host))["Mounts"]
    (copy,) = [Path(mount["Source"]) for mount in mounts if mount["Target"] == "/x"]
    assert copy.is_relative_to(host.stage)
    assert [path.name for path in sorted(copy.rglob("*"))] == ["folder", "closed"]
    assert (copy / "folder" / "closed").stat().st_mode & 0o777 == 0o644


def test_limits_are_the_engines(host: Host) -> None:
    limits = Limits(memory_bytes=1 << 30, disk_bytes=1 << 20, processes=7, cpus=1.5)
    asked = settings(plan(SandboxSpec(limits=limits, files={"/logs/x": b""}), IMAGE, host))
    assert asked["Memory"] == asked["MemorySwap"] == 1 << 30
    assert asked["PidsLimit"] == 8
    assert asked["NanoCpus"] == 1_500_000_000
    assert asked["LogConfig"] == {"Type": "none"}
    assert set(asked["Tmpfs"]) == {"/root", "/tmp", "/logs", "/run", "/dev/shm", "/var/tmp"}
    for options in asked["Tmpfs"].values():
        assert {"size=1048576", "nosuid", "nodev", "uid=1234567"} <= set(options.split(","))
    more = settings(plan(SandboxSpec(limits=Limits(cpus=64)), IMAGE, host))
    assert more["NanoCpus"] == 2_000_000_000
    assert "NanoCpus" not in settings(plan(SandboxSpec(), IMAGE, host))


def test_commands_see_the_images_variables_but_not_its_home(host: Host, tmp_path: Path) -> None:
    assert plan(SandboxSpec(env={"A": "1"}), IMAGE, host).env == {
        "PATH": "/opt/lab/bin:/venv/bin:/usr/bin",
        "OMP_NUM_THREADS": "1",
        "A": "1",
    }
    (tmp_path / "runtime").mkdir()
    with_runtime = plan(SandboxSpec(runtime=tmp_path / "runtime"), IMAGE, host)
    assert with_runtime.env["PATH"].startswith("/opt/runtime/bin:/opt/lab/bin:")
    assert with_runtime.config["Entrypoint"][0] == "/opt/runtime/bin/python3"


def test_the_host_is_no_part_of_a_containers_environment(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FPENV_CANARY", "canary-77aa")
    planned = plan(SandboxSpec(), IMAGE, host)
    assert "canary-77aa" not in json.dumps(planned.config) + json.dumps(planned.env)


def test_labels_name_the_owner(host: Host) -> None:
    labels = plan(SandboxSpec(), IMAGE, host).config["Labels"]
    assert labels[owner.NAME_LABEL] == "fpenv-1"
    assert not owner.is_gone(labels[owner.OWNER_LABEL])


@pytest.mark.parametrize(
    ("gpus", "asked"),
    [
        (None, []),
        ("all", [{"Count": -1, "Capabilities": [["gpu", "compute", "utility"]]}]),
        (2, [{"Count": 2, "Capabilities": [["gpu", "compute", "utility"]]}]),
        (["0", "GPU-1"], [{"DeviceIDs": ["0", "GPU-1"], "Capabilities": [["gpu", "compute", "utility"]]}]),
    ],
)
def test_gpus_are_passed_through_when_asked_for(host: Host, gpus: Gpus, asked: list[object]) -> None:
    assert settings(plan(SandboxSpec(), IMAGE, host, gpus))["DeviceRequests"] == asked


@pytest.mark.parametrize("gpus", [0, -1, True, "some", [], [1]])
def test_other_gpus_are_refused(host: Host, gpus: object) -> None:
    with pytest.raises(ConfigError, match="gpus"):
        plan(SandboxSpec(), IMAGE, host, gpus)  # type: ignore[arg-type]


def test_folders_around_a_deep_mount_are_the_agents(host: Host) -> None:
    planned = plan(SandboxSpec(read_only={"/root/a/b/c": {"x": b""}, "/data/d": {"x": b""}}), IMAGE, host)
    assert planned.writable == ("/root/a/b", "/root/a", "/root", "/tmp")
    assert set(planned.writable) <= set(settings(planned)["Tmpfs"])
