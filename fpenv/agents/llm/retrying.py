"""Asks until an answer comes, a fault is final, or waiting would outlast the episode."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from fpenv.agents.llm.config import RetryPolicy
from fpenv.agents.llm.exchange import Endpoint, Fault, FaultKind, Reply, Request
from fpenv.records import Record


class Retry(Record):
    """An attempt that failed and was followed by another."""

    kind: FaultKind
    status: int | None
    message: str
    waited_s: float


@dataclass(frozen=True)
class Answer:
    """What came in the end, after which retries. `lost_s` went into failed attempts and waits."""

    result: Reply | Fault
    retries: tuple[Retry, ...]
    latency_s: float
    lost_s: float

    @property
    def provider_failed(self) -> bool:
        """Whether no answer came, and that is the provider's doing.

        Where the episode's time ended during an attempt, it is so if failed attempts took most of the call's time.
        """
        if not isinstance(self.result, Fault) or self.result.kind in ("context", "content_filter"):
            return False
        return self.result.kind != "deadline" or self.lost_s > self.latency_s / 2


@dataclass(frozen=True)
class Timing:
    """Time and chance, passed in so that tests can hold them."""

    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    rng: random.Random = field(default_factory=random.Random)


def ask_patiently(
    endpoint: Endpoint, request: Request, policy: RetryPolicy, *, deadline: float, timing: Timing
) -> Answer:
    """Ask, and again after transient faults. `deadline` is on `timing.clock`."""
    started, retries, lost = timing.clock(), list[Retry](), 0.0
    while True:
        result = endpoint.ask(request, seconds=max(0.0, deadline - timing.clock()))
        now = timing.clock()
        if isinstance(result, Reply) or not result.transient:
            break
        lost = now - started
        wait = wait_s(policy, len(retries), result.retry_after_s, timing.rng)
        too_long = (result.retry_after_s or 0.0) > policy.patience_s or now + wait >= deadline
        if len(retries) + 1 >= policy.attempts or too_long:
            break
        timing.sleep(wait)
        lost = timing.clock() - started
        retries.append(Retry(kind=result.kind, status=result.status, message=result.message, waited_s=round(wait, 3)))
    return Answer(result, tuple(retries), timing.clock() - started, lost)


def wait_s(policy: RetryPolicy, failures: int, retry_after_s: float | None, rng: random.Random) -> float:
    """Return how long to wait: at least Retry-After, else doubling up to the cap, less up to half at random.

    The random part keeps many episodes that failed together from coming back together.
    """
    longest = min(policy.longest_wait_s, policy.first_wait_s * 2.0 ** min(failures, 30))
    return max(longest * (0.5 + 0.5 * rng.random()), retry_after_s or 0.0)
