"""Where a task's episodes run."""

import shutil
from pathlib import Path

import pytest

from fpenv.errors import ConfigError
from fpenv.placement import place, route
from fpenv.task import Task, load_task
from fpenv.testing.fake_sandbox import FakeBackend

COIN = Path(__file__).parent / "packages" / "coin"


def needing(tmp_path: Path, sandbox: str) -> Task:
    package = Path(shutil.copytree(COIN, tmp_path / "coin"))
    file = package / "task.md"
    file.write_text(file.read_text().replace("sandbox: {cpus: 1, memory_mb: 512, storage_mb: 64}", sandbox))
    return load_task(package)


@pytest.mark.parametrize(
    ("sandbox", "where"),
    [
        ("sandbox: {cpus: 4, memory_mb: 16384, storage_mb: 10240}", "local"),
        ("sandbox: {cpus: 5}", "docker"),
        ("sandbox: {memory_mb: 16385}", "docker"),
        ("sandbox: {storage_mb: 10241}", "docker"),
        ("sandbox: {gpus: 1}", "docker"),
    ],
)
def test_auto_sends_light_tasks_to_this_machine_and_the_rest_to_docker(
    tmp_path: Path, sandbox: str, where: str
) -> None:
    assert route(needing(tmp_path, sandbox)) == where


def test_auto_plays_a_light_task_locally_with_the_tasks_runtime() -> None:
    placed = place(load_task(COIN), "auto")
    assert placed.backend.name == "local"
    assert placed.runtime is not None
    assert (placed.runtime / "bin" / "python3").exists()


def test_a_backend_of_the_callers_own_is_taken_as_it_is() -> None:
    backend = FakeBackend()
    assert place(load_task(COIN), backend).backend is backend


def test_an_unknown_place_is_one_clear_error() -> None:
    with pytest.raises(ConfigError, match="expected one of local, docker, auto, or a Backend; got 'vm'"):
        place(load_task(COIN), "vm")
