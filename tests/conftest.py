"""Shared: a tiny but complete task package, and environments over it that are always closed."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fpenv.env import FrontierPhysicsEnv

COIN = Path(__file__).parent / "packages" / "coin"


@pytest.fixture
def make_env() -> Iterator[Callable[..., FrontierPhysicsEnv]]:
    made: list[FrontierPhysicsEnv] = []

    def make(**settings: Any) -> FrontierPhysicsEnv:
        made.append(FrontierPhysicsEnv(settings.pop("task", COIN), **settings))
        return made[-1]

    yield make
    for env in made:
        env.close()
