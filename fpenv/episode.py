"""One run of a task: a sandbox, its instruments and literature, the actions taken, and in the end a grade.

    reset -> [action -> tool -> observation]* -> submit, or a budget's end -> deliverables frozen -> grade

An episode ends once, for one of the reasons in `records.Stop`. What the agent caused itself (a budget spent,
a killed guest, a full disk, exhausted memory) is graded as it stands; what the infrastructure caused is
ungraded, never a number. Nothing that an action can reach holds the oracle, the verifier, the rubric, the
references or an instrument's parameters: they stay in this process.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fpenv.deliverables import hand_in
from fpenv.errors import ConfigError, FpenvError, SandboxError, SandboxGone
from fpenv.grading.grade import grade_episode, ungraded
from fpenv.grading.reviewer import Reviewer
from fpenv.instance import Instance
from fpenv.records import Budget, Grade, Step, Stop, ToolResult
from fpenv.sandbox.sandbox import Backend, Collected, OutputSink, SandboxSpec
from fpenv.spaces import MAX_LEFT
from fpenv.tools.bash import Bash
from fpenv.tools.files import ReadFile, WriteFile
from fpenv.tools.instrument import InstrumentArguments, UseInstrument, operate
from fpenv.tools.library import SearchRequest, load_library
from fpenv.tools.literature import SearchLiterature
from fpenv.tools.submit import Submit
from fpenv.tools.tool import Room, ToolBox, normalise

TOOLS = ToolBox((Bash(), WriteFile(), ReadFile(), SearchLiterature(), UseInstrument(), Submit()))
SMALL_CHARS = 16 << 10
MAX_TYPED_CHARS = 32 << 20
SERVICES = ("instrument", "literature")


@dataclass(frozen=True)
class EpisodeConfig:
    """How an episode is played. Limits of None are the task's own."""

    max_steps: int = 500
    time_limit_s: float | None = None
    oracle: bool = False
    """Lay the task's oracle into the sandbox, read-only at /oracle: for checking tasks, never for agents."""
    on_output: OutputSink | None = None
    on_step: Callable[[Step], None] | None = None
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        steps = self.max_steps
        if isinstance(steps, bool) or not isinstance(steps, int) or not 1 <= steps <= MAX_LEFT:
            raise ConfigError(f"max_steps: expected an integer >= 1 and at most {MAX_LEFT:.0e}, got {steps!r}")
        limit = self.time_limit_s
        if limit is not None and not (isinstance(limit, int | float) and 0 < limit <= MAX_LEFT):
            raise ConfigError(
                f"time_limit_s: expected seconds > 0, at most {MAX_LEFT:.0e}, or None for the task's own, got {limit!r}"
            )


