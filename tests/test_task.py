import shutil
from pathlib import Path

import pytest

from fpenv.errors import ConfigError, TaskError
from fpenv.instance import make_instance
from fpenv.task import find_task, load_task

PACKAGES = Path(__file__).parent / "packages"
COIN = PACKAGES / "coin"


@pytest.fixture
def package(tmp_path: Path) -> Path:
    return Path(shutil.copytree(COIN, tmp_path / "coin"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no frontmatter", r"task\.md: expected YAML frontmatter between two lines"),
        ("---\n: : [\n---\nx", r"task\.md: the frontmatter is not YAML"),
        ("---\n- a\n---\nx", "expected a mapping in the frontmatter, got list"),
        ("---\nsandbox: {}\nenvironment: {}\n---\nx", "key environment: it is the older name of sandbox"),
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


def test_harbors_layout_becomes_the_same_record() -> None:
    task = load_task(PACKAGES / "harbor")
    assert (task.verifier, task.layout.verifier_mount) == (PACKAGES / "harbor" / "tests", "/tests")
    assert (task.oracle, task.layout.oracle_mount) == (PACKAGES / "harbor" / "solution", "/solution")
    assert task.prompt.startswith("`/app/pendulum.txt` holds the length")
    assert (task.limits.memory_bytes, task.limits.disk_bytes) == (512 << 20, 64 << 20)
    assert (task.verifier_timeout_s, task.time_limit_s) == (60, 600)
    assert (task.verifier_env, task.oracle_env) == ({"TOLERANCE": "1e-6"}, {"GRAVITY": "9.81"})
    assert (task.base, task.workdir, task.verifier_cwd, task.rubric) == ("/", "/app", "/app", ())
    assert sorted(make_instance(task).inputs) == ["app/bin/measure", "app/pendulum.txt"]
    assert find_task(PACKAGES / "harbor") == task


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("task.toml", "with task.md or task.toml, found none"),
        ("instruction.md", "expected instruction.md beside task.toml, found none"),
        ("tests/test.sh", "expected tests/test.sh, found none"),
    ],
)
def test_a_missing_file_of_harbors_layout_is_named(tmp_path: Path, missing: str, message: str) -> None:
    folder = Path(shutil.copytree(PACKAGES / "harbor", tmp_path / "harbor"))
    (folder / missing).unlink()
    with pytest.raises(TaskError, match=message):
        load_task(folder)


def test_task_md_decides_where_both_layouts_lie(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(PACKAGES / "harbor", tmp_path / "both"))
    shutil.copy(COIN / "task.md", folder)
    task = load_task(folder)
    assert task.prompt.startswith("Toss the coin")
    assert task.layout.verifier == "tests"
    shutil.copytree(COIN / "verifier", folder / "verifier")
    assert load_task(folder).layout.verifier == "verifier"


def test_what_a_user_should_know_is_noted() -> None:
    notes = load_task(PACKAGES / "unboxed").notes
    assert notes[0] == "fields not known here, kept and not used: metadata.reviewer_hint, sandbox.colour"
    assert any(note.startswith("image ubuntu:24.04 is not used") for note in notes)
    assert load_task(COIN).notes == tuple(
        note for note in load_task(COIN).notes if note.startswith("image python:3.11")
    )


def test_a_test_script_that_downloads_is_noted_with_its_line(package: Path) -> None:
    with (package / "verifier" / "test.sh").open("a") as file:
        file.write("# apt-get comments do no harm\nuvx pytest /verifier\n")
    assert any(note.startswith("verifier/test.sh line 7 downloads; ") for note in load_task(package).notes)


def test_pytest_is_added_where_the_hidden_tests_need_it(package: Path) -> None:
    (package / "environment" / "Dockerfile").write_text("FROM python:3.11\nRUN pip install six pytest-xdist\n")
    task = load_task(package)
    assert task.requirements == "six\npytest-xdist\npytest\n"
    assert "pytest is added to the runtime: the hidden tests need it" in task.notes


def test_without_a_dockerfile_the_requirements_are_read_as_before(package: Path) -> None:
    (package / "environment" / "Dockerfile").unlink()
    assert load_task(package).requirements == "pytest\npypdf\n"


def test_an_image_that_must_be_pulled_needs_docker(package: Path) -> None:
    (package / "environment" / "Dockerfile").unlink()
    (package / "task.md").write_text("---\nsandbox: {docker_image: 'lab/apparatus:3'}\n---\nx")
    with pytest.raises(TaskError, match="cannot build this environment: the image lab/apparatus:3; use the Docker"):
        _ = load_task(package).requirements


def test_what_the_dockerfile_copies_is_handed_out_with_every_instance(package: Path) -> None:
    (package / "environment" / "notes.txt").write_text("n")
    with (package / "environment" / "Dockerfile").open("a") as file:
        file.write("COPY notes.txt /root/data/\nCOPY notes.txt /srv/lab/\nENV LAB=1\n")
    task = load_task(package)
    assert sorted(make_instance(task, 3).inputs) == ["data/notes.txt", "data/sheet.txt"]
    assert (dict(task.layer.files), dict(task.layer.env)) == ({"/srv/lab/notes.txt": b"n"}, {"LAB": "1"})


def test_older_packages_call_the_sandbox_environment(package: Path) -> None:
    file = package / "task.md"
    file.write_text(file.read_text().replace("sandbox: {", "environment: {"))
    assert load_task(package).limits.memory_bytes == 512 << 20


def test_the_digest_is_of_content_and_names_and_ignores_caches_and_links(package: Path) -> None:
    before = load_task(package).digest
    (package / "__pycache__").mkdir(exist_ok=True)
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
