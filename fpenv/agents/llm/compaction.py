"""Keeps a long conversation within a budget of tokens by dropping from its oldest end, and says what it dropped.

The brief and the last turns stay. First the oldest results are shortened to their head and tail, then the
oldest turns are removed whole, then the results of the last turns are shortened too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from fpenv.agents.llm.conversation import Turn
from fpenv.agents.llm.exchange import Message
from fpenv.records import Record

KEEP_TURNS = 4
SHORT_CHARS = 400
LAST_CHARS = 4000
AIM = 0.7
"""A compacted conversation fills this share of the budget: room to go on, so that prompts stay cacheable."""


class Dropped(Record):
    """One turn (counted from 1 over the episode) and how many characters went."""

    turn: int
    how: Literal["shortened", "removed"]
    chars: int


@dataclass(frozen=True)
class History:
    """The turns still held; `removed` came before them and are gone."""

    turns: tuple[Turn, ...] = ()
    removed: int = 0

    def messages(self, opening: Sequence[Message]) -> list[Message]:
        """The whole prompt."""
        first = list(opening)
        if self.removed:
            note = f"\n\n[The {self.removed} oldest turns of this conversation were removed to save space.]"
            first[-1] = {**first[-1], "content": first[-1]["content"] + note}
        return first + [message for turn in self.turns for message in (turn.said, *turn.answers)]


def compact(
    opening: Sequence[Message], history: History, budget: int, count: Callable[[list[Message]], int]
) -> tuple[History, tuple[Dropped, ...]]:
    """Return the history itself if it fits, else one that fits as well as may be, and what was dropped."""
    if count(history.messages(opening)) <= budget:
        return history, ()
    turns, dropped = list(history.turns), list[Dropped]()
    aim, removed = budget * AIM, history.removed

    def fits() -> bool:
        return count(History(tuple(turns), removed).messages(opening)) <= aim

    def shorten(position: int, limit: int) -> None:
        short = Turn(turns[position].said, tuple(_shortened(m, limit) for m in turns[position].answers))
        gone = _chars(turns[position]) - _chars(short)
        if gone > 0:
            turns[position] = short
            dropped.append(Dropped(turn=removed + position + 1, how="shortened", chars=gone))

    for position in range(max(0, len(turns) - KEEP_TURNS)):
        if fits():
            break
        shorten(position, SHORT_CHARS)
    while len(turns) > KEEP_TURNS and not fits():
        removed += 1
        dropped.append(Dropped(turn=removed, how="removed", chars=_chars(turns.pop(0))))
    for position in range(len(turns)):
        if fits():
            break
        shorten(position, LAST_CHARS if position == len(turns) - 1 else SHORT_CHARS)
    while len(turns) > 1 and not fits():
        removed += 1
        dropped.append(Dropped(turn=removed, how="removed", chars=_chars(turns.pop(0))))
    return History(tuple(turns), removed), tuple(dropped)


def _shortened(message: Message, limit: int) -> Message:
    content = str(message["content"])
    cut = len(content) - limit
    if cut <= 100:
        return message
    half = limit // 2
    return {**message, "content": f"{content[:half]}\n[... {cut:,} characters dropped ...]\n{content[-half:]}"}


def _chars(turn: Turn) -> int:
    return sum(
        len(str(m.get("content") or "")) + len(str(m.get("tool_calls") or "")) for m in (turn.said, *turn.answers)
    )
