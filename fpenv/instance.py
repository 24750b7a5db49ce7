"""One seeded realisation of a task: inputs for the agent, hidden references, hidden instrument parameters.

A task's `instance.py` defines `make_instance(rng) -> InstanceParts`, with `rng` None for the canonical
instance (the benchmark) and a `numpy.random.Generator` for a training seed. Same seed, same bytes.
A task without `instance.py` has the canonical instance only. What a task's Dockerfile copies is handed out
with every instance; an instance's own file of the same name wins.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fpenv.errors import ConfigError, TaskError
from fpenv.instruments.bench import Bench
from fpenv.sandbox.image_layer import HOME
from fpenv.task import Task

CANONICAL = "canonical"
MAX_SEED_DIGITS = 100
"""A seed names folders; Gymnasium's own seeds are below 2**128."""


@dataclass(frozen=True)
class InstanceParts:
    """What a task's `make_instance` returns.

    inputs: path relative to the task's `base` (/root) -> bytes, laid before the agent.
    references: JSON-able, hidden; becomes `references.json` in the verifier's folder.
    instruments: instrument name -> hidden parameters for the task's `instruments.build`.
    """

    inputs: Mapping[str, bytes]
    references: Mapping[str, Any] = field(default_factory=dict)
    instruments: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Instance:
    """A task made concrete. `name` is `canonical` or the seed as text."""

    task: Task
    name: str
    parts: InstanceParts

    @property
    def inputs(self) -> dict[str, bytes]:
        """All that is handed out, path relative to `task.base` -> bytes: environment, instance and proposal."""
        files = {**self.task.image_inputs, **self.parts.inputs}
        proposal = self.task.path / "proposal.pdf"
        if proposal.is_file():
            files.setdefault(self.task.relative(f"{HOME}/proposal.pdf"), proposal.read_bytes())
        return files

    def bench(self) -> Bench:
        """Set up the instruments afresh. Their noise depends on the task, the instance and the call's number."""
        module = self.task.module("instruments.py")
        devices = module.build(self.parts.instruments) if module else ()
        return Bench(devices, seed=_seed(self.task.name, self.name, "noise"))


def make_instance(task: Task, seed: int | str | None = None) -> Instance:
    """Make instance `seed` of a task; None or "canonical" is the benchmark's. Deterministic, byte for byte.

    Raises ConfigError for a seed that is none, TaskError where the task's own code fails.
    """
    name = _instance_name(seed)
    module = task.module("instance.py")
    if module is None:
        if name != CANONICAL:
            raise ConfigError(f"task {task.name} has no instance.py: expected instance 'canonical', got {name}")
        return Instance(task, name, InstanceParts(inputs={}))
    rng = None if name == CANONICAL else np.random.default_rng(_seed(task.name, name, "instance"))
    try:
        parts = module.make_instance(rng)
    except Exception as error:
        raise TaskError(
            f"{task.path}/instance.py: make_instance for instance {name} raised {type(error).__name__}: {error}"
        ) from error
    return Instance(task, name, parts)


def _instance_name(seed: object) -> str:
    if seed is None or seed == CANONICAL:
        return CANONICAL
    if isinstance(seed, str) and seed.isascii() and seed.isdecimal():
        if len(seed) > MAX_SEED_DIGITS:
            raise ConfigError(f"expected a seed of at most {MAX_SEED_DIGITS} digits, got {len(seed)} of them")
        seed = int(seed)
    if isinstance(seed, int | np.integer) and not isinstance(seed, bool) and seed >= 0:
        if seed >= 10**MAX_SEED_DIGITS:
            raise ConfigError(f"expected a seed of at most {MAX_SEED_DIGITS} digits, got one of more")
        return str(int(seed))
    raise ConfigError(f"expected an instance: 'canonical' or a seed >= 0, got {seed!r}")


def _seed(*parts: str) -> int:
    return int.from_bytes(hashlib.sha256("\0".join(parts).encode()).digest()[:16], "big")
