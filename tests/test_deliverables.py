"""What is handed in where a package names files, folders, or nothing."""

from pathlib import Path

import pytest

from fpenv.deliverables import MAX_DEPTH, MAX_FILES, hand_in, select
from fpenv.errors import SandboxGone, TaskError
from fpenv.sandbox.local import LocalBackend
from fpenv.sandbox.runtime import provide
from fpenv.sandbox.sandbox import Collected, ExecResult, SandboxSpec
from fpenv.task import Task, load_task
from fpenv.testing.fake_sandbox import FakeBackend, FakeSandbox, finished, timed_out


@pytest.fixture
def make_task(tmp_path: Path):
    def make(front: str = "", dockerfile: str = "FROM python:3.11\n") -> Task:
        for name, text in (
            ("task.md", f"---\n{front}\n---\nDo it.\n"),
            ("verifier/test.sh", "exit 0\n"),
            ("environment/Dockerfile", dockerfile),
        ):
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(text)
        return load_task(tmp_path)

    return make


def collect(task: Task, script: str, inputs: dict[str, bytes] | None = None) -> Collected:
    files = {task.absolute(name): data for name, data in (inputs or {}).items()}
    spec = SandboxSpec(runtime=provide("").path, files=files)
    with task.layer.start(LocalBackend(), spec) as box:
        done = box.exec(("bash", "-c", script), timeout_s=30)
        assert done.exit_code == 0, done.stderr
        return hand_in(box, task, inputs or {})


def test_named_files_are_handed_in_and_nothing_else(make_task) -> None:
    task = make_task("metadata: {deliverables: [result.md, /root/out/paper.pdf]}")
    found = collect(task, "mkdir out; echo r > result.md; echo x > other.txt")
    assert dict(found.files) == {"result.md": b"r\n"}
    assert dict(found.refused) == {"out/paper.pdf": "does not exist"}


def test_files_elsewhere_are_named_from_the_root(make_task) -> None:
    task = make_task("metadata: {deliverables: [result.md, /app/out.txt]}", "FROM python:3.11\nWORKDIR /app\n")
    found = collect(task, "pwd > out.txt; echo r > /root/result.md")
    assert dict(found.files) == {"app/out.txt": b"/app\n", "root/result.md": b"r\n"}


def test_harbors_artifacts_are_deliverables(make_task) -> None:
    assert make_task("artifacts: [/app/a.txt, {source: /app/plots/}, /logs/artifacts]").deliverables == (
        "app/a.txt",
        "app/plots/",
    )


def test_a_folder_is_handed_in_with_all_its_files(make_task) -> None:
    task = make_task("metadata: {deliverables: [plots/]}")
    found = collect(task, "mkdir -p plots/a; touch plots/1 plots/a/2 other")
    assert sorted(found.files) == ["plots/1", "plots/a/2"]


def test_where_nothing_is_named_everything_new_is_handed_in(make_task) -> None:
    task = make_task(dockerfile="FROM python:3.11\nWORKDIR /app\n")
    script = """
        echo changed > /root/data.csv; echo r > /root/result.md; echo s > src.py; mkdir -p .git __pycache__ deep/er
        echo > .git/config; echo > __pycache__/x.pyc; echo > deep/er/f; echo > .hidden; ln -s /etc/passwd link
        mkfifo pipe; echo > /tmp/elsewhere; echo > $'new\\nline'
    """
    found = collect(task, script, {"root/data.csv": b"as handed out"})
    assert sorted(found.files) == ["app/deep/er/f", "app/src.py", "root/result.md"]
    assert list(found.refused.values()) == ["its name is not plain text"]


def test_too_many_files_leave_the_deepest_out(make_task) -> None:
    task = make_task()
    deep = "/".join("d" * (MAX_DEPTH + 1))
    script = (
        f"mkdir -p many {deep}; touch {deep}/f; for i in $(seq {MAX_FILES}); do : > many/$i; done; echo r > result.md"
    )
    found = collect(task, script)
    assert "result.md" in found.files
    assert len(found.files) == MAX_FILES
    assert list(found.refused.values()) == [f"more than {MAX_FILES} files"]


@pytest.mark.parametrize(
    ("result", "why"),
    [(finished(exit_code=127), "listing its files ended with 127"), (timed_out(), "listing its files took too long")],
)
def test_a_listing_that_fails_in_a_living_sandbox_is_the_agents_doing(make_task, result, why: str) -> None:
    with FakeBackend(lambda box, argv: result).start(SandboxSpec(files={"/root/result.md": b"r"})) as box:
        found = hand_in(box, make_task(), {})
    assert (dict(found.files), dict(found.refused)) == ({}, {"/root/": why})


def test_a_sandbox_that_is_lost_while_listing_is_not(make_task) -> None:
    def lose(box: FakeSandbox, argv: tuple[str, ...]) -> ExecResult:
        box.end(by_agent=False)
        return finished()

    with FakeBackend(lose).start(SandboxSpec()) as box, pytest.raises(SandboxGone, match="has ended"):
        hand_in(box, make_task(), {})


@pytest.mark.parametrize(
    "listing", [b"1 /etc/passwd\0", b"x /root/a\0", b"1 /root/../etc/x\0", b"1 \xff\0", b"1 /root/cut"]
)
def test_a_listing_is_data_and_can_name_nothing_outside(make_task, listing: bytes) -> None:
    with FakeBackend(lambda box, argv: finished(listing)).start(SandboxSpec(files={"/etc/x": b""})) as box:
        assert dict(hand_in(box, make_task(), {}).files) == {}


def test_files_on_the_host_are_chosen_alike(make_task) -> None:
    files = {"result.md": b"r", "plots/a": b"a", "data.csv": b"d"}
    named = select(files, make_task("metadata: {deliverables: [result.md, paper.pdf, plots/]}"), [])
    assert sorted(named.files) == ["plots/a", "result.md"]
    assert dict(named.refused) == {"paper.pdf": "does not exist"}
    assert sorted(select(files, make_task(), ["data.csv"]).files) == ["plots/a", "result.md"]


@pytest.mark.parametrize("path", ["../x", "/", "a*", "a\\nb"])
def test_a_deliverable_that_is_no_plain_path_is_the_tasks_error(make_task, path: str) -> None:
    with pytest.raises(TaskError, match=r"deliverable .*: expected a plain path"):
        make_task(f'metadata: {{deliverables: ["{path}"]}}')
