"""What attacks share: the backends they are played on, a package with a canary in every hidden file, and `play`.

An attack is an episode through the real environment. `play` takes its actions, submits, and hands back what an agent
and a trainer see; whatever came back to the agent is searched for the canaries.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from fpenv.env import FrontierPhysicsEnv
from fpenv.sandbox.local import LocalBackend, check_isolation
from fpenv.sandbox.sandbox import Backend

sys.path.insert(0, str(Path(__file__).parent))  # for `adversary`: test modules here belong to no package
from adversary import CANARY, PACKAGE, SUBMIT, Play, Played

HERE = Path(__file__).parent
collect_ignore = ["package"]


def isolation_trouble() -> str:
    failed = [f"{name}: {fix}" for name, ok, fix in check_isolation() if not ok and "(optional)" not in name]
    return "; ".join(failed)


def docker_engine(command: str, *arguments: str) -> str:
    """The last line that a script of the Docker tests prints; raises OSError with its complaint."""
    done = subprocess.run([HERE.parent / "docker" / command, *arguments], capture_output=True, text=True, timeout=280)
    if done.returncode != 0:
        raise OSError(done.stderr.strip() or done.stdout.strip() or f"{command} failed")
    return (done.stdout.strip().splitlines() or [""])[-1]


@contextlib.contextmanager
def docker_backend() -> Iterator[Backend]:
    """The Docker backend on an engine that runs or is installed, or a visible skip."""
    docker = pytest.importorskip("fpenv.sandbox.docker", exc_type=ImportError)
    pytest.importorskip("docker")
    ours = False
    try:
        address = os.environ.get("FPENV_TEST_DOCKER_HOST")
        if address is None:
            try:
                address = docker_engine("engine.sh", "status")
            except OSError:
                address, ours = docker_engine("engine.sh", "start", "--installed"), True
        image = docker_engine("base_image.sh", address)
    except (OSError, subprocess.TimeoutExpired) as error:
        pytest.skip(f"no Docker engine for the tests: {error}")
    try:
        yield docker.DockerBackend(image, address=address)
    finally:
        if ours:
            docker_engine("engine.sh", "stop")


@pytest.fixture(scope="session", params=["local", pytest.param("docker", marks=pytest.mark.docker)])
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    """Every backend that runs here; the one place that chooses."""
    if request.param == "local":
        if trouble := isolation_trouble():
            pytest.skip(trouble)
        yield LocalBackend()
    else:
        with docker_backend() as made:
            yield made


@pytest.fixture(scope="session", autouse=True)
def _canaries_in_the_host_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A variable and an inheritable descriptor of this process that no sandbox may see."""
    secret = tmp_path_factory.mktemp("secrets") / "key"
    secret.write_text(f"{CANARY}-descriptor")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FPENV_SECRET", f"{CANARY}-environment")
        fd = os.open(secret, os.O_RDONLY)
        os.set_inheritable(fd, True)
        yield
        os.close(fd)


@pytest.fixture
def start(backend: Backend) -> Iterator[Callable[..., FrontierPhysicsEnv]]:
    """A fresh episode that is closed with the test."""
    made: list[FrontierPhysicsEnv] = []

    def start(*, task: Path = PACKAGE, seed: int | None = None, **settings: Any) -> FrontierPhysicsEnv:
        made.append(FrontierPhysicsEnv(task, **{"sandbox": backend, **settings}))
        made[-1].reset(seed=seed)
        return made[-1]

    yield start
    for env in made:
        env.close()


@pytest.fixture
def play(start: Callable[..., FrontierPhysicsEnv]) -> Play:
    """Play actions and submit; nothing that came back may hold a canary."""

    def play(*actions: Any, **settings: Any) -> Played:
        env = start(**settings)
        outputs: list[str] = []
        for action in (*actions, SUBMIT):
            observation, reward, terminated, truncated, info = env.step(action)
            outputs.append(observation["output"])
            assert CANARY not in json.dumps(info.get("data"), default=str)
            if terminated or truncated:
                break
            assert reward == 0.0
            assert not {"grade", "valid"} & info.keys()
        assert not [output for output in outputs if CANARY in output]
        return Played(env, outputs, reward, info)

    return play


@pytest.fixture
def variant(tmp_path: Path) -> Callable[[Mapping[str, str | None]], Path]:
    """The package with some files written anew (None removes one)."""

    def variant(files: Mapping[str, str | None]) -> Path:
        folder = tmp_path / "package"
        shutil.copytree(PACKAGE, folder)
        for name, text in files.items():
            if text is None:
                (folder / name).unlink()
            else:
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_text(text, encoding="utf-8")
        return folder

    return variant
