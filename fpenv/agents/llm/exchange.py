"""What goes to a model, and what comes back: one request, then a reply or a fault. Nothing here does anything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from fpenv.records import Record

Message = dict[str, Any]
"""A message as the API has it: role, content, tool_calls, tool_call_id."""


class ToolCall(Record):
    """A call that the model wrote. `arguments` is its own text, valid JSON or not."""

    call_id: str
    tool: str
    arguments: str


class Usage(Record):
    """Tokens as the provider counted them."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None


class Reply(Record):
    """A whole answer. `finish_reason` is the provider's word: stop, tool_calls, length, content_filter."""

    text: str = ""
    reasoning: str = ""
    refusal: str = ""
    calls: tuple[ToolCall, ...] = ()
    finish_reason: str
    usage: Usage | None = None
    model: str = ""
    first_chunk_s: float = 0.0


FaultKind = Literal[
    "rate_limit", "server", "timeout", "connection", "cut_stream", "rejected", "context", "content_filter", "deadline"
]
TRANSIENT: frozenset[FaultKind] = frozenset(("rate_limit", "server", "timeout", "connection", "cut_stream"))


class Fault(Record):
    """Why no answer came. `context`: the conversation is too long for the model; `content_filter`: the provider
    refused the conversation; `deadline`: the episode's time ended first; the others are the provider's.
    """

    kind: FaultKind
    message: str
    status: int | None = None
    retry_after_s: float | None = None

    @property
    def transient(self) -> bool:
        return self.kind in TRANSIENT


@dataclass(frozen=True)
class Request:
    """One call. `options` are further fields of the body, such as temperature."""

    model: str
    messages: Sequence[Message]
    tools: Sequence[Mapping[str, Any]] = ()
    options: Mapping[str, Any] = field(default_factory=dict)


class Endpoint(Protocol):
    """Asks a model once."""

    def ask(self, request: Request, *, seconds: float) -> Reply | Fault:
        """Return the answer or why none came, at most `seconds` from now. Never raises for the other side's doing."""
        ...
