"""The settings of a package: the frontmatter of `task.md`, or the tables of Harbor's `task.toml`.

Every documented field is typed. A field that is not known is kept, and named in a note; so is one that is
known and asks for something that fpenv does not do. Defaults are the documented ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from fpenv.errors import TaskError

_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([KMGT]?)(?:I?B)?\s*", re.ASCII | re.IGNORECASE)
_MEBIBYTES = {"": 1 / (1 << 20), "K": 1 / 1024, "M": 1, "G": 1024, "T": 1 << 20}
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}", re.ASCII)


def _as_texts(value: Any) -> Any:
    """Variables whose values were written as numbers: `PORT: 80`."""
    if not isinstance(value, dict):
        return value
    return {name: str(v) if isinstance(v, int | float) else v for name, v in value.items()}


class _Section(BaseModel):
    """A part of the settings. Fields that are not known are kept, unread."""

    model_config = ConfigDict(frozen=True, extra="allow", populate_by_name=True)


class Author(_Section):
    name: str
    email: str | None = None


class Identity(_Section):
    """`task`: the package's name in a registry (`org/name`); fpenv calls a task by its folder."""

    name: str = ""
    description: str = ""
    authors: tuple[Author | str, ...] = ()
    keywords: tuple[str, ...] = ()


class Metadata(_Section):
    """Free-form by the standard. `deliverables` are relative to /root, or absolute; a final slash is a folder."""

    title: str = ""
    domain: str = ""
    deliverables: tuple[str, ...] = ()
    subdomain: str = ""
    category: str = ""
    subcategory: str = ""
    difficulty: str = ""
    difficulty_explanation: str = ""
    tags: tuple[str, ...] = ()
    keywords: tuple[str, ...] = ()
    author_name: str = ""
    author_email: str = ""
    author_organization: str = ""
    version: str | int | float = ""
    license: str = ""
    created: Any = None
    expert_time_estimate_min: float | None = None
    junior_time_estimate_min: float | None = None


class Phase(_Section):
    """What verifier, agent and oracle have in common."""

    timeout_sec: float | None = Field(default=None, gt=0)
    env: dict[str, str] = Field(default_factory=dict)
    user: str | int | None = None
    network_mode: str | None = None
    allowed_hosts: tuple[str, ...] = ()

    @field_validator("env", mode="before")
    @classmethod
    def _texts(cls, value: Any) -> Any:
        return _as_texts(value)


class VerifierSection(Phase):
    timeout_sec: float = Field(default=600, gt=0)
    type: str = "test-script"
    service: str | None = None
    judge: dict[str, Any] = Field(default_factory=dict)
    pytest_plugins: tuple[str, ...] = ()
    environment_mode: str | None = None
    environment: dict[str, Any] | None = None


class AgentSection(Phase):
    timeout_sec: float = Field(default=36_000, gt=0)

    @field_validator("timeout_sec", mode="before")
    @classmethod
    def _unset(cls, value: Any) -> Any:
        return 36_000 if value is None else value


class SandboxSection(_Section):
    cpus: float = Field(default=1, gt=0)
    memory_mb: int = Field(default=2048, gt=0, validation_alias=AliasChoices("memory_mb", "memory"))
    storage_mb: int = Field(default=10_240, gt=0, validation_alias=AliasChoices("storage_mb", "storage"))
    gpus: int = Field(default=0, ge=0)
    gpu_types: tuple[str, ...] | None = None
    allow_internet: bool | None = None
    network_mode: str | None = None
    allowed_hosts: tuple[str, ...] = ()
    build_timeout_sec: float = Field(default=600, gt=0)
    docker_image: str | None = None
    os: str = "linux"
    workdir: str | None = None
    env: dict[str, str] = Field(default_factory=dict)
    mcp_servers: tuple[dict[str, Any], ...] = ()
    skills_dir: str | None = None
    healthcheck: dict[str, Any] | None = None

    @field_validator("memory_mb", "storage_mb", mode="before")
    @classmethod
    def _size(cls, value: Any) -> Any:
        match = _SIZE.fullmatch(value) if isinstance(value, str) else None
        return round(float(match[1]) * _MEBIBYTES[match[2].upper()]) if match and match[2] else value

    @field_validator("env", mode="before")
    @classmethod
    def _texts(cls, value: Any) -> Any:
        return _as_texts(value)


