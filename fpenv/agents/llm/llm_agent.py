"""A language model plays: its replies become actions, their results its next prompt.

What ends an episode, and whose doing it is:

    the model submits, or a budget of the environment ends     graded, as for any agent
    replies without an action, refusals, cut replies in a row  the model's own: what is there is graded
    the conversation does not fit the model any more           the model's own: graded
    the episode's time ends while the model thinks             the model's own: graded, stop "time"
    the provider fails longer than retries last                infrastructure: ProviderError, ungraded

The model is sent the brief, the tools' schemas, the results and the budget left; `info` stays here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from fpenv.agents.agent import SUBMIT
from fpenv.agents.llm.accounting import Estimator, Totals, account, total
from fpenv.agents.llm.call_log import Call, CallLog, Ending, EndingKind, Settings
from fpenv.agents.llm.compaction import Dropped, History, compact
from fpenv.agents.llm.config import LlmConfig
from fpenv.agents.llm.conversation import ActionProtocol, Intent, TextProtocol, ToolProtocol, Turn
from fpenv.agents.llm.credential import Credential
from fpenv.agents.llm.endpoint import OpenAiEndpoint
from fpenv.agents.llm.exchange import Endpoint, Fault, Message, Reply, Request
from fpenv.agents.llm.retrying import Answer, Timing, ask_patiently
from fpenv.env import Observation
from fpenv.errors import AgentError, ProviderError

MAX_SQUEEZES = 4
SQUEEZE = 0.6


class LlmAgent:
    """Plays one episode after another; each starts a conversation of its own."""

    def __init__(self, config: LlmConfig, *, endpoint: Endpoint | None = None, timing: Timing | None = None) -> None:
        """`endpoint` takes the place of the one at `config.base_url`. Raises ConfigError."""
        self.name = f"llm/{config.model}"
        self.reset_options: dict[str, Any] = {}
        self._config = config
        self._credential = Credential(config.api_key_env)
        self._timing = timing or Timing()
        self._endpoint: Endpoint = endpoint or OpenAiEndpoint(
            config.base_url, self._credential, silence_s=config.silence_s, clock=self._timing.clock
        )
        self._episode: _Conversation | None = None

    @property
    def log(self) -> CallLog:
        """The calls of the current or last episode."""
        return self._playing().log

    def totals(self) -> Totals:
        """Tokens and cost of the current or last episode."""
        return total(call.tokens for call in self.log.calls if call.tokens is not None)

    def act(self, observation: Observation, info: dict[str, Any]) -> dict[str, Any] | None:
        """Return the next action. Raises ProviderError where the provider failed for good."""
        if "tools" in info:
            log = CallLog(Path(info["run"]) if "run" in info else None, self._credential)
            self._episode = _Conversation(self._config, self._endpoint, self._timing, log)
            self._episode.open(observation, info["tools"])
        else:
            self._playing().answer(observation)
        return self._playing().next_action(observation)

    def _playing(self) -> _Conversation:
        if self._episode is None:
            raise AgentError(f"agent {self.name}: expected act() with the info of reset() first, got none")
        return self._episode

    def __repr__(self) -> str:
        return f"LlmAgent({self._config!r})"


class _Conversation:
    """One episode: the history, the actions still to be taken of the last reply, and the agent's patience."""

    def __init__(self, config: LlmConfig, endpoint: Endpoint, timing: Timing, log: CallLog) -> None:
        self.log = log
        self._config, self._endpoint, self._timing = config, endpoint, timing
        self._protocol: ActionProtocol = ToolProtocol() if config.protocol == "tools" else TextProtocol()
        self._estimator = Estimator()
        self._context_tokens = config.context_tokens
        self._opening: tuple[Message, ...] = ()
        self._offered: tuple[Mapping[str, Any], ...] = ()
        self._history = History()
        self._pending: deque[Intent] = deque()
        self._said: Message = {}
        self._answers: list[Message] = []
        self._idle_replies = 0
        self._steps = 0
        self._warn_at: tuple[int, float] = (0, 0.0)
        self._warned = False

    def open(self, observation: Observation, tools: Sequence[Mapping[str, Any]]) -> None:
        steps, seconds = int(observation["steps_left"][0]), int(observation["seconds_left"][0])
        # Not before half of a short episode is over.
        self._warn_at = min(self._config.warn_steps, steps // 2), min(self._config.warn_seconds, seconds / 2)
        prompt = f"{observation['output']}\n\n{self._budget(observation)}"
        self._opening, self._offered = self._protocol.open(prompt, tools), self._protocol.offer(tools)
        config = self._config
        self.log.add(
            Settings(
                model=config.model,
                base_url=config.base_url,
                protocol=config.protocol,
                options=dict(config.options),
                max_reply_tokens=config.max_reply_tokens,
                context_tokens=config.context_tokens,
            )
        )

    def answer(self, observation: Observation) -> None:
        """Take in the result of the action at the head of the queue."""
        self._steps += 1
        if not self._pending:
            return
        failed = "[failed] " if observation["failed"] else ""
        text = f"{observation['output']}\n\n{failed}{self._budget(observation)}"
        self._answers.append(self._protocol.answer(self._pending.popleft(), text))
        if not self._pending:
            turns = (*self._history.turns, Turn(self._said, tuple(self._answers)))
            self._history = History(turns, self._history.removed)
            self._answers = []

    def next_action(self, observation: Observation) -> dict[str, Any]:
        if not self._pending:
            deadline = self._timing.clock() + int(observation["seconds_left"][0])
            reply = self._ask(deadline)
            if not isinstance(reply, Reply):
                return reply
            intents, self._said = self._protocol.read(reply)
            self._pending.extend(intents)
            self._idle_replies = 0 if any(intent.whole for intent in intents) else self._idle_replies + 1
            if self._idle_replies >= self._config.patience_replies:
                return self._end(_idle_kind(reply), f"{self._idle_replies} replies in a row without an action")
        return self._pending[0].action

    def _ask(self, deadline: float) -> Reply | dict[str, Any]:
        """Return the model's next reply, or the action that ends the episode."""
        dropped: tuple[Dropped, ...] = ()
        reason = ""
        for _ in range(MAX_SQUEEZES):
            self._history, gone = compact(self._opening, self._history, self._context_tokens, self._count)
            dropped += gone
            request = self._request()
            answer = ask_patiently(
                self._endpoint, request, self._config.retries, deadline=deadline, timing=self._timing
            )
            self._record(request, answer, dropped)
            result = answer.result
            if isinstance(result, Reply):
                return result
            if answer.provider_failed:
                self._fail(result, answer)
            if result.kind == "deadline":
                self._end("time", result.message)
                return {"text": ""}  # no action: the environment then finds its own time budget spent
            if result.kind == "content_filter":
                return Reply(refusal=result.message, finish_reason="content_filter")
            if not self._history.turns:
                self._fail(result, answer)
            dropped, reason = (), result.message
            self._context_tokens = int(SQUEEZE * min(self._context_tokens, self._count(list(request.messages))))
        return self._end("context", f"the conversation does not fit the model, not even shortened: {reason}")

    def _request(self) -> Request:
        config = self._config
        limit = {} if config.max_reply_tokens is None else {"max_completion_tokens": config.max_reply_tokens}
        messages = self._history.messages(self._opening)
        return Request(config.model, messages, self._offered, {**limit, **config.options})

    def _record(self, request: Request, answer: Answer, dropped: tuple[Dropped, ...]) -> None:
        result = answer.result
        estimate = self._count(list(request.messages))
        reply, fault = (result, None) if isinstance(result, Reply) else (None, result)
        tokens = account(request, reply, self._estimator, self._config.price) if reply else None
        call = Call(
            call=len(self.log.calls) + 1,
            step_id=self._steps + 1,
            tokens=tokens,
            prompt_estimate=estimate,
            latency_s=round(answer.latency_s, 3),
            lost_s=round(answer.lost_s, 3),
            retries=answer.retries,
            dropped=dropped,
            reply=reply,
            fault=fault,
        )
        self.log.add(call)
        if reply and reply.usage:
            self._estimator.learn(request, reply.usage.prompt_tokens)

    def _count(self, messages: list[Message]) -> int:
        return self._estimator.prompt(messages, self._offered)

    def _end(self, kind: EndingKind, reason: str) -> dict[str, Any]:
        self.log.add(Ending(kind=kind, reason=reason, calls=len(self.log.calls)))
        self._pending.clear()
        return SUBMIT

    def _fail(self, fault: Fault, answer: Answer) -> NoReturn:
        status = "" if fault.status is None else f" {fault.status}"
        message = (
            f"{self._config.model}: expected a reply from the provider, got {fault.kind}{status} in attempt "
            f"{len(answer.retries) + 1}, after {answer.latency_s:.1f} s: {fault.message}"
        )
        self._end("provider", message)
        raise ProviderError(message)

    def _budget(self, observation: Observation) -> str:
        steps, seconds, shots = (int(observation[f"{what}_left"][0]) for what in ("steps", "seconds", "shots"))
        line = f"[left: {steps} actions, {seconds} s, {shots} instrument shots]"
        near = steps <= self._warn_at[0] or seconds <= self._warn_at[1]
        if not near or self._warned:
            return line
        self._warned = True
        return (
            f"{line}\n[LAST WARNING: the episode ends when the actions or the time run out, and what is there then "
            "is graded. Write the deliverables now, then submit.]"
        )


def _idle_kind(reply: Reply) -> EndingKind:
    if reply.refusal or reply.finish_reason == "content_filter":
        return "refusal"
    return "overlong" if reply.finish_reason == "length" else "no_action"
