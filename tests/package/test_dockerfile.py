"""Dockerfiles of research tasks, read without a container engine."""

import platform
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fpenv.errors import TaskError
from fpenv.package.dockerfile import describe_image, read_dockerfile
from fpenv.package.recipe import Recipe

FROM = "FROM python:3.11-slim\n"


@pytest.fixture
def context(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.csv").write_bytes(b"a")
    (tmp_path / "data" / "b.csv").write_bytes(b"b")
    (tmp_path / "run.sh").write_bytes(b"#!/bin/sh\n")
    (tmp_path / "more.txt").write_text("scipy==1.11.*\n")
    (tmp_path / "requirements.txt").write_text("--index-url https://x\n-r more.txt\nnumpy>=2  # arrays\n\n# none\n")
    return tmp_path


def read(context: Path, text: str) -> Recipe:
    (context / "Dockerfile").write_text(text)
    return read_dockerfile(context / "Dockerfile")


@pytest.mark.parametrize(
    ("line", "files"),
    [
        ("COPY data/a.csv /root/", ["/root/a.csv"]),
        ("COPY data/a.csv /root/c.csv", ["/root/c.csv"]),
        ("COPY data /root/in", ["/root/in/a.csv", "/root/in/b.csv"]),
        ("COPY data/*.csv /root/in/", ["/root/in/a.csv", "/root/in/b.csv"]),
        ("WORKDIR /app\nCOPY data/a.csv run.sh ./", ["/app/a.csv", "/app/run.sh"]),
        ("WORKDIR /app\nWORKDIR in\nCOPY data/a.csv .", ["/app/in/a.csv"]),
        ('COPY --chown=root:root ["data/a.csv", "/root/with space.csv"]', ["/root/with space.csv"]),
        ("ARG PLACE=/root/x\nCOPY data/a.csv ${PLACE}/", ["/root/x/a.csv"]),
        ("RUN mkdir -p /root/in\nADD data/a.csv /root/in", ["/root/in/a.csv"]),
        ("COPY data /root/in\nRUN rm -rf /root/in/b.csv /var/lib/apt/lists/*", ["/root/in/a.csv"]),
        ("COPY data /srv/in", ["/srv/in/a.csv", "/srv/in/b.csv"]),
    ],
)
def test_copied_files_lie_where_docker_puts_them(context: Path, line: str, files: list[str]) -> None:
    recipe = read(context, FROM + line)
    assert recipe.problems == ()
    assert sorted(recipe.files) == files


def test_ignored_files_are_not_copied(context: Path) -> None:
    (context / ".dockerignore").write_text("data/a.csv\n**/*.sh\nDockerfile\n.dockerignore\n!data/b.csv\n")
    assert sorted(read(context, FROM + "COPY . /root/").files) == [
        "/root/data/b.csv",
        "/root/more.txt",
        "/root/requirements.txt",
    ]


def test_modes_say_what_may_be_executed(context: Path) -> None:
    recipe = read(
        context, FROM + "COPY --chmod=755 data/a.csv run.sh /root/\nRUN chmod a-x /root/run.sh && chmod -R 777 /root"
    )
    assert recipe.executables == {"/root/a.csv", "/root/run.sh"}
    assert read(context, FROM + "COPY run.sh /root/\nRUN chmod 644 /root/run.sh").executables == frozenset()


def test_variables_are_set_as_docker_sets_them(context: Path) -> None:
    text = 'ARG V=1\nENV A=$V B="two words" \\\n    C=${UNSET:-c}\nENV D older form\nENV A=2 E=$A PATH=/x:$PATH\n'
    recipe = read(context, FROM + text)
    assert recipe.env == {"A": "2", "B": "two words", "C": "c", "D": "older form", "E": "1"}
    assert "variable PATH is not set: it is the sandbox's own" in recipe.notes


@pytest.mark.parametrize(
    ("command", "wanted"),
    [
        ("pip install six==1.16.0", ["six==1.16.0"]),
        ('pip3 install --no-cache-dir -q "numpy>=2,<3" scipy', ["numpy>=2,<3", "scipy"]),
        ("python3 -m pip install -U 'x[y]~=1.0; python_version>\"3\"'", ['x[y]~=1.0; python_version>"3"']),
        ("uv pip install --system six", ["six"]),
        ("pip install --no-cache-dir --upgrade pip && pip install six && rm -rf /root/.cache", ["six"]),
        ("set -eux; pip install --timeout 60 --root-user-action=ignore six", ["six"]),
        ('["pip", "install", "six"]', ["six"]),
        ("--mount=type=cache,target=/root/.cache pip install six", ["six"]),
        ("apt-get update && apt-get clean && pip install six", ["six"]),
        ("cd /tmp && pip install six && true", ["six"]),
    ],
)
def test_pip_in_any_spelling_becomes_requirements(context: Path, command: str, wanted: list[str]) -> None:
    recipe = read(context, f"{FROM}RUN {command}")
    assert recipe.problems == ()
    assert list(recipe.requirements) == wanted


def test_requirements_files_are_read_from_the_image_and_indexes_left_out(context: Path) -> None:
    text = "WORKDIR /b\nCOPY *.txt /tmp/\nRUN pip install -i https://y -r /tmp/requirements.txt six"
    recipe = read(context, FROM + text)
    assert recipe.problems == ()
    assert list(recipe.requirements) == ["scipy==1.11.*", "numpy>=2", "six"]
    assert "--index-url is not used: packages come from this machine's index" in recipe.notes
    assert recipe.files == {}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (FROM + "RUN apt-get update && apt-get install -y git", "line 2: RUN apt-get install -y git"),
        (FROM + "RUN pip install six && make && pip install x", "line 2: RUN make"),
        (FROM + "RUN curl https://x | sh", "line 2: RUN '|' in a command"),
        (FROM + "RUN pip install numpy>=2", "line 2: RUN '>' in a command"),
        (FROM + "RUN pip install $(cat x)", "line 2: RUN a substitution"),
        (FROM + "RUN pip install git+https://x/y", "line 2: RUN installs 'git+https://x/y'"),
        (FROM + "RUN pip install -e .", "line 2: RUN pip install -e"),
        (FROM + "RUN pip install ./pkg", "line 2: RUN installs './pkg'"),
        (FROM + "RUN pip install -r nowhere.txt", "line 2: RUN pip install -r nowhere.txt: expected a file"),
        (FROM + "RUN pip install 'six", "line 2: RUN a command line that does not parse"),
        (FROM + "\nCOPY --from=build /x /y", "line 3: COPY --from=build"),
        (FROM + "COPY missing /root/", "line 2: COPY copies 'missing', which is not in the build context"),
        (FROM + "COPY ../up /root/", "line 2: COPY copies '../up' from outside the build context"),
        (FROM + "COPY run.sh /usr/local/bin/", "line 2: COPY writes to /usr/local/bin/run.sh"),
        (FROM + "COPY run.sh /run.sh", "line 2: COPY writes /run.sh beside the system's folders"),
        (FROM + "COPY run.sh /verifier/test.sh", "line 2: COPY writes to /verifier/test.sh"),
        (FROM + "ADD https://x/y /root/", "line 2: ADD https://x/y: a download"),
        (FROM + "ADD a.tar.gz /root/", "line 2: ADD a.tar.gz: an archive to unpack"),
        (FROM + FROM, "line 2: FROM python:3.11-slim: a build of several stages"),
        ("FROM nvidia/cuda:12.4", "line 1: FROM the image nvidia/cuda:12.4"),
        (FROM + "ONBUILD RUN x", "line 2: ONBUILD RUN x"),
        (FROM + "RUN <<EOF\npip install six\nEOF", "line 2: RUN a substitution or a here-document"),
    ],
)
def test_what_needs_an_engine_is_named_with_its_line_and_points_to_docker(
    context: Path, text: str, problem: str
) -> None:
    recipe = read(context, text)
    assert recipe.problems[0].startswith(problem)
    with pytest.raises(TaskError, match=r"Dockerfile: the local sandbox cannot build .*; use the Docker backend"):
        recipe.check(context / "Dockerfile")