class Frontmatter(_Section):
    schema_version: str = "1.3"
    task: Identity = Identity()
    metadata: Metadata = Metadata()
    verifier: VerifierSection = VerifierSection()
    agent: AgentSection = AgentSection()
    sandbox: SandboxSection = SandboxSection()
    oracle: Phase = Phase()
    source: Any = None
    artifacts: tuple[str | dict[str, Any], ...] = ()
    steps: tuple[Any, ...] = ()
    multi_step_reward_strategy: Any = None
    reward: Any = None
    agents: Any = None
    scenes: Any = None
    user: Any = None
    benchflow: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _version(cls, raw: Any) -> Any:
        if isinstance(raw, dict) and isinstance(raw.get("schema_version"), int | float):
            return {**raw, "schema_version": str(raw["schema_version"])}
        return raw


def read_settings(raw: Any, where: str) -> tuple[Frontmatter, tuple[str, ...]]:
    """Validate settings and return them with notes. Raises TaskError naming file and key."""
    if not isinstance(raw, dict):
        raise TaskError(f"{where}: expected a mapping in the frontmatter, got {type(raw).__name__}")
    try:
        front = Frontmatter.model_validate(_spell_out(raw, where))
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise TaskError(f"{where}: frontmatter key {key}: {first['msg']}, got {first['input']!r}") from error
    unknown = list(_unknown(front, ""))
    notes = [f"fields not known here, kept and not used: {', '.join(unknown)}"] if unknown else []
    return front, (*notes, *_not_done(front))


def resolve_env(env: Mapping[str, str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Fill in `${NAME:-default}`. The host's environment is never passed: `${NAME}` alone leaves a variable out."""
    found: dict[str, str] = {}
    notes = []
    for name, value in env.items():
        wanted = [match[1] for match in _VARIABLE.finditer(value) if match[2] is None]
        if wanted:
            notes.append(f"variable {name} is left out: it asks for the host's {', '.join(wanted)}")
        else:
            found[name] = _VARIABLE.sub(lambda match: match[2], value)
    return found, tuple(notes)


def _spell_out(raw: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Turn older names and documented shorthands into the fields they stand for."""
    full = {str(key): value for key, value in raw.items()}
    for older, name in (("environment", "sandbox"), ("solution", "oracle"), ("version", "schema_version")):
        if older in full and name in full:
            raise TaskError(f"{where}: frontmatter key {older}: it is the older name of {name}, expected one of them")
        if older in full:
            full[name] = full.pop(older)
    if isinstance(full.get("name"), str):
        full["task"] = {"name": full.pop("name"), **_mapping(full.get("task"))}
    if isinstance(full.get("image"), str):
        full["sandbox"] = {"docker_image": full.pop("image"), **_mapping(full.get("sandbox"))}
    for folder in ("verifier", "oracle"):
        if isinstance(full.get(folder), str):
            if full[folder].strip("./") not in (folder, ""):
                raise TaskError(f"{where}: frontmatter key {folder}: expected {folder}/, got {full[folder]!r}")
            del full[folder]
    return {key: value for key, value in full.items() if value is not None}


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _unknown(section: BaseModel, prefix: str) -> Iterator[str]:
    yield from (f"{prefix}{name}" for name in section.model_extra or {})
    for name in type(section).model_fields:
        value = getattr(section, name)
        if isinstance(value, BaseModel):
            yield from _unknown(value, f"{prefix}{name}.")


def _not_done(front: Frontmatter) -> Iterator[str]:
    """Name what the package asks for and will not get."""
    box = front.sandbox
    if box.gpus:
        yield f"sandbox.gpus: {box.gpus} asked for; the local sandbox has none"
    if box.os.lower() != "linux":
        yield f"sandbox.os: {box.os} asked for; sandboxes run Linux"
    if box.allow_internet or (box.network_mode or "no-network") not in ("no-network", "none"):
        yield "sandbox: a network is asked for; sandboxes have none"
    if front.verifier.type != "test-script":
        yield f"verifier.type: {front.verifier.type} is not run; verifier/test.sh is"
    unused = {
        "sandbox.mcp_servers": box.mcp_servers,
        "sandbox.skills_dir": box.skills_dir,
        "sandbox.healthcheck": box.healthcheck,
        "verifier.service": front.verifier.service,
        "verifier.environment": front.verifier.environment,
        "agent.user": front.agent.user,
        "verifier.user": front.verifier.user,
        "steps": front.steps,
        "agents": front.agents,
        "scenes": front.scenes,
        "user": front.user,
    }
    asked = [name for name, value in unused.items() if value not in (None, (), {}, [], "root", 0, "")]
    if asked:
        yield f"asked for and not done: {', '.join(asked)}"
