"""How a conversation with a model is laid out: as tool calls, or as plain text with JSON in it.

A turn is what the model said and what it was answered. Both protocols read a reply into actions as
`env.step` takes them; what is wrong with one is for the environment to say.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from fpenv.agents.llm.exchange import Message, Reply, ToolCall

ROLE = (
    "You carry out a research task on your own in a sandbox. Work through the tools alone; nobody answers "
    "questions. What is left of the budget stands below each result. When the deliverables are written, call submit."
)
FORM = """Reply with your thoughts, if any, and then exactly one action as JSON, for example:

```json
{"tool": "bash", "arguments": {"command": "ls -l"}}
```

Then wait for its result. The tools, each with the JSON Schema of its arguments:
"""
_THINKING = re.compile(r"<think>.*?(</think>|\Z)", re.DOTALL)
_NOT_A_NAME = re.compile(r"[^A-Za-z0-9_-]")
_DECODER = json.JSONDecoder(strict=False)
MAX_CANDIDATES = 1000


@dataclass(frozen=True)
class Intent:
    """An action that the model wants taken, and the call that its result answers. `whole`: it names a tool."""

    action: dict[str, Any]
    call_id: str | None = None
    whole: bool = True


@dataclass(frozen=True)
class Turn:
    said: Message
    answers: tuple[Message, ...]


class ActionProtocol(Protocol):
    """One way to get actions out of a model."""

    def open(self, prompt: str, tools: Sequence[Mapping[str, Any]]) -> tuple[Message, ...]:
        """The first messages; the last is the user's."""
        ...

    def offer(self, tools: Sequence[Mapping[str, Any]]) -> tuple[Mapping[str, Any], ...]:
        """The request's `tools`."""
        ...

    def read(self, reply: Reply) -> tuple[tuple[Intent, ...], Message]:
        """The actions, at least one, and the reply as it stays in the conversation."""
        ...

    def answer(self, intent: Intent, text: str) -> Message:
        """The result of an action."""
        ...


class ToolProtocol:
    """The provider's tool calls. Several in one reply are taken in their order, each as a step."""

    def open(self, prompt: str, tools: Sequence[Mapping[str, Any]]) -> tuple[Message, ...]:
        return {"role": "system", "content": ROLE}, {"role": "user", "content": prompt}

    def offer(self, tools: Sequence[Mapping[str, Any]]) -> tuple[Mapping[str, Any], ...]:
        return tuple({"type": "function", "function": dict(tool)} for tool in tools)

    def read(self, reply: Reply) -> tuple[tuple[Intent, ...], Message]:
        cut = reply.finish_reason == "length"
        calls = [call for call in reply.calls if not cut or _is_object(call.arguments)]
        if not calls:
            return (no_action(reply),), {"role": "assistant", "content": reply.text or reply.refusal or "(no reply)"}
        ids = [f"{call.call_id}_{n}" if _repeats(calls, n) else call.call_id for n, call in enumerate(calls)]
        said = {
            "role": "assistant",
            "content": reply.text or None,
            "tool_calls": [_as_sent(call, call_id) for call, call_id in zip(calls, ids, strict=True)],
        }
        actions = ({"tool": call.tool, "arguments": call.arguments or "{}"} for call in calls)
        return tuple(Intent(a, call_id) for a, call_id in zip(actions, ids, strict=True)), said

    def answer(self, intent: Intent, text: str) -> Message:
        if intent.call_id is None:
            return {"role": "user", "content": f"{text}\nCall one of the tools; submit ends the task."}
        return {"role": "tool", "tool_call_id": intent.call_id, "content": text}


class TextProtocol:
    """JSON in the text, fenced or bare. The first action counts: what follows it rests on no result.

    All instructions are in the user's first message, because some chat templates know no system role.
    """

    def open(self, prompt: str, tools: Sequence[Mapping[str, Any]]) -> tuple[Message, ...]:
        listed = "\n".join(json.dumps(dict(tool), ensure_ascii=False) for tool in tools)
        return ({"role": "user", "content": f"{ROLE}\n\n{FORM}\n{listed}\n\nThe task:\n\n{prompt}"},)

    def offer(self, tools: Sequence[Mapping[str, Any]]) -> tuple[Mapping[str, Any], ...]:
        return ()

    def read(self, reply: Reply) -> tuple[tuple[Intent, ...], Message]:
        found = find_action(reply.text)
        intent = no_action(reply) if found is None else Intent(found, whole=isinstance(found.get("tool"), str))
        return (intent,), {"role": "assistant", "content": reply.text or reply.refusal or "(no reply)"}

    def answer(self, intent: Intent, text: str) -> Message:
        return {"role": "user", "content": text}


def no_action(reply: Reply) -> Intent:
    """A reply without an action, as an action: the environment answers with the form it expects."""
    return Intent({"text": reply.text or reply.refusal}, whole=False)


def find_action(text: str) -> dict[str, Any] | None:
    """Return the first JSON object in a text that has the key "tool", else the first object, else None.

    Thinking between <think> tags is passed over; line breaks inside JSON strings are allowed.

    >>> find_action('I look. ```json\\n{"tool": "bash", "arguments": {"command": "ls"}}\\n```')
    {'tool': 'bash', 'arguments': {'command': 'ls'}}
    """
    text = _THINKING.sub("", text)
    first: dict[str, Any] | None = None
    start = text.find("{")
    for _ in range(MAX_CANDIDATES):
        if start < 0:
            break
        try:
            value, end = _DECODER.raw_decode(text, start)
        except (ValueError, RecursionError):
            start = text.find("{", start + 1)
            continue
        if isinstance(value, dict) and "tool" in value:
            return value
        first = value if first is None and isinstance(value, dict) and value else first
        start = text.find("{", end)
    return first


def _as_sent(call: ToolCall, call_id: str) -> dict[str, Any]:
    """A call as it goes back to the provider, which refuses names and arguments that are not well formed."""
    arguments = call.arguments if _is_object(call.arguments) else json.dumps({"malformed": call.arguments[:2000]})
    name = _NOT_A_NAME.sub("_", call.tool)[:64] or "unnamed"
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _repeats(calls: Sequence[ToolCall], position: int) -> bool:
    return any(call.call_id == calls[position].call_id for call in calls[:position])
