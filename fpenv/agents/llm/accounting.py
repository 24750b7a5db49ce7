"""Tokens and money: what each call took, and where each figure comes from.

A figure is the provider's own count where it sent one, else an estimate (characters over four, scaled by
what the provider counted before); the two are never mixed without saying so.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from fpenv.agents.llm.exchange import Message, Reply, Request
from fpenv.errors import ConfigError
from fpenv.records import Record

CHARS_PER_TOKEN = 4.0
"""English text and code in common byte-pair vocabularies: 3.5 to 4.5. Only a first guess; see Estimator."""
TOKENS_PER_MESSAGE = 4
Source = Literal["provider", "estimate"]


class Price(Record):
    """US dollars per million tokens. Without a price of its own a cached token costs what any prompt token does."""

    prompt_usd_per_million: float = Field(ge=0)
    completion_usd_per_million: float = Field(ge=0)
    cached_usd_per_million: float | None = Field(default=None, ge=0)


class Tokens(Record):
    """What one call took. Cost is None without a price."""

    prompt_tokens: int
    completion_tokens: int
    source: Source
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None
    cost_usd: float | None = None


class Totals(Record):
    """Sums over an episode. `estimated_calls` of `calls` rest on an estimate; cost is None if any is unknown."""

    calls: int
    estimated_calls: int
    prompt_tokens: int
    completion_tokens: int
    cost_usd: float | None


def load_prices(file: Path) -> dict[str, Price]:
    """Read a price table: a JSON object, model -> Price. Raises ConfigError."""
    try:
        return TypeAdapter(dict[str, Price]).validate_json(file.read_bytes())
    except OSError as error:
        raise ConfigError(f"{file}: expected a price table, got {error.strerror}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "file"
        raise ConfigError(f"{file}: {where}: {first['msg']}; expected model -> prompt_usd_per_million, ...") from error


class Estimator:
    """Guesses a prompt's tokens, and learns its scale from the provider's counts."""

    def __init__(self) -> None:
        self._scale = 1.0

    def prompt(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> int:
        return round(self._scale * _guess(messages, tools))

    def learn(self, request: Request, prompt_tokens: int) -> None:
        """Take the provider's count of a prompt; a scale outside [1/4, 4] is taken for a miscount."""
        guess = _guess(request.messages, request.tools)
        self._scale = min(4.0, max(0.25, prompt_tokens / guess)) if prompt_tokens > 0 else self._scale


def account(request: Request, reply: Reply, estimator: Estimator, price: Price | None) -> Tokens:
    """Count a call."""
    usage = reply.usage
    if usage is None:
        written = reply.text + reply.reasoning + reply.refusal + "".join(c.tool + c.arguments for c in reply.calls)
        prompt, completion = estimator.prompt(request.messages, request.tools), round(len(written) / CHARS_PER_TOKEN)
        cost = cost_usd(price, prompt, completion, 0)
        return Tokens(prompt_tokens=prompt, completion_tokens=completion, source="estimate", cost_usd=cost)
    return Tokens(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        source="provider",
        cached_tokens=usage.cached_tokens,
        reasoning_tokens=usage.reasoning_tokens,
        cost_usd=cost_usd(price, usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens or 0),
    )


def cost_usd(price: Price | None, prompt: int, completion: int, cached: int) -> float | None:
    """Return what the tokens cost; `cached` of the prompt tokens at their own price."""
    if price is None:
        return None
    own = price.cached_usd_per_million
    cached = min(cached, prompt) if own is not None else 0
    dollars = (prompt - cached) * price.prompt_usd_per_million + completion * price.completion_usd_per_million
    return (dollars + cached * (own or 0.0)) / 1e6


def total(calls: Iterable[Tokens]) -> Totals:
    """Sum the calls of an episode."""
    every = list(calls)
    costs = [tokens.cost_usd for tokens in every if tokens.cost_usd is not None]
    return Totals(
        calls=len(every),
        estimated_calls=sum(tokens.source == "estimate" for tokens in every),
        prompt_tokens=sum(tokens.prompt_tokens for tokens in every),
        completion_tokens=sum(tokens.completion_tokens for tokens in every),
        cost_usd=sum(costs) if len(costs) == len(every) and every else None,
    )


def _guess(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> float:
    """Unscaled tokens of a prompt, at least 1."""
    chars = sum(len(str(m.get("content") or "")) for m in messages)
    chars += sum(len(json.dumps(m["tool_calls"])) for m in messages if m.get("tool_calls"))
    chars += len(json.dumps(list(tools))) if tools else 0
    return max(1.0, chars / CHARS_PER_TOKEN + TOKENS_PER_MESSAGE * len(messages))
