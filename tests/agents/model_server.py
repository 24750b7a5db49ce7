"""A small server of the OpenAI protocol on loopback, for tests: it streams scripted replies and faults.

    with ModelServer([calls("bash", {"command": "ls"}), Status(429, retry_after="0"), text("done")]) as server:
        LlmAgent(LlmConfig(model="fake", base_url=server.url))

A script is a list, taken one item a request (the last one repeats), or a function of the request's body.
`requests` holds what came: bodies and headers.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any


@dataclass(frozen=True)
class Said:
    """A reply, streamed in small pieces. `cut_after` pieces the connection ends; `pause_s` lies between pieces."""

    text: str = ""
    tool_calls: tuple[tuple[str, str], ...] = ()
    refusal: str = ""
    finish_reason: str | None = None
    usage: tuple[int, int] | None = (100, 10)
    cut_after: int | None = None
    cut_cleanly: bool = False
    pause_s: float = 0.0
    plain_indices: bool = True


@dataclass(frozen=True)
class Status:
    """An HTTP error."""

    code: int
    message: str = "the server is unwell"
    error_code: str | None = None
    retry_after: str | None = None


@dataclass(frozen=True)
class Hang:
    """Sends headers, if it does, then nothing but comments, if those, for a while."""

    seconds: float = 5.0
    headers: bool = False
    comments: bool = False


@dataclass(frozen=True)
class Raw:
    """A body as it is, as an event stream."""

    body: bytes


Item = Said | Status | Hang | Raw
Script = Sequence[Item] | Callable[[dict[str, Any]], Item]


def text(content: str, **more: Any) -> Said:
    return Said(text=content, **more)


def calls(*pairs: Any, **more: Any) -> Said:
    """`calls("bash", {...}, "submit", {})`: arguments are a mapping, or text as it is."""
    named = zip(pairs[::2], pairs[1::2], strict=True)
    return Said(tool_calls=tuple((n, a if isinstance(a, str) else json.dumps(a)) for n, a in named), **more)


@dataclass
class Seen:
    body: dict[str, Any]
    headers: dict[str, str]
    at: float


@dataclass
class ModelServer:
    script: Script
    requests: list[Seen] = field(default_factory=list)

    def __enter__(self) -> ModelServer:
        outer = self
        self._released = threading.Event()

        class Handler(_Handler):
            server_state = outer

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._released.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def take(self, seen: Seen) -> Item:
        self.requests.append(seen)
        if callable(self.script):
            return self.script(seen.body)
        return self.script[min(len(self.requests), len(self.script)) - 1]

    def rest(self, seconds: float) -> bool:
        """Wait, at most until the server is closed; returns whether it was."""
        return self._released.wait(seconds)


class _Handler(BaseHTTPRequestHandler):
    server_state: ModelServer
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        item = self.server_state.take(Seen(body, {k.lower(): v for k, v in self.headers.items()}, time.monotonic()))
        try:
            self._answer(item)
        except OSError:
            self.close_connection = True

    def _answer(self, item: Item) -> None:
        if isinstance(item, Status):
            error = {"message": item.message, "code": item.error_code, "type": "error"}
            self._head(item.code, "application/json", {"Retry-After": item.retry_after} if item.retry_after else {})
            self.wfile.write(json.dumps({"error": error}).encode())
        elif isinstance(item, Hang):
            self._hang(item)
        elif isinstance(item, Raw):
            self._head(200, "text/event-stream")
            self.wfile.write(item.body)
        else:
            self._stream(item)
        self.close_connection = True

    def _hang(self, item: Hang) -> None:
        if item.headers or item.comments:
            self._head(200, "text/event-stream")
        end = time.monotonic() + item.seconds
        while time.monotonic() < end and not self.server_state.rest(0.05):
            if item.comments:
                self.wfile.write(b": still here\n\n")
                self.wfile.flush()

    def _stream(self, said: Said) -> None:
        chunked = said.cut_after is not None and not said.cut_cleanly
        self._head(200, "text/event-stream", {"Transfer-Encoding": "chunked"} if chunked else {})
        for number, piece in enumerate(_pieces(said)):
            if number == said.cut_after:
                return
            data = b"data: " + json.dumps(piece).encode() + b"\n\n"
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data) if chunked else data)
            self.wfile.flush()
            if said.pause_s and self.server_state.rest(said.pause_s):
                return
        self.wfile.write(b"data: [DONE]\n\n")

    def _head(self, code: int, kind: str, headers: dict[str, str] | None = None) -> None:
        self.send_response(code)
        for name, value in {"Content-Type": kind, "Connection": "close", **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()


def _pieces(said: Said) -> list[dict[str, Any]]:
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{"content": said.text[i : i + 7]} for i in range(0, len(said.text), 7)]
    deltas += [{"refusal": said.refusal}] if said.refusal else []
    for index, (name, arguments) in enumerate(said.tool_calls):
        where = {"index": index} if said.plain_indices else {}
        begin = {**where, "id": f"call_{index}", "type": "function", "function": {"name": name, "arguments": ""}}
        deltas.append({"tool_calls": [begin]})
        for i in range(0, len(arguments), 9):
            deltas.append({"tool_calls": [{**where, "function": {"arguments": arguments[i : i + 9]}}]})
    reason = said.finish_reason or ("tool_calls" if said.tool_calls else "stop")
    choices = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    choices.append({"index": 0, "delta": {}, "finish_reason": reason})
    common = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 0, "model": "fake-1"}
    pieces: list[dict[str, Any]] = [{**common, "choices": [choice]} for choice in choices]
    if said.usage:
        prompt, completion = said.usage
        usage = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
        pieces.append({**common, "choices": [], "usage": usage})
    return pieces
