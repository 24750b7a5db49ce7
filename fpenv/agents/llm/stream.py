"""Puts a streamed answer together: text, reasoning, refusal, tool calls in pieces, usage.

Providers differ in what they leave out (indices, ids, the repeated name); what is missing is filled in.
"""

from __future__ import annotations

from typing import Any

from fpenv.agents.llm.credential import Credential
from fpenv.agents.llm.exchange import Reply, ToolCall, Usage

MAX_CHARS = 8 << 20


class Assembly:
    """One answer being received. Chunks are the client library's, or anything with the same attributes."""

    def __init__(self) -> None:
        self.finish_reason = ""
        self.chars = 0
        self._parts: dict[str, list[str]] = {"content": [], "reasoning": [], "refusal": []}
        self._calls: dict[int, dict[str, Any]] = {}
        self._usage: Usage | None = None
        self._model = ""

    @property
    def whole(self) -> bool:
        """Whether the provider said how it ended; a stream that just stops was cut."""
        return bool(self.finish_reason)

    def add(self, chunk: Any) -> None:
        self._model = self._model or str(getattr(chunk, "model", "") or "")
        self._usage = _usage(getattr(chunk, "usage", None)) or self._usage
        for choice in (getattr(chunk, "choices", None) or ())[:1]:
            self._add_delta(getattr(choice, "delta", None))
            self.finish_reason = str(getattr(choice, "finish_reason", None) or self.finish_reason)

    def reply(self, credential: Credential, first_chunk_s: float) -> Reply:
        """What came, without the key in case it was echoed."""
        text = {name: credential.redact("".join(parts)) for name, parts in self._parts.items()}
        calls = (
            ToolCall(
                call_id=credential.redact(call["id"]) or f"call_{index}",
                tool=credential.redact(call["name"]),
                arguments=credential.redact("".join(call["arguments"])),
            )
            for index, call in sorted(self._calls.items())
        )
        return Reply(
            text=text["content"],
            reasoning=text["reasoning"],
            refusal=text["refusal"],
            calls=tuple(calls),
            finish_reason=credential.redact(self.finish_reason),
            usage=self._usage,
            model=credential.redact(self._model),
            first_chunk_s=first_chunk_s,
        )

    def _add_delta(self, delta: Any) -> None:
        for name, fields in (
            ("content", ("content",)),
            ("reasoning", ("reasoning_content", "reasoning")),
            ("refusal", ("refusal",)),
        ):
            found = next((v for v in (getattr(delta, f, None) for f in fields) if isinstance(v, str)), "")
            self._parts[name].append(found)
            self.chars += len(found)
        for piece in getattr(delta, "tool_calls", None) or ():
            self._add_call(piece)

    def _add_call(self, piece: Any) -> None:
        function, call_id = getattr(piece, "function", None), str(getattr(piece, "id", None) or "")
        index = getattr(piece, "index", None)
        if not isinstance(index, int):
            last = max(self._calls, default=-1)
            begins = last < 0 or (call_id and call_id != self._calls[last]["id"])
            index = last + 1 if begins else last
        call = self._calls.setdefault(index, {"id": "", "name": "", "arguments": []})
        call["id"] = call["id"] or call_id
        call["name"] = call["name"] or str(getattr(function, "name", None) or "")
        arguments = str(getattr(function, "arguments", None) or "")
        call["arguments"].append(arguments)
        self.chars += len(arguments)


def _usage(usage: Any) -> Usage | None:
    prompt, completion = getattr(usage, "prompt_tokens", None), getattr(usage, "completion_tokens", None)
    if not isinstance(prompt, int) or not isinstance(completion, int) or prompt < 0 or completion < 0:
        return None
    cached = getattr(getattr(usage, "prompt_tokens_details", None), "cached_tokens", None)
    reasoning = getattr(getattr(usage, "completion_tokens_details", None), "reasoning_tokens", None)
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        cached_tokens=cached if isinstance(cached, int) else None,
        reasoning_tokens=reasoning if isinstance(reasoning, int) else None,
    )