class Episode:
    """A running episode. Create it, `step` until it has stopped, `finish` for the grade, `close`."""

    def __init__(self, instance: Instance, backend: Backend, runtime: Path | None, config: EpisodeConfig) -> None:
        self.instance = instance
        self.stop: Stop | None = None
        self.steps: list[Step] = []
        self.collected = Collected(files={}, refused={})
        self._backend, self._runtime, self._config = backend, runtime, config
        self._broken: FpenvError | None = None
        self._typed = 0
        self._inputs = instance.inputs
        bench, library = instance.bench(), load_library(instance.task.path)
        task = instance.task
        spec = SandboxSpec(
            runtime=runtime,
            files={task.absolute(name): data for name, data in self._inputs.items()},
            read_only={task.layout.oracle_mount: task.oracle} if config.oracle else {},
            env=task.oracle_env if config.oracle else {},
            services=SERVICES,
            limits=task.limits,
        )
        self._room = Room(
            task.layer.start(backend, spec, self._serve), bench, library, self._seconds_left, config.on_output
        )
        self._started = config.clock()

    @property
    def time_limit_s(self) -> float:
        own = self._config.time_limit_s
        return self.instance.task.time_limit_s if own is None else own

    def budget(self) -> Budget:
        """What is left now."""
        return Budget(
            steps_left=self._config.max_steps - len(self.steps),
            seconds_left=max(0, math.ceil(self._seconds_left())),
            shots_left=self._room.bench.shots_left,
        )

    def step(self, action: object) -> Step:
        """Take one action. Never raises for what an agent sends. Raises ConfigError after the end."""
        if self.stop is not None:
            raise ConfigError("the episode has ended: expected reset() before the next step()")
        started = self._config.clock() - self._started
        calls, searches = len(self._room.bench.log), len(self._room.library.log)
        parsed = normalise(action)
        tool, arguments = ("", "") if isinstance(parsed, str) else parsed
        result = ToolResult(output=parsed, failed=True, data={"refused": True}) if isinstance(parsed, str) else None
        if result is None and not self._fits(arguments):
            refusal = f"this episode's {MAX_TYPED_CHARS >> 20} MiB of arguments are used up: use smaller actions"
            result, arguments = ToolResult(output=refusal, failed=True, data={"refused": True}), ""
        result = result or self._use(tool, arguments)
        step = Step(
            step_id=len(self.steps) + 1,
            parent_id=len(self.steps) or None,
            tool=tool,
            arguments=arguments,
            result=result,
            budget=self.budget().model_copy(update={"steps_left": self._config.max_steps - len(self.steps) - 1}),
            instrument_calls=self._room.bench.log[calls:],
            searches=self._room.library.log[searches:],
            started_s=started,
            ended_s=self._config.clock() - self._started,
        )
        self.steps.append(step)
        self.stop = self.stop or self._reached(result)
        if self._config.on_step:
            self._config.on_step(step)
        return step

    def abandon(self, error: FpenvError) -> None:
        """End it ungraded, because of something outside that the agent rests on. Raises ConfigError after the end."""
        if self.stop is not None:
            raise ConfigError("the episode has ended: expected abandon() before its end")
        self.stop, self._broken = "infrastructure", error

    def finish(self, reviewer: Reviewer | None) -> Grade:
        """Freeze the deliverables and grade them. The sandbox is closed before anything is graded."""
        task = self.instance.task
        if self.stop is None:
            raise ConfigError("the episode has not ended: expected submit or a budget's end before finish()")
        if self.stop in ("submitted", "steps", "time"):
            self._collect()
        self.close()
        if self.stop == "infrastructure":
            return ungraded(task, self.instance.name, f"{type(self._broken).__name__}: {self._broken}")
        return grade_episode(
            task=task,
            instance=self.instance.name,
            inputs=self._inputs,
            references=self.instance.parts.references,
            collected=self.collected,
            steps=tuple(self.steps),
            backend=self._backend,
            runtime=self._runtime,
            reviewer=reviewer,
        )

    def close(self) -> None:
        """End the sandbox. Idempotent."""
        self._room.sandbox.close()

    def _seconds_left(self) -> float:
        return self.time_limit_s - (self._config.clock() - self._started)

    def _fits(self, arguments: str) -> bool:
        """Whether what the episode keeps of its actions stays bounded with these; small ones always fit."""
        fits = len(arguments) <= SMALL_CHARS or self._typed + len(arguments) <= MAX_TYPED_CHARS
        self._typed += len(arguments) if fits else 0
        return fits

    def _use(self, tool: str, arguments: str) -> ToolResult:
        try:
            result = TOOLS.use(tool, arguments, self._room)
        except FpenvError as error:
            return self._lost(error)
        return self._lost(self._broken) if self._broken else result

    def _lost(self, error: FpenvError) -> ToolResult:
        by_agent = isinstance(error, SandboxGone) and error.by_agent
        self.stop = "sandbox_ended" if by_agent else "infrastructure"
        self._broken = error
        return ToolResult(output=f"the sandbox has ended: {error}" if by_agent else "the episode broke", failed=True)

    def _reached(self, result: ToolResult) -> Stop | None:
        if result.data.get("submitted") is True:
            return "submitted"
        if len(self.steps) >= self._config.max_steps:
            return "steps"
        return "time" if self._seconds_left() <= 0 else None

    def _collect(self) -> None:
        try:
            self.collected = hand_in(self._room.sandbox, self.instance.task, self._inputs)
        except SandboxError as error:
            self._lost(error)

    def _serve(self, service: str, request: bytes) -> bytes:
        """Answer a program in the sandbox. Must not raise: a broken task ends the episode after this step."""
        try:
            reply = self._answer(service, json.loads(request))
        except (ValueError, RecursionError) as error:
            text = _first(error) if isinstance(error, ValidationError) else f"expected a JSON object: {error}"
            reply = {"error": f"{service}: {text}"}
        except FpenvError as error:
            self._broken = error
            reply = {"error": f"{service}: broke"}
        return json.dumps(reply, ensure_ascii=False).encode("utf-8", "replace")

    def _answer(self, service: str, request: Any) -> Mapping[str, Any]:
        if service == "instrument":
            return operate(InstrumentArguments.model_validate(request), self._room)
        query = SearchRequest.model_validate(request)
        return {"works": [work.public() for work in self._room.library.search(query.query, query.limit)]}


def _first(error: ValidationError) -> str:
    item = error.errors()[0]
    return f"{'.'.join(map(str, item['loc'])) or 'request'}: {item['msg']}, got {repr(item['input'])[:120]}"
