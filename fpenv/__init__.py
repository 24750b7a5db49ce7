"""FrontierPhysics research tasks as Gymnasium environments.

Importing fpenv registers `FrontierPhysics/<task>` for every task that comes with it, and `FrontierPhysics/task`
for a package anywhere: `gymnasium.make("fpenv:FrontierPhysics/task", path=FOLDER)`. It imports nothing heavy.
"""

from pathlib import Path

from gymnasium.envs.registration import register, registry
from gymnasium.error import Error

from fpenv.names import NAMESPACE, list_tasks, package_folders

__version__ = "0.1.0"
__all__ = ["NAMESPACE", "register_tasks"]

_ENTRY = "fpenv.env:FrontierPhysicsEnv"


def register_tasks(folder: str | Path, namespace: str | None = None, *, strict: bool = False) -> list[str]:
    """Give each task package right below a folder the Gymnasium id `NAMESPACE/NAME`, and return the ids, sorted.

    `namespace` is FrontierPhysics unless given. All packages are read first: one that cannot be, or a name that
    is taken by another folder, is an error that lists every such case, and nothing is registered. Doing it twice
    does no harm. strict: each package must match the registry.json above it. Holds for this process only.
    Raises ConfigError.
    """
    from fpenv.errors import ConfigError, TaskError
    from fpenv.task import load_task

    root = Path(folder).resolve()
    packages = package_folders(root) if root.is_dir() else []
    if not packages:
        raise ConfigError(f"{folder}: expected a folder of task packages (NAME/task.md or NAME/task.toml), found none")
    wanted: dict[str, Path] = {}
    wrong: list[str] = []
    for package in packages:
        gym_id = f"{namespace or NAMESPACE}/{package.name}"
        taken = _registered_path(gym_id)
        try:
            load_task(package, strict=strict)
        except TaskError as error:
            wrong.append(str(error))
        if taken is not None and taken != package:
            wrong.append(f"{gym_id} is taken already, by {taken}: expected another namespace for {package}")
        wanted[gym_id] = package
    if wrong:
        raise ConfigError(f"{folder}: {len(wrong)} packages cannot be registered: {'; '.join(wrong)}")
    for gym_id, package in wanted.items():
        if gym_id not in registry:
            try:
                register(gym_id, entry_point=_ENTRY, kwargs={"task": str(package)})
            except Error as error:
                raise ConfigError(f"{package}: expected a folder name that makes a Gymnasium id: {error}") from error
    return sorted(wanted)


def _registered_path(gym_id: str) -> Path | None:
    """The folder that an id plays, or None where it is free."""
    from fpenv.names import tasks_root

    if gym_id not in registry:
        return None
    task = str(registry[gym_id].kwargs.get("task", "any package, given path="))
    return tasks_root() / task if task in list_tasks() else Path(task)


def _register() -> None:
    for name in list_tasks():
        if f"{NAMESPACE}/{name}" not in registry:
            register(f"{NAMESPACE}/{name}", entry_point=_ENTRY, kwargs={"task": name})
    if f"{NAMESPACE}/task" not in registry:
        register(f"{NAMESPACE}/task", entry_point="fpenv.env:make_from_path")


_register()
