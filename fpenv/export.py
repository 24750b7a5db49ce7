"""Writes one instance of a task as a package that others can run: the official layout, or Harbor's.

The instance's inputs are baked into the environment and its references into the verifier. Where the mount
points of the two layouts differ, paths in the scripts are rewritten (`/verifier` <-> `/tests`, `/oracle` <->
`/solution`). What neither format has a place for stays behind and is listed: instruments, evidence checks,
literature, cases and further instances.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal, get_args

import tomli_w
import yaml

from fpenv.errors import ConfigError
from fpenv.instance import Instance
from fpenv.package.layout import RUBRICS, Layout
from fpenv.store import check_name, read_files
from fpenv.task import Task

Format = Literal["harbor", "benchflow"]
FORMATS = get_args(Format)
BAKED = "fpenv-inputs"
_LAYOUTS: Mapping[Format, Layout] = {"benchflow": Layout(), "harbor": Layout("tests", "solution")}
_LEFT_BEHIND = {
    "instruments.py": "instruments: `lab` and the instrument tool do not exist outside of fpenv",
    "literature.json": "literature: the search tool does not exist outside of fpenv",
    "evidence.py": "evidence checks: the rubric needs another reviewer",
    "instance.py": "further instances: this package holds one",
    "cases": "cases",
    "expected.json": "recorded test ids",
}


@dataclass(frozen=True)
class Exported:
    """Where the package lies, and what it lost on the way."""

    path: Path
    losses: tuple[str, ...]


def export_task(instance: Instance, to: Path, form: Format) -> Exported:
    """Write the package into `to`, a new or empty folder. Raises ConfigError, TaskError."""
    if form not in FORMATS:
        raise ConfigError(f"format: expected one of {', '.join(FORMATS)}, got {form!r}")
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise ConfigError(f"{to}: expected a new or empty folder for the package, found files in it")
    files = _files(instance, _LAYOUTS[form])
    files |= _sheet(instance.task, form)
    for name, (content, executable) in sorted(files.items()):
        path = to / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        path.chmod(0o755 if executable else 0o644)
    task = instance.task
    losses = [text for name, text in _LEFT_BEHIND.items() if (task.path / name).exists()]
    return Exported(to, tuple(losses))


_Files = dict[str, tuple[bytes, bool]]


def _files(instance: Instance, layout: Layout) -> _Files:
    task = instance.task
    renamed = {
        task.layout.verifier_mount: layout.verifier_mount,
        task.layout.oracle_mount: layout.oracle_mount,
    }
    verifier = _below(layout.verifier, task.verifier, renamed)
    if instance.parts.references:
        content = json.dumps(dict(instance.parts.references), sort_keys=True, indent=1) + "\n"
        verifier[f"{layout.verifier}/references.json"] = (content.encode(), False)
    rubric = next((task.path / name for name in RUBRICS if (task.path / name).is_file()), None)
    if rubric is not None:
        verifier[f"{layout.verifier}/rubric.json"] = (rubric.read_bytes(), False)
    return {**_environment(instance), **verifier, **_below(layout.oracle, task.oracle, renamed)}


def _environment(instance: Instance) -> _Files:
    """The environment, with the instance's inputs copied in at the end of its Dockerfile."""
    task = instance.task
    files = _below("environment", task.path / "environment", {})
    dockerfile = files.get("environment/Dockerfile", (b"FROM python:3.11-slim\nWORKDIR /root\n", False))[0]
    baked = {n: data for n, data in instance.inputs.items() if task.image_inputs.get(n) != data}
    for name, data in baked.items():
        files[f"environment/{BAKED}/{check_name(name)}"] = (data, data.startswith(b"#!"))
    if baked:
        dockerfile = dockerfile.rstrip(b"\n") + f"\nCOPY {BAKED}/ {task.base.rstrip('/')}/\n".encode()
    if "environment/Dockerfile" not in files and "environment/requirements.txt" in files:
        dockerfile += b"COPY requirements.txt /tmp/requirements.txt\nRUN pip install -r /tmp/requirements.txt\n"
    files["environment/Dockerfile"] = (dockerfile, False)
    return files


def _below(name: str, folder: Path, renamed: Mapping[str, str]) -> _Files:
    """A folder's files under a new name, with the mount points in its texts renamed."""
    found: _Files = {}
    for relative, content in read_files(folder).items() if folder.is_dir() else ():
        if "__pycache__" in PurePosixPath(relative).parts:
            continue
        executable = bool((folder / relative).stat().st_mode & 0o100)
        found[f"{name}/{relative}"] = (_rename(content, renamed), executable)
    return found


def _rename(content: bytes, renamed: Mapping[str, str]) -> bytes:
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        return content
    changed = {old: new for old, new in renamed.items() if old != new}
    if not changed or "\0" in text:
        return content
    mounts = re.compile(rf"(?<![\w./~-])({'|'.join(map(re.escape, changed))})(?![\w.-])")
    return mounts.sub(lambda match: changed[match[1]], text).encode()


def _sheet(task: Task, form: Format) -> _Files:
    """The settings and the prompt, in the format's own files."""
    settings = _settings(task)
    if form == "benchflow":
        front = yaml.safe_dump(settings, sort_keys=False, allow_unicode=True, width=120)
        return {"task.md": (f"---\n{front}---\n{task.prompt}".encode(), False)}
    settings["environment"] = settings.pop("sandbox")
    if "oracle" in settings:
        settings["solution"] = settings.pop("oracle")
    settings["artifacts"] = [task.absolute(name) + "/" * name.endswith("/") for name in task.deliverables]
    return {
        "task.toml": (tomli_w.dumps(settings).encode(), False),
        "instruction.md": (task.prompt.encode(), False),
    }


def _settings(task: Task) -> dict[str, Any]:
    """What the package said, with what fpenv assumed where it said nothing that others need."""
    settings: dict[str, Any] = _plain(task.front.model_dump(mode="json", exclude_unset=True))
    box = task.front.sandbox
    assumed = {"cpus": box.cpus, "memory_mb": box.memory_mb, "storage_mb": box.storage_mb}
    whole = {key: int(value) if float(value).is_integer() else value for key, value in assumed.items()}
    settings["schema_version"] = "1.3"
    settings["verifier"] = {**settings.get("verifier", {}), "timeout_sec": task.verifier_timeout_s}
    settings["agent"] = {**settings.get("agent", {}), "timeout_sec": task.time_limit_s}
    settings["sandbox"] = {**settings.get("sandbox", {}), **whole}
    order = ("schema_version", "task", "metadata", "verifier", "agent", "sandbox")
    return {key: settings[key] for key in (*order, *settings) if key in settings}


def _plain(value: Any) -> Any:
    """Without None, which TOML has no word for."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items() if item is not None}
    return [_plain(item) for item in value if item is not None] if isinstance(value, list) else value
