"""Asks an endpoint once, streamed, through the `openai` library: the only module that imports it.

A thread receives while the caller waits, so that a hang, a stream of keep-alive comments and a slow trickle
all end when they must. Every failure comes back as a Fault with the key taken out; none is raised, so that
no traceback holds a request's headers.
"""

from __future__ import annotations

import contextlib
import email.utils
import queue
import re
import threading
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from fpenv.agents.llm.credential import Credential
from fpenv.agents.llm.exchange import Fault, FaultKind, Reply, Request
from fpenv.agents.llm.stream import MAX_CHARS, Assembly
from fpenv.errors import ConfigError

CONNECT_S = 20.0
MAX_MESSAGE_CHARS = 500
FINAL_CODES = ("insufficient_quota", "billing_not_active", "billing_hard_limit_reached")
_TOO_LONG = re.compile(
    r"context.{0,20}(length|size|window)|(prompt|input).{0,40}too (long|large)|too many (input )?tokens",
    re.IGNORECASE,
)
_END = object()


class OpenAiEndpoint:
    """One endpoint that speaks the OpenAI protocol. Pickles without its key."""

    def __init__(
        self,
        base_url: str,
        credential: Credential,
        *,
        silence_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Raises ConfigError where the `openai` library is not installed."""
        self._base_url, self._credential = base_url, credential
        self._silence_s, self._clock = silence_s, clock
        self._client = _client(base_url, credential)

    def ask(self, request: Request, *, seconds: float) -> Reply | Fault:
        if seconds <= 0:
            return Fault(kind="deadline", message="the episode's time ended before the call")
        reception = _Reception(self._client, request, min(self._silence_s, seconds))
        assembly, started = Assembly(), self._clock()
        first, last = 0.0, started
        try:
            while True:
                # The episode's end, or the longest silence, whichever comes first.
                left, patience = started + seconds - self._clock(), last + self._silence_s - self._clock()
                if left <= 0:
                    return Fault(kind="deadline", message="the episode's time ended during the call")
                if patience <= 0:
                    return Fault(kind="timeout", message=f"expected a sign of an answer within {self._silence_s:g} s")
                chunk = reception.get(min(left, patience))
                if chunk is None:
                    continue
                last = self._clock()
                if isinstance(chunk, Exception):
                    return self._fault(chunk)
                if chunk is _END:
                    break
                first = first or last - started
                assembly.add(chunk)
                if assembly.chars > MAX_CHARS:
                    assembly.finish_reason = "length"
                    break
        finally:
            reception.close()
        if not assembly.whole:
            return Fault(kind="cut_stream", message="the stream ended without saying how the answer ended")
        return assembly.reply(self._credential, round(first, 3))

    def _fault(self, error: Exception) -> Fault:
        fault = classify(error)
        message = self._credential.redact(fault.message)[:MAX_MESSAGE_CHARS]
        return fault.model_copy(update={"message": message})

    def __repr__(self) -> str:
        return f"OpenAiEndpoint({self._base_url!r})"

    def __reduce__(self) -> tuple[object, ...]:
        return (_again, (self._base_url, self._credential, self._silence_s))


class _Reception:
    """Receives one answer in a thread of its own. What it meets, errors too, goes into a queue."""

    def __init__(self, client: Any, request: Request, silence_s: float) -> None:
        self._queue: queue.Queue[Any] = queue.Queue()
        self._stream: Any = None
        self._closed = False
        arguments = (client, request, silence_s)
        threading.Thread(target=self._receive, args=arguments, name="fpenv-llm", daemon=True).start()

    def get(self, seconds: float) -> Any:
        """The next chunk, an exception, `_END`, or None if none came in time."""
        with contextlib.suppress(queue.Empty):
            return self._queue.get(timeout=max(0.0, seconds))
        return None

    def close(self) -> None:
        self._closed = True
        if self._stream is not None:
            with contextlib.suppress(Exception):
                self._stream.close()

    def _receive(self, client: Any, request: Request, silence_s: float) -> None:
        try:
            # The library's own limit lies a little later: it only frees the thread.
            self._stream = client.chat.completions.create(
                model=request.model,
                messages=list(request.messages),
                stream=True,
                stream_options={"include_usage": True},
                timeout=_timeout(silence_s + 1.0),
                extra_body={**({"tools": list(request.tools)} if request.tools else {}), **request.options},
            )
            for chunk in self._stream:
                if self._closed:
                    return
                self._queue.put(chunk)
            self._queue.put(_END)
        except Exception as error:  # the boundary: whatever talking to the provider raises is the provider's
            self._queue.put(error)
        finally:
            self.close()


def classify(error: Exception) -> Fault:
    """Say what kind of fault an exception of the client library is. The message is not redacted yet."""
    import openai

    message = f"{type(error).__name__}: {error}"
    status = getattr(error, "status_code", None)
    code = str(getattr(error, "code", None) or "")
    kind: FaultKind
    if isinstance(error, openai.APIStatusError) and isinstance(status, int):
        kind = _kind_of_status(status, code, message)
        after = _retry_after_s(error.response.headers, time.time())
        return Fault(kind=kind, status=status, message=message, retry_after_s=after)
    if isinstance(error, openai.APITimeoutError):
        kind = "timeout"
    elif isinstance(error, openai.APIConnectionError):
        kind = "connection"
        message = f"{message} ({type(error.__cause__).__name__}: {error.__cause__})" if error.__cause__ else message
    elif isinstance(error, openai.APIError):  # sent within the stream
        kind = "context" if _is_too_long(code, message) else "rejected" if code in FINAL_CODES else "server"
        kind = "content_filter" if code == "content_filter" else kind
    else:
        kind = "cut_stream"
    return Fault(kind=kind, message=message)


def _kind_of_status(status: int, code: str, message: str) -> FaultKind:
    if code in FINAL_CODES:
        return "rejected"
    if status == 429:
        return "rate_limit"
    if status in (408, 409, 425) or status >= 500:
        return "server"
    if status in (400, 413, 422) and _is_too_long(code, message):
        return "context"
    return "content_filter" if code in ("content_filter", "content_policy_violation") else "rejected"


def _is_too_long(code: str, message: str) -> bool:
    return code == "context_length_exceeded" or _TOO_LONG.search(message) is not None


def _retry_after_s(headers: Any, now: float) -> float | None:
    """Seconds of Retry-After-Ms or Retry-After (seconds, or a date), or None."""
    for name, unit in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        value = str(headers.get(name, "")).strip()
        if re.fullmatch(r"\d{1,9}(\.\d{1,9})?", value):
            return float(value) * unit
    with contextlib.suppress(TypeError, ValueError, OverflowError):
        return max(0.0, email.utils.parsedate_to_datetime(str(headers.get("retry-after", ""))).timestamp() - now)
    return None


def _timeout(silence_s: float) -> Any:
    import openai

    return openai.Timeout(silence_s, connect=min(CONNECT_S, silence_s))


def _client(base_url: str, credential: Credential) -> Any:
    try:
        import openai
    except ImportError as error:
        raise ConfigError("expected the `openai` library, found none: pip install 'fpenv[llm]'") from error
    # Retries are ours: they are recorded, and know the episode's end.
    client = openai.OpenAI(api_key=credential.reveal(), base_url=base_url, max_retries=0)
    if not (urlsplit(base_url).hostname or "").endswith(".openai.com"):
        client.organization = client.project = None  # read from OPENAI_ORG_ID, OPENAI_PROJECT_ID; not for others
    return client


def _again(base_url: str, credential: Credential, silence_s: float) -> OpenAiEndpoint:
    return OpenAiEndpoint(base_url, credential, silence_s=silence_s)
