"""An episode's progress on a terminal: each action, and its output as it comes."""

from __future__ import annotations

import codecs
import time
from typing import Any, Literal

from rich.console import Console
from rich.text import Text

from fpenv.transcript import escape


class Progress:
    """Prints to a console; everything from the sandbox is escaped, line by line."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._started = time.monotonic()
        self._steps = 0
        self._pending = {"stdout": "", "stderr": ""}
        self._decoders = {stream: codecs.getincrementaldecoder("utf-8")("replace") for stream in self._pending}

    def say(self, line: str) -> None:
        self._console.print(Text(f"{self._clock()} {escape(line)}"), soft_wrap=True)

    def action(self, action: dict[str, Any]) -> None:
        """Show the next action before it is taken."""
        self._steps += 1
        tool = " ".join(str(action.get("tool")).split())
        arguments = " ".join(str(action.get("arguments", "")).split())
        line = f"{self._clock()} step {self._steps}: {tool[:80]} {arguments[:160]}"
        self._console.print(Text(escape(line), style="bold"), soft_wrap=True)
        if tool == "submit":
            self.say("grading: the hidden tests and the rubric")

    def output(self, stream: Literal["stdout", "stderr"], data: bytes) -> None:
        """Show whole lines of a running command's output."""
        lines = (self._pending[stream] + self._decoders[stream].decode(data)).split("\n")
        self._pending[stream] = lines.pop()[-4096:]
        for line in lines:
            self._console.print(Text(f"{self._clock()}   {escape(line[:500])}", style="dim"), soft_wrap=True)

    def _clock(self) -> str:
        return f"[{time.monotonic() - self._started:6.1f} s]"
