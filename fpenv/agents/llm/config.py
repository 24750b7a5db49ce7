"""What an LLM agent is told: the model, where it is, and the limits of talking to it. No key is in here."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args
from urllib.parse import urlsplit

from fpenv.agents.llm.accounting import Price
from fpenv.errors import ConfigError

OPENAI_URL = "https://api.openai.com/v1"
ActionForm = Literal["tools", "text"]


@dataclass(frozen=True)
class RetryPolicy:
    """When a provider's transient fault is tried again. Retry-After is honoured up to `patience_s`."""

    attempts: int = 6
    first_wait_s: float = 1.0
    longest_wait_s: float = 60.0
    patience_s: float = 300.0

    def __post_init__(self) -> None:
        _whole("retries.attempts", self.attempts)
        for name in ("first_wait_s", "longest_wait_s", "patience_s"):
            _seconds(f"retries.{name}", getattr(self, name))


@dataclass(frozen=True)
class LlmConfig:
    """How a model plays.

    Args:
        model: the provider's name of it.
        base_url: where the OpenAI protocol is spoken, without user, password or query.
        api_key_env: name of the environment variable that holds the key; None sends none.
        protocol: "tools" (the provider's tool calls) or "text" (JSON in the reply's text).
        options: further fields of each request's body, such as temperature or seed.
        max_reply_tokens: where the provider cuts a reply; None for the provider's own.
        context_tokens: prompts longer than this are compacted.
        silence_s: seconds without a sign of an answer after which an attempt counts as hung.
        patience_replies: replies in a row without an action after which the agent submits what is there.
        warn_steps, warn_seconds: the last warning comes when no more than this is left.
        price: for the cost of each call; None leaves the cost unknown.
    """

    model: str
    base_url: str = OPENAI_URL
    api_key_env: str | None = None
    protocol: ActionForm = "tools"
    options: Mapping[str, Any] = field(default_factory=dict)
    max_reply_tokens: int | None = 16_384
    context_tokens: int = 100_000
    silence_s: float = 300.0
    patience_replies: int = 3
    warn_steps: int = 5
    warn_seconds: float = 180.0
    retries: RetryPolicy = field(default_factory=RetryPolicy)
    price: Price | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.model, str) or not self.model.strip():
            raise ConfigError(f"model: expected the provider's name of a model, got {self.model!r}")
        if self.protocol not in get_args(ActionForm):
            raise ConfigError(f"protocol: expected 'tools' or 'text', got {self.protocol!r}")
        _check_url(self.base_url)
        for name in ("context_tokens", "patience_replies", "warn_steps"):
            _whole(name, getattr(self, name))
        if self.max_reply_tokens is not None:
            _whole("max_reply_tokens", self.max_reply_tokens)
        try:
            json.dumps(dict(self.options), allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"options: expected fields of a JSON body, got something else: {error}") from None
        _seconds("silence_s", self.silence_s)
        _seconds("warn_seconds", self.warn_seconds)


def _check_url(url: str) -> None:
    """Refuse what may hold a credential, without showing it."""
    try:
        parts = urlsplit(url)
        port_is_plain = parts.port is None or parts.port > 0
    except ValueError:
        raise ConfigError("base_url: expected an http or https URL, got one that does not parse") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or not port_is_plain:
        raise ConfigError("base_url: expected an http or https URL such as http://127.0.0.1:8000/v1, got another form")
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        raise ConfigError(
            "base_url: expected no user, password, query or fragment in it, got one (not shown); "
            "put the key into an environment variable and name that with api_key_env"
        )


def _whole(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{name}: expected an integer >= 1, got {value!r}")


def _seconds(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        raise ConfigError(f"{name}: expected seconds > 0, got {value!r}")
