"""Images are built from a task's environment, once for each content, and errors say what to do."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fpenv.errors import ConfigError, SandboxError, TaskError
from fpenv.sandbox.sandbox import SandboxSpec
from fpenv.testing.sandbox_conformance import sh

pytestmark = pytest.mark.docker
docker = pytest.importorskip("docker", reason="the package docker is not installed")

from fpenv.sandbox.docker import DockerBackend, build_image  # noqa: E402


@pytest.fixture
def client(docker_address: str) -> Iterator[object]:
    client = docker.APIClient(base_url=docker_address, version="auto")
    yield client
    client.close()


@pytest.fixture
def context(tmp_path: Path, base_image: str) -> Path:
    folder = tmp_path / "environment"
    (folder / "inputs").mkdir(parents=True)
    (folder / "inputs" / "data.csv").write_text("1,2\n")
    (folder / "inputs" / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (folder / "inputs" / "run.sh").chmod(0o755)
    (folder / "Dockerfile").write_text(
        f"FROM {base_image}\n"
        "ENV OMP_NUM_THREADS=1 HOME=/elsewhere\n"
        "COPY inputs /root/inputs\n"
        "COPY inputs/data.csv /data/shared.csv\n"
        "RUN chmod 600 /root/inputs/data.csv && ln -s inputs/data.csv /root/link && mkdir /root/empty && "
        "echo built > /built\n"
        "WORKDIR /root\n"
    )
    return folder


def build(folder: Path, address: str, lines: list[str]) -> str:
    return build_image(folder, progress=lines.append, address=address)


def test_an_image_is_built_once_for_each_content(context: Path, docker_address: str) -> None:
    (context / "inputs" / "data.csv").write_text(f"{time.time_ns()}\n")  # not yet built by earlier tests
    lines: list[str] = []
    first = build(context, docker_address, lines)
    assert any("RUN chmod" in line for line in lines)
    lines.clear()
    assert build(context, docker_address, lines) == first
    assert lines == []
    (context / "inputs" / "data.csv").write_text("3,4\n")
    assert build(context, docker_address, lines) != first


def test_what_the_image_holds_is_the_agents_own_in_its_folders(context: Path, docker_address: str) -> None:
    image = build_image(context, address=docker_address)
    with DockerBackend(image, address=docker_address).start(
        SandboxSpec(files={"/root/inputs/extra": b"x"}, read_only={"/root/inputs/fixed": {"a": b"1"}})
    ) as box:
        told = sh(box, "cat inputs/data.csv link /data/shared.csv /built; inputs/run.sh; ls inputs; ls -d empty")
        assert told.stdout == b"1,2\n1,2\n1,2\nbuilt\nran\ndata.csv\nextra\nfixed\nrun.sh\nempty\n"
        assert sh(box, "echo 3 >> inputs/data.csv && touch empty/x inputs/y && rm inputs/run.sh").exit_code == 0
        assert sh(box, "echo 3 >> /data/shared.csv").exit_code != 0
        assert sh(box, "echo $OMP_NUM_THREADS $HOME").stdout == b"1 /root\n"
        assert box.collect(["inputs/data.csv"]).files == {"inputs/data.csv": b"1,2\n3\n"}


def test_a_failing_build_tells_its_last_lines(context: Path, docker_address: str) -> None:
    with (context / "Dockerfile").open("a") as file:
        file.write("RUN echo the-reason >&2; exit 3\n")
    with pytest.raises(SandboxError, match=r"(?s)could not be built.*the-reason.*code: 3"):
        build_image(context, address=docker_address)


def test_a_missing_base_image_is_explained(tmp_path: Path, docker_address: str) -> None:
    (tmp_path / "Dockerfile").write_text("FROM localhost:9/none:1\n")
    with pytest.raises(SandboxError, match="docker load"):
        build_image(tmp_path, address=docker_address)


def test_a_folder_without_a_dockerfile_is_the_authors_mistake(tmp_path: Path, docker_address: str) -> None:
    with pytest.raises(TaskError, match="Dockerfile"):
        build_image(tmp_path, address=docker_address)


def test_a_missing_image_is_not_pulled(docker_address: str) -> None:
    with pytest.raises(SandboxError, match="docker pull none-such"):
        DockerBackend("none-such", address=docker_address).start(SandboxSpec())


def test_an_image_with_volumes_is_refused(context: Path, docker_address: str) -> None:
    with (context / "Dockerfile").open("a") as file:
        file.write("VOLUME /scratch\n")
    image = build_image(context, address=docker_address)
    with pytest.raises(SandboxError, match="/scratch"):
        DockerBackend(image, address=docker_address).start(SandboxSpec())


def test_an_image_without_python_is_explained(context: Path, docker_address: str) -> None:
    with (context / "Dockerfile").open("a") as file:
        file.write("RUN rm -f /usr/bin/python3*\n")
    image = build_image(context, address=docker_address)
    with pytest.raises(SandboxError, match="the image needs bash and a python3"):
        DockerBackend(image, address=docker_address).start(SandboxSpec())


def test_an_old_python_is_refused(context: Path, docker_address: str) -> None:
    (context / "inputs" / "python3").write_text("#!/bin/sh\necho 3 7 /usr/lib/python3\n")
    (context / "inputs" / "python3").chmod(0o755)
    with (context / "Dockerfile").open("a") as file:
        file.write("RUN rm /usr/bin/python3\nCOPY inputs/python3 /usr/bin/python3\n")
    image = build_image(context, address=docker_address)
    with pytest.raises(SandboxError, match=r"has Python 3\.7"):
        DockerBackend(image, address=docker_address).start(SandboxSpec())


def test_too_much_in_the_workspace_is_refused(context: Path, docker_address: str) -> None:
    with (context / "Dockerfile").open("a") as file:
        file.write("RUN head -c 70000000 /dev/zero > /root/large\n")
    image = build_image(context, address=docker_address)
    with pytest.raises(SandboxError, match=r"MiB in /root"):
        DockerBackend(image, address=docker_address).start(SandboxSpec())


def test_gpus_without_a_driver_are_explained(base_image: str, docker_address: str) -> None:
    if Path("/dev/nvidiactl").exists():
        pytest.skip("this machine has GPUs")
    with pytest.raises(SandboxError, match="NVIDIA container toolkit"):
        DockerBackend(base_image, gpus="all", address=docker_address).start(SandboxSpec())


def test_no_engine_is_explained(tmp_path: Path) -> None:
    with pytest.raises(SandboxError, match="systemctl start docker"):
        DockerBackend("any", address=f"unix://{tmp_path}/none.sock").start(SandboxSpec())


def test_an_engine_elsewhere_is_refused() -> None:
    with pytest.raises(ConfigError, match="on this machine"):
        DockerBackend("any", address="tcp://example.org:2375")