def test_every_problem_is_told_at_once(context: Path) -> None:
    recipe = read(context, FROM + "RUN make\nRUN apt-get install x && cargo build\nADD https://x /root/")
    assert [problem.split(":")[0] for problem in recipe.problems] == ["line 2", "line 3", "line 4"]
    assert "apt-get install x, cargo build" in recipe.problems[1]


def test_a_link_out_of_the_context_is_not_followed(context: Path) -> None:
    (context / "passwd").symlink_to("/etc/passwd")
    recipe = read(context, FROM + "COPY passwd /root/")
    assert recipe.files == {}
    assert "a link that leads out of the build context" in recipe.problems[0]


def test_the_image_is_told_of_and_its_python_compared() -> None:
    own = platform.python_version()
    note, problem = describe_image("docker.io/library/python:2.7-slim")
    assert problem == ""
    assert note.endswith(f"its Python 2.7 is replaced by {own}")
    minor = ".".join(own.split(".")[:2])
    for same in (f"python:{minor}-slim-bookworm", "python:3", "python", "python:latest"):
        assert describe_image(same)[0].endswith(f"Python is {own}")
    for system in ("ubuntu:24.04", "debian:bookworm-slim", "ubuntu@sha256:" + "0" * 64):
        assert describe_image(system)[0].startswith(f"image {system} is not used")


@given(
    st.lists(
        st.sampled_from(["RUN ", "COPY ", "ENV ", "FROM ", "ADD ", "ARG ", "WORKDIR ", "\\\n", "pip install "])
        | st.text(max_size=12)
    ).map("".join)
)
def test_no_text_makes_the_reader_fail(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    folder = tmp_path_factory.mktemp("context")
    (folder / "Dockerfile").write_bytes(text.encode("utf-8", "replace"))
    assert isinstance(read_dockerfile(folder / "Dockerfile"), Recipe)
