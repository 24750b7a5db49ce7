"""A Docker engine and a base image for the tests, or a visible skip where there can be none.

`FPENV_TEST_DOCKER_HOST` names an engine that runs. Otherwise one is started from an installed dockerd, and ended
with the tests; `tests/docker/engine.sh start` installs one and leaves it running for the tests to find.
"""

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def run(script: str, *arguments: str) -> str:
    """Return the last line that a script of this folder prints; skip the test if it fails."""
    try:
        done = subprocess.run([HERE / script, *arguments], capture_output=True, text=True, timeout=280)
    except (OSError, subprocess.TimeoutExpired) as error:
        pytest.skip(f"no Docker engine for the tests: {error}")
    if done.returncode != 0:
        pytest.skip(f"no Docker engine for the tests: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout.strip().splitlines()[-1]


@pytest.fixture(scope="session")
def docker_address() -> Iterator[str]:
    pytest.importorskip("docker", reason="the package docker is not installed: pip install 'fpenv[docker]'")
    named = os.environ.get("FPENV_TEST_DOCKER_HOST")
    if named:
        yield named
        return
    was_running = subprocess.run([HERE / "engine.sh", "status"], capture_output=True).returncode == 0
    yield run("engine.sh", "start", "--installed")
    if not was_running:
        subprocess.run([HERE / "engine.sh", "stop"], capture_output=True)


@pytest.fixture(scope="session")
def base_image(docker_address: str) -> str:
    return run("base_image.sh", docker_address)


@pytest.fixture(scope="session")
def own_engine(tmp_path_factory: pytest.TempPathFactory, docker_address: str) -> Iterator[Callable[[str], str]]:
    """An engine that a test may end: call with start or stop."""
    folder = tmp_path_factory.mktemp("engine")

    def control(command: str, *arguments: str) -> str:
        environment = {**os.environ, "FPENV_TEST_DOCKER_DIR": str(folder / "d")}
        done = subprocess.run(
            [HERE / "engine.sh", command, *arguments], capture_output=True, text=True, env=environment, timeout=120
        )
        if done.returncode != 0:
            pytest.skip(f"no second Docker engine: {done.stderr.strip()}")
        return done.stdout.strip()

    yield control
    control("stop")
