"""The action and observation spaces.

`gymnasium.spaces.Text` holds alphanumerics by default, and a charset of all Unicode costs seconds and 50 MB;
`UnicodeText` holds any text up to a length, compares by it, and samples printable ASCII.
"""

from __future__ import annotations

import string
from typing import Any

import numpy as np
from gymnasium import spaces

MAX_LEFT = 10**9
"""The largest budget of steps or seconds that an observation can show."""

_ASCII = string.ascii_letters + string.digits + string.punctuation + " "


class UnicodeText(spaces.Text):
    """Any `str` of at most `max_length` characters.

    >>> UnicodeText(8).contains("σ_mid → ½")
    False
    >>> UnicodeText(9).contains("σ_mid → ½")
    True
    """

    def __init__(self, max_length: int, *, seed: int | np.random.Generator | None = None) -> None:
        super().__init__(max_length, min_length=0, charset=_ASCII, seed=seed)

    def contains(self, x: Any) -> bool:
        return isinstance(x, str) and len(x) <= self.max_length

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        """A short ASCII text: what a random agent would type, not a megabyte of it."""
        if mask is not None or probability is not None:
            return super().sample(mask=mask) if probability is None else super().sample(probability=probability)
        length = int(self.np_random.integers(0, min(self.max_length, 64) + 1))
        return "".join(_ASCII[i] for i in self.np_random.integers(0, len(_ASCII), size=length))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UnicodeText) and self.max_length == other.max_length

    def __hash__(self) -> int:
        return hash((UnicodeText, self.max_length))

    def __repr__(self) -> str:
        return f"UnicodeText({self.max_length})"


def action_space() -> spaces.Dict:
    """A tool's name and its arguments as JSON text."""
    return spaces.Dict({"tool": UnicodeText(80), "arguments": UnicodeText(4 << 20)})


def observation_space() -> spaces.Dict:
    """The tool's output, whether it failed, and what is left: steps, seconds, instrument shots (arrays of shape (1,)).

    Shots may go below zero: overspending is possible, and is recorded.
    """
    return spaces.Dict(
        {
            "output": UnicodeText(4 << 20),
            "failed": spaces.Discrete(2),
            "steps_left": spaces.Box(0, MAX_LEFT, shape=(1,), dtype=np.int64),
            "seconds_left": spaces.Box(0, MAX_LEFT, shape=(1,), dtype=np.int64),
            "shots_left": spaces.Box(-(10**12), 10**12, shape=(1,), dtype=np.int64),
        }
    )
