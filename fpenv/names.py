"""Which tasks come with fpenv, and their names: light, because importing fpenv asks for it."""

from __future__ import annotations

from pathlib import Path

NAMESPACE = "FrontierPhysics"


def tasks_root() -> Path:
    """The folder of the tasks that come with fpenv: inside the wheel, or beside the package in a checkout."""
    here = Path(__file__).resolve().parent
    installed = here / "_tasks"
    return installed if installed.is_dir() else here.parent / "tasks"


def package_folders(folder: Path) -> list[Path]:
    """Folders of task packages right below a folder, sorted; hidden ones are passed over."""
    found = (f for f in folder.iterdir() if f.is_dir() and not f.name.startswith("."))
    return sorted(f for f in found if (f / "task.md").is_file() or (f / "task.toml").is_file())


def list_tasks() -> list[str]:
    """Names of the tasks that come with fpenv, sorted."""
    root = tasks_root()
    return sorted(f.parent.name for f in root.glob("*/task.md")) if root.is_dir() else []
