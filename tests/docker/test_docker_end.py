"""Who ended a container, and what is left of it."""

import gc
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fpenv.errors import SandboxError, SandboxGone
from fpenv.sandbox.docker import owner
from fpenv.sandbox.sandbox import Sandbox, SandboxSpec
from fpenv.testing.sandbox_conformance import SOON_S, sh

pytestmark = pytest.mark.docker
docker = pytest.importorskip("docker", reason="the package docker is not installed")

from fpenv.sandbox.cache import cache_root  # noqa: E402
from fpenv.sandbox.docker import DockerBackend, prune  # noqa: E402

HELPER = """
    import sys, time
    from fpenv.sandbox.docker import DockerBackend
    from fpenv.sandbox.sandbox import SandboxSpec
    box = DockerBackend(sys.argv[1], address=sys.argv[2]).start(SandboxSpec(read_only={"/x": {"y": b"z"}}))
    box.exec(["bash", "-c", "setsid sleep 300 & sleep 0.2"], timeout_s=5)
    print(box._container.id, flush=True)
    time.sleep(300)
"""


@pytest.fixture
def backend(docker_address: str, base_image: str) -> DockerBackend:
    return DockerBackend(base_image, address=docker_address)


@pytest.fixture
def box(backend: DockerBackend) -> Iterator[Sandbox]:
    with backend.start(SandboxSpec()) as box:
        yield box


@pytest.fixture
def client(docker_address: str) -> Iterator[object]:
    client = docker.APIClient(base_url=docker_address, version="auto")
    yield client
    client.close()


@pytest.fixture
def helper(docker_address: str, base_image: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Another process with a sandbox, and its container's id."""
    command = [sys.executable, "-c", textwrap.dedent(HELPER), base_image, docker_address]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    yield process, process.stdout.readline().strip()
    process.kill()
    process.communicate()


def ids(client: object) -> set[str]:
    return {entry["Id"] for entry in client.containers(all=True)}  # type: ignore[attr-defined]


def stages() -> set[str]:
    return {path.name for path in (cache_root() / "docker").iterdir()}


def wait_for(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + SOON_S
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


@pytest.mark.parametrize("how", ["kill", "stop", "remove_container"])
def test_a_container_that_is_ended_from_outside_is_infrastructure(box: Sandbox, client: object, how: str) -> None:
    options = {"force": True} if how == "remove_container" else {}
    getattr(client, how)(box._container.id, **options)  # type: ignore[attr-defined]
    with pytest.raises(SandboxGone, match="from outside") as caught:
        sh(box, "true")
    assert not caught.value.by_agent
    with pytest.raises(SandboxGone, match="from outside"):
        box.read("/root/x")


def test_a_guest_that_the_host_kills_is_infrastructure(box: Sandbox, client: object) -> None:
    pid = client.inspect_container(box._container.id)["State"]["Pid"]  # type: ignore[attr-defined]
    subprocess.run(["kill", "-9", str(pid)], check=True)
    with pytest.raises(SandboxGone, match="from outside") as caught:
        sh(box, "sleep 20")
    assert not caught.value.by_agent


def test_a_guest_that_stops_answering_is_the_agents_doing(
    box: Sandbox, client: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fpenv.sandbox.channel.GRACE_S", 0.3)
    client.pause(box._container.id)  # type: ignore[attr-defined]
    with pytest.raises(SandboxGone, match="does not answer") as caught:
        sh(box, "true", timeout_s=0.2)
    assert caught.value.by_agent
    assert wait_for(lambda: box._container.id not in ids(client))  # type: ignore[attr-defined]


# The SDK leaves its socket open when the engine cannot be reached.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
def test_an_engine_that_ends_is_infrastructure_and_the_next_one_serves(
    own_engine: Callable[..., str], tmp_path: Path
) -> None:
    address = own_engine("start").splitlines()[-1]
    image = subprocess.run(
        [Path(__file__).parent / "base_image.sh", address], capture_output=True, text=True, check=True
    ).stdout.split()[-1]
    backend = DockerBackend(image, address=address)
    for restart in (False, True):
        box = backend.start(SandboxSpec())
        own_engine("stop", "--keep")
        if restart:
            own_engine("start")
        with pytest.raises(SandboxGone) as caught:
            sh(box, "sleep 20")
        assert not caught.value.by_agent
        box.close()
        if not restart:
            with pytest.raises(SandboxError, match="systemctl start docker"):
                backend.start(SandboxSpec())
            own_engine("start")
    with backend.start(SandboxSpec()) as box:
        assert sh(box, "echo fine").stdout == b"fine\n"
    assert prune(address=address) == []
    gc.collect()


def test_close_leaves_nothing(backend: DockerBackend, client: object) -> None:
    before, files = ids(client), stages()
    with backend.start(SandboxSpec(read_only={"/x": {"y": b"z"}}, files={"/root/a": b"b"})) as box:
        assert ids(client) - before == {box._container.id}  # type: ignore[attr-defined]
        assert len(stages() - files) == 1
    assert ids(client) == before
    assert stages() == files


def test_a_failed_start_leaves_nothing(backend: DockerBackend, client: object, tmp_path: Path) -> None:
    before, files, open_files = ids(client), stages(), len(list(Path("/proc/self/fd").iterdir()))
    (tmp_path / "bin").mkdir()
    for _ in range(3):
        with pytest.raises(SandboxError, match="does not fit the image"):
            backend.start(SandboxSpec(runtime=tmp_path))
    assert ids(client) == before
    assert stages() == files
    assert len(list(Path("/proc/self/fd").iterdir())) <= open_files + 2


def test_a_killed_owner_takes_its_container_along(helper: tuple[subprocess.Popen[str], str], client: object) -> None:
    process, container = helper
    assert container in ids(client)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert wait_for(lambda: container not in ids(client))


def test_prune_removes_what_a_killed_owner_left_and_nothing_else(
    backend: DockerBackend,
    helper: tuple[subprocess.Popen[str], str],
    client: object,
    docker_address: str,
    base_image: str,
) -> None:
    process, container = helper
    name = client.inspect_container(container)["Config"]["Labels"][owner.NAME_LABEL]  # type: ignore[attr-defined]
    mine = backend.start(SandboxSpec())
    foreign = client.create_container(base_image, ["true"])["Id"]  # type: ignore[attr-defined]
    elsewhere = {owner.OWNER_LABEL: "another-boot 4026531836 0 1 1", owner.NAME_LABEL: "fpenv-elsewhere"}
    other_boot = client.create_container(base_image, ["true"], labels=elsewhere)["Id"]  # type: ignore[attr-defined]
    try:
        assert prune(address=docker_address) == []
        client.pause(container)  # type: ignore[attr-defined]
        process.send_signal(signal.SIGKILL)
        process.wait()
        time.sleep(0.3)
        assert container in ids(client)
        assert prune(address=docker_address) == [name]
        assert container not in ids(client)
        assert name not in stages()
        assert {mine._container.id, foreign, other_boot} <= ids(client)  # type: ignore[attr-defined]
        assert sh(mine, "echo fine").stdout == b"fine\n"
    finally:
        mine.close()
        for each in (foreign, other_boot):
            client.remove_container(each, force=True)  # type: ignore[attr-defined]


def test_prune_removes_files_of_a_killed_owner_whose_container_has_gone(
    helper: tuple[subprocess.Popen[str], str], client: object, docker_address: str
) -> None:
    process, container = helper
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert wait_for(lambda: container not in ids(client))
    assert len(prune(address=docker_address)) == 1
    assert prune(address=docker_address) == []
