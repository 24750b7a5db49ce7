"""Operate an instrument."""

from __future__ import annotations

import json
from typing import Any

from pydantic import Field

from fpenv.instruments.bench import describe_call
from fpenv.records import ToolResult
from fpenv.tools.tool import Arguments, Room, Tool

MAX_CALL_CHARS = 32 << 10
"""Of a call's arguments as JSON: every call is recorded, refused ones too, so that none may be large."""


class InstrumentArguments(Arguments):
    instrument: str = Field(default="", max_length=100)
    operation: str = Field(default="manual", max_length=100)
    arguments: dict[str, Any] = Field(default_factory=dict)


class UseInstrument(Tool[InstrumentArguments]):
    """One metered call of an apparatus; `operation: manual` prints the manual pages for free."""

    name = "instrument"
    description = (
        'Operate a laboratory instrument. {"operation": "manual"} prints the manual of all instruments. Every run '
        "spends shots and laboratory time, which are metered. The same calls can be made from programs in the sandbox: "
        "`import lab; lab.call('instrument', {...})` in Python, `lab instrument JSON` in a shell."
    )
    arguments = InstrumentArguments

    def run(self, arguments: InstrumentArguments, room: Room) -> ToolResult:
        reply = operate(arguments, room)
        if "manual" in reply:
            return ToolResult(output=reply["manual"])
        text = json.dumps(reply, ensure_ascii=False)
        return ToolResult(output=text, failed="error" in reply, data=reply)


def operate(arguments: InstrumentArguments, room: Room) -> dict[str, Any]:
    """Make the call and return the reply that tools and programs in the sandbox share."""
    if arguments.operation == "manual":
        return {"manual": room.bench.manual() or "this task has no instruments"}
    size = len(json.dumps(arguments.arguments))
    if size > MAX_CALL_CHARS:
        return {"error": f"arguments: expected at most {MAX_CALL_CHARS:,} characters of JSON, got {size:,}"}
    names = room.bench.names
    name = arguments.instrument or (names[0] if len(names) == 1 else "")
    return describe_call(room.bench.call(name, arguments.operation, arguments.arguments))
