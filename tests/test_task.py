import shutil
from pathlib import Path

import pytest

from fpenv.errors import ConfigError, TaskError
from fpenv.instance import make_instance
from fpenv.task import find_task, load_task

COIN = Path(__file__).parent / "packages" / "coin"


@pytest.fixture
def package(tmp_path: Path) -> Path:
    return Path(shutil.copytree(COIN, tmp_path / "coin"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no frontmatter", r"task\.md: expected YAML frontmatter between two lines"),
        ("---\n: : [\n---\nx", r"task\.md: the frontmatter is not YAML"),
        ("---\n- a\n---\nx", "expected a mapping in the frontmatter, got list"),
        ("---\nagent: {timeout_sec: -1}\n---\nx", r"key agent\.timeout_sec: .*greater than 0, got -1"),
        ("---\nsandbox: {memory_mb: lots}\n---\nx", r"key sandbox\.memory_mb: .*got 'lots'"),
    ],
)
def test_a_malformed_task_names_file_and_key(package: Path, text: str, message: str) -> None:
    (package / "task.md").write_text(text)
    with pytest.raises(TaskError, match=message):
        load_task(package)


@pytest.mark.parametrize(("missing", "message"), [("task.md", "with task.md"), ("verifier/test.sh", "test.sh")])
def test_a_missing_file_is_named(package: Path, missing: str, message: str) -> None:
    (package / missing).unlink()
    with pytest.raises(TaskError, match=message):
        load_task(package)


def test_older_packages_call_the_sandbox_environment(package: Path) -> None:
    file = package / "task.md"
    file.write_text(file.read_text().replace("sandbox: {", "environment: {"))
    assert load_task(package).limits.memory_bytes == 512 << 20


def test_the_digest_is_of_content_and_names_and_ignores_caches_and_links(package: Path) -> None:
    before = load_task(package).digest
    (package / "__pycache__").mkdir()
    (package / "__pycache__" / "x.pyc").write_bytes(b"x")
    (package / "link").symlink_to("/etc/passwd")
    assert load_task(package).digest == before == load_task(COIN).digest
    (package / "literature.json").write_text("[]")
    assert load_task(package).digest != before


def test_an_unknown_task_is_answered_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"the tasks here are: .*rydberg-ising-critical-point"):
        find_task("rydberg")


def test_the_same_seed_makes_the_same_bytes_and_another_seed_others() -> None:
    task = load_task(COIN)
    first, again, other = (make_instance(task, seed).parts for seed in (7, "7", 8))
    assert first == again
    assert first.references != other.references


def test_a_task_whose_own_code_raises_is_the_tasks_error(package: Path) -> None:
    (package / "instance.py").write_text("def make_instance(rng):\n    return 1 / 0\n")
    with pytest.raises(TaskError, match=r"instance\.py: make_instance for instance 3 raised ZeroDivisionError"):
        make_instance(load_task(package), 3)


def test_a_task_without_instances_has_the_canonical_one_only(package: Path) -> None:
    (package / "instance.py").unlink()
    task = load_task(package)
    assert make_instance(task).name == "canonical"
    with pytest.raises(ConfigError, match=r"has no instance\.py: expected instance 'canonical', got 3"):
        make_instance(task, 3)
