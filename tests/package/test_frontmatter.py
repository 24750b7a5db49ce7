"""Settings of packages: what is documented is typed, what is not is kept and named."""

import contextlib
import re
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from fpenv.errors import TaskError
from fpenv.package.frontmatter import read_settings, resolve_env
from fpenv.package.layout import read_sheet

FULL = """
schema_version: '1.3'
task: {name: lab/cart, description: A cart., authors: [{name: A, email: a@b.c}, B], keywords: [carts]}
metadata: {title: Cart, domain: Mechanics, subdomain: x, difficulty: hard, tags: [a], deliverables: [result.md]}
verifier: {type: test-script, timeout_sec: 60, env: {A: b}, user: root, pytest_plugins: [ctrf]}
agent: {timeout_sec: 100, user: root, network_mode: no-network, allowed_hosts: []}
sandbox: {cpus: 2, memory_mb: 4096, storage_mb: 100, gpus: 0, gpu_types: [], allow_internet: false, docker_image: 'x',
  build_timeout_sec: 10, network_mode: no-network, env: {N: 3}, workdir: /app, mcp_servers: [], skills_dir: null}
oracle: {env: {A: b}, timeout_sec: 5}
artifacts: [/app/out.txt]
steps: []
benchflow: {document_version: '0.6', anything: {goes: here}}
"""


def read(text: str):
    return read_settings(yaml.safe_load(text), "task.md")


def test_every_documented_field_is_known() -> None:
    front, notes = read(FULL)
    assert notes == ()
    assert front.sandbox.memory_mb == 4096
    assert front.sandbox.env == {"N": "3"}
    assert front.oracle.env == {"A": "b"}


def test_unknown_fields_are_kept_and_named_in_one_note() -> None:
    front, notes = read("colour: red\nsandbox: {rooms: 3}\nmetadata: {hint: x}\ntask: {authors: [{name: a}], age: 1}")
    assert front.model_extra == {"colour": "red"}
    assert front.sandbox.model_extra == {"rooms": 3}
    assert notes == ("fields not known here, kept and not used: colour, task.age, metadata.hint, sandbox.rooms",)


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("sandbox: {gpus: 2}", "sandbox.gpus: 2 asked for"),
        ("sandbox: {allow_internet: true}", "a network is asked for"),
        ("environment: {network_mode: public}", "a network is asked for"),
        ("verifier: {type: llm-judge}", "llm-judge is not run"),
        ("steps: [{name: a}]\nagent: {user: student}", "asked for and not done: agent.user, steps"),
    ],
)
def test_what_is_asked_for_and_not_done_is_named(text: str, note: str) -> None:
    assert any(note in found for found in read(text)[1])


def test_older_names_and_shorthands_mean_the_same() -> None:
    older, notes = read(
        "version: 1.0\nname: cart\nimage: python:3.11\nenvironment: {memory: 4G, storage: 512M}"
        "\nsolution: {env: {A: b}}\nverifier: verifier/"
    )
    assert notes == ()
    assert (older.schema_version, older.task.name, older.sandbox.docker_image) == ("1.0", "cart", "python:3.11")
    assert (older.sandbox.memory_mb, older.sandbox.storage_mb, older.oracle.env) == (4096, 512, {"A": "b"})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sandbox: {}\nenvironment: {}", "key environment: it is the older name of sandbox, expected one of them"),
        ("oracle: {}\nsolution: {}", "key solution: it is the older name of oracle"),
        ("verifier: elsewhere/", "key verifier: expected verifier/, got 'elsewhere/'"),
        ("sandbox: {memory: lots}", r"key sandbox\.memory: .* got 'lots'"),
        ("sandbox: {env: [a]}", r"key sandbox\.env: .*got \['a'\]"),
        ("sandbox: 3", "key sandbox: .*got 3"),
    ],
)
def test_a_wrong_setting_names_its_key(text: str, message: str) -> None:
    with pytest.raises(TaskError, match=rf"task\.md: frontmatter {message}"):
        read(text)


def test_an_agent_without_a_time_limit_gets_ours() -> None:
    assert read("agent: {timeout_sec: null}")[0].agent.timeout_sec == 36_000


def test_variables_have_defaults_filled_in_and_never_see_the_host() -> None:
    env, notes = resolve_env({"A": "${HOME:-/x}/y", "B": "${TOKEN}", "C": "plain"})
    assert env == {"A": "/x/y", "C": "plain"}
    assert notes == ("variable B is left out: it asks for the host's TOKEN",)


@given(st.text(max_size=200))
def test_no_text_makes_the_reader_fail_in_another_way(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    folder = tmp_path_factory.mktemp("package")
    (folder / "task.md").write_bytes(f"---\n{text}\n---\nprompt".encode("utf-8", "replace"))
    with contextlib.suppress(TaskError):
        read_settings(read_sheet(folder).settings, "task.md")


@pytest.mark.parametrize("body", ["Do it.", "## prompt\nDo it.\n\n## role:judge\nJudge it.", "\n\nDo it.\n\n"])
def test_the_prompt_is_the_body_or_its_prompt_section(tmp_path: Path, body: str) -> None:
    (tmp_path / "task.md").write_text(f"---\r\nagent: {{}}\r\n---\r\n{body}")
    assert read_sheet(tmp_path).prompt == "Do it.\n"


def test_headings_of_a_prompt_of_its_own_stay(tmp_path: Path) -> None:
    (tmp_path / "task.md").write_text("---\n---\n## Setting\nA lab.\n")
    assert re.search("## Setting\nA lab.", read_sheet(tmp_path).prompt)
