"""What every call took, one JSON line each, in `llm_calls.jsonl` beside the trajectory.

The first line says with what settings, one line follows per call with the reply as it came, and where the
agent itself ended the episode a last line says why. Lines are on disk before the next action is taken.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from fpenv.agents.llm.accounting import Tokens
from fpenv.agents.llm.compaction import Dropped
from fpenv.agents.llm.credential import Credential
from fpenv.agents.llm.exchange import Fault, Reply
from fpenv.agents.llm.retrying import Retry
from fpenv.records import Record
from fpenv.store import jsonable

FILE_NAME = "llm_calls.jsonl"

EndingKind = Literal["refusal", "overlong", "no_action", "context", "time", "provider"]
"""Why the agent ended an episode: `provider` is infrastructure and ungraded, the others are the model's own."""


class Settings(Record):
    """With what a model was asked."""

    record: Literal["settings"] = "settings"
    model: str
    base_url: str
    protocol: str
    options: dict[str, Any]
    max_reply_tokens: int | None
    context_tokens: int


class Call(Record):
    """One call. `step_id` is the step that its first action becomes. `tokens` is None where no answer came.

    `prompt_estimate` is what was reckoned before the call; `latency_s` holds retries and waits, `lost_s` of it.
    """

    record: Literal["call"] = "call"
    call: int
    step_id: int
    tokens: Tokens | None
    prompt_estimate: int
    latency_s: float
    lost_s: float
    retries: tuple[Retry, ...]
    dropped: tuple[Dropped, ...]
    reply: Reply | None = None
    fault: Fault | None = None


class Ending(Record):
    """The agent's own end."""

    record: Literal["ending"] = "ending"
    kind: EndingKind
    reason: str
    calls: int


class CallLog:
    """Keeps the records, and writes them to a run folder if there is one."""

    def __init__(self, folder: Path | None, credential: Credential) -> None:
        self.calls: list[Call] = []
        self.ending: Ending | None = None
        self._file = folder / FILE_NAME if folder else None
        self._credential = credential

    def add(self, record: Settings | Call | Ending) -> None:
        if isinstance(record, Call):
            self.calls.append(record)
        elif isinstance(record, Ending):
            self.ending = record
        if self._file is not None:
            line = _line(jsonable(record))
            with self._file.open("a", encoding="utf-8") as file:
                file.write(self._credential.redact(line) + "\n")


def read_call_log(run: Path) -> tuple[Settings | Call | Ending, ...]:
    """Read the whole lines of a run folder's log; a line cut by a kill is left out."""
    kinds: dict[str, type[Settings | Call | Ending]] = {"settings": Settings, "call": Call, "ending": Ending}
    lines = (run / FILE_NAME).read_text(encoding="utf-8").split("\n")[:-1]
    loaded = (json.loads(line) for line in lines)
    return tuple(kinds[line["record"]].model_validate(line) for line in loaded)


def _line(value: Any) -> str:
    return json.dumps(value, sort_keys=True, allow_nan=False)
