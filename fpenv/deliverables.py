"""What an episode hands in: the files that the package names, or, where it names none, all that is new.

"All that is new" is every regular file below the task's search folders that was not handed out as an input,
shallow ones first: at most 500 files, 12 folders deep, 64 MiB together; never hidden files and folders,
`__pycache__`, `node_modules` or `site-packages`. What goes beyond is refused by name. An input that was changed
is not handed in: name it in `metadata.deliverables` where changing it is the task.
"""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Iterable, Mapping

from fpenv.errors import ConfigError
from fpenv.sandbox.sandbox import Collected, Sandbox
from fpenv.store import check_name
from fpenv.task import Task
from fpenv.untrusted import show

MAX_FILES = 500
MAX_DEPTH = 12
MAX_BYTES = 64 << 20
SEARCH_TIMEOUT_S = 30.0
_LISTING_BYTES = 4 << 20
_SKIPPED = ("__pycache__", "node_modules", "site-packages")


def hand_in(sandbox: Sandbox, task: Task, inputs: Iterable[str]) -> Collected:
    """Collect an episode's deliverables; the sandbox can do nothing afterwards. Raises SandboxError.

    Names are relative to `task.base`, as those of `inputs` are.
    """
    named = [name for name in task.deliverables if not name.endswith("/")]
    folders = [task.absolute(name) for name in task.deliverables if name.endswith("/")]
    if not task.deliverables:
        folders = list(task.search_folders)
    found, refused = _search(sandbox, task, folders) if folders else ([], {})
    for name in [name for name in found if _collides(name, inputs)]:
        found.remove(name)
        refused[name] = "stands where an input was handed out"
    names = dict.fromkeys([*named, *(name for name in found if name not in set(inputs))])
    paths = {task.absolute(name): name for name in names}
    collected = sandbox.collect(list(paths), max_bytes=MAX_BYTES)
    files = {paths[path]: content for path, content in collected.files.items()}
    return Collected(files, {**refused, **{paths[path]: why for path, why in collected.refused.items()}})


def select(files: Mapping[str, bytes], task: Task, inputs: Iterable[str]) -> Collected:
    """Choose, from files that lie on the host, what the task would have been handed."""
    named = [name for name in task.deliverables if not name.endswith("/")]
    folders = tuple(name for name in task.deliverables if name.endswith("/"))
    handed_out = set(inputs)
    taken = {
        name: content
        for name, content in files.items()
        if name in named or name.startswith(folders) or (not task.deliverables and name not in handed_out)
    }
    return Collected(taken, {name: "does not exist" for name in named if name not in taken})


def _search(sandbox: Sandbox, task: Task, folders: list[str]) -> tuple[list[str], dict[str, str]]:
    """Names of the regular files below folders, and why others are left. The listing is the agent's: data."""
    skipped = " -o ".join(f"-name {shlex.quote(name)}" for name in (".*", *_SKIPPED))
    places = " ".join(map(shlex.quote, folders))
    command = (
        f"exec /usr/bin/find {places} -mindepth 1 -maxdepth {MAX_DEPTH} -xdev "
        f"\\( {skipped} \\) -prune -o -type f -printf '%d %p\\0'"
    )
    done = sandbox.exec(("/bin/sh", "-c", command), timeout_s=SEARCH_TIMEOUT_S, cwd="/", output_limit=_LISTING_BYTES)
    if done.exit_code not in (0, 1):  # the agent's doing: a sandbox that was lost would have raised
        how = "took too long" if done.timed_out else f"ended with {done.exit_code}"
        return [], {f"{folder}/": f"listing its files {how}" for folder in folders}
    listed = done.stdout[: done.stdout_head] if done.stdout_cut else done.stdout
    entries = [entry.partition(b" ") for entry in listed.split(b"\0")[:-1]]
    found: list[str] = []
    refused: dict[str, str] = {}
    for _, path in sorted({(int(depth), path) for depth, _, path in entries if depth.isdigit()}):
        name = _name(path, task)
        if name is None:
            refused[show(path.decode("utf-8", "backslashreplace"), 200)] = "its name is not plain text"
        elif len(found) >= MAX_FILES:
            refused[name] = f"more than {MAX_FILES} files"
        else:
            found.append(name)
        if len(refused) >= MAX_FILES:
            break
    return found, refused


def _collides(name: str, inputs: Iterable[str]) -> bool:
    """Whether a file of that name and an input cannot both be: one would be a folder of the other's path."""
    return any(given.startswith(f"{name}/") or name.startswith(f"{given}/") for given in inputs)


def _name(path: bytes, task: Task) -> str | None:
    try:
        absolute = posixpath.normpath(path.decode("utf-8"))
        return check_name(task.relative(absolute))
    except (ConfigError, ValueError):
        return None
