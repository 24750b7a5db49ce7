"""The Docker backend keeps the behaviour that every backend keeps, with a runtime and with the image's own python."""

from pathlib import Path

import pytest

from fpenv.sandbox.runtime import provide
from fpenv.sandbox.sandbox import Backend, Sandbox
from fpenv.testing.sandbox_conformance import ExecConformance, SandboxConformance, ServiceConformance, sh

pytestmark = pytest.mark.docker


@pytest.fixture(scope="session")
def docker_backend(docker_address: str, base_image: str) -> Backend:
    from fpenv.sandbox.docker import DockerBackend

    return DockerBackend(base_image, address=docker_address)


class TestWithARuntime(SandboxConformance):
    @pytest.fixture
    def backend(self, docker_backend: Backend) -> Backend:
        return docker_backend

    @pytest.fixture
    def runtime(self) -> Path:
        return provide("").path


class TestWithTheImagesPython(ExecConformance, ServiceConformance):
    @pytest.fixture
    def backend(self, docker_backend: Backend) -> Backend:
        return docker_backend

    def test_python_is_the_runtimes(self, box: Sandbox) -> None:
        assert sh(box, "command -v python3; ls /opt").stdout == b"/usr/bin/python3\nlab\n"
