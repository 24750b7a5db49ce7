"""The person's side of a terminal: lines in, escaped text out, and what Ctrl-C means.

Nothing from a sandbox reaches the terminal unescaped. Readline edits and recalls lines where Python has it.
At the prompt Ctrl-C drops the line. While a command runs, the first Ctrl-C says what can be done and the
second raises `Abandoned`: a sandbox runs one call to its end, so that stopping one means ending the sandbox.
"""

from __future__ import annotations

import codecs
import contextlib
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Literal

from rich.console import Console
from rich.rule import Rule
from rich.text import Text

from fpenv.transcript import escape

try:
    import readline
except ImportError:  # Python can be built without it
    readline = None  # type: ignore[assignment]

Stream = Literal["stdout", "stderr"]
_STYLES: dict[Stream, str] = {"stdout": "", "stderr": "yellow"}
MAX_LINE_CHARS = 2000


class Abandoned(BaseException):
    """The person gave up the running command, and its sandbox with it. Passes through `except Exception`."""


class Terminal:
    """Reads lines from a person and shows them text. `quiet` holds back what a running command prints."""

    def __init__(self, console: Console | None = None, words: Sequence[str] = ()) -> None:
        self.quiet = False
        self._console = console or Console(highlight=False)
        self._pending: dict[Stream, str] = dict.fromkeys(_STYLES, "")
        self._decoders = {stream: codecs.getincrementaldecoder("utf-8")("replace") for stream in _STYLES}
        self._shown = False
        self._kept: object = None
        self._interrupts = 0
        if readline is not None:
            readline.set_auto_history(False)
            readline.set_completer_delims(" \t\n")
            readline.set_completer(lambda text, n: [*(f"{w} " for w in words if text and w.startswith(text)), None][n])
            readline.parse_and_bind("tab: complete")

    # Out

    def say(self, text: str, style: str = "", *, prose: bool = False) -> None:
        """Show text of any origin, escaped; prose is wrapped between words, anything else as the terminal does."""
        lines = escape(text).split("\n")
        shown = "\n".join(s if len(s) <= MAX_LINE_CHARS else f"{s[:MAX_LINE_CHARS]}… (cut)" for s in lines)
        self._console.print(Text(shown, style=style), soft_wrap=not prose)

    def rule(self) -> None:
        self._console.print(Rule(style="dim"))

    def output(self, stream: Stream, data: bytes) -> None:
        """Show a running command's whole lines as they come."""
        if self.quiet:
            return
        other: Stream = "stderr" if stream == "stdout" else "stdout"
        self._flush(other)  # what came first is shown first
        lines = (self._pending[stream] + self._decoders[stream].decode(data)).split("\n")
        self._pending[stream] = lines.pop()[-2 * MAX_LINE_CHARS :]
        self._shown = True
        for line in lines:
            self.say(line, _STYLES[stream])

    def flush(self) -> bool:
        """Show the last, unfinished lines; say whether the command has shown anything."""
        for stream, decoder in self._decoders.items():
            self._pending[stream] += decoder.decode(b"", final=True)
            decoder.reset()
            self._flush(stream)
        shown, self._shown = self._shown, False
        return shown

    def _flush(self, stream: Stream) -> None:
        text, self._pending[stream] = self._pending[stream], ""
        if text:
            self.say(text, _STYLES[stream])

    # In

    def ask(self, prompt: str, *, remember: bool = False) -> str | None:
        """Return a line, or None at the end of the input (Ctrl-D). Raises KeyboardInterrupt on Ctrl-C."""
        bold = self._console.is_terminal and readline is not None and "NO_COLOR" not in os.environ
        try:
            line = input(f"\001\x1b[1m\002{prompt}\001\x1b[0m\002" if bold else prompt)
        except EOFError:
            print(flush=True)
            return None
        except UnicodeDecodeError:
            self.say("that line was not UTF-8; type it again")
            return ""
        if remember:
            self.remember(line)
        return line.encode("utf-8", "replace").decode("utf-8")

    def remember(self, line: str) -> None:
        """Add a line to what the arrow keys recall."""
        if readline is not None and line.strip() and "\n" not in line:
            readline.add_history(line)

    def agrees(self, question: str) -> bool:
        """Ask a question that only `yes` or `y` answers with yes."""
        try:
            answer = self.ask(f"{question} [yes/no] ")
        except KeyboardInterrupt:
            print(flush=True)
            return False
        return (answer or "").strip().lower() in ("y", "yes")

    def compose(self, name: str, text: str) -> str | None:
        """Let the person write a text: in $VISUAL or $EDITOR, otherwise line by line. None if they do not."""
        editor = os.environ.get("VISUAL") or os.environ.get("EDITOR")
        return self._edit(editor, name, text) if editor and sys.stdin.isatty() else self._read_lines()

    def _edit(self, editor: str, name: str, text: str) -> str | None:
        with tempfile.TemporaryDirectory(prefix="fpenv-") as folder:
            file = Path(folder) / ("".join(c if c.isalnum() or c in ".-_" else "_" for c in Path(name).name) or "text")
            file.write_text(text, encoding="utf-8")
            try:
                with _deaf():
                    code = subprocess.run([*shlex.split(editor), str(file)], check=False).returncode
                if code:
                    self.say(f"{editor} ended with exit code {code}: nothing written", "yellow")
                return file.read_text(encoding="utf-8") if not code else None
            except (OSError, ValueError) as error:  # no such editor, a quote left open, no file, not UTF-8
                self.say(f"$EDITOR is {editor!r}: {error}; nothing written", "yellow")
                return None

    def _read_lines(self) -> str | None:
        self.say("Type the text; a lone . ends it (.. for a line with one dot), Ctrl-C or Ctrl-D drops it.", "dim")
        lines: list[str] = []
        try:
            while (line := self.ask("| ")) != ".":
                if line is None:
                    return None
                lines.append(line[1:] if line.startswith("..") else line)
        except KeyboardInterrupt:
            print(flush=True)
            return None
        return "".join(f"{line}\n" for line in lines)

    # Ctrl-C while a command runs

    def begin(self, advice: str) -> None:
        """From here to `end`, Ctrl-C shows the advice once, then raises Abandoned."""
        self._interrupts = 0
        if threading.current_thread() is threading.main_thread() and self._kept is None:
            self._kept = signal.signal(signal.SIGINT, lambda number, frame: self._interrupted(advice, frame))

    def end(self) -> None:
        if self._kept is not None:
            signal.signal(signal.SIGINT, self._kept)  # type: ignore[arg-type]
            self._kept = None

    def _interrupted(self, advice: str, frame: FrameType | None) -> None:
        self._interrupts += 1
        if self._interrupts > 1:
            self.end()
            raise Abandoned
        # Not through the console: this may run in the middle of one of its own writes.
        os.write(1, f"\r\n{escape(advice)}\r\n".encode())


@contextlib.contextmanager
def _deaf() -> Iterator[None]:
    """Leave Ctrl-C to the child: a handler that does nothing is not inherited, SIG_IGN would be."""
    kept = signal.signal(signal.SIGINT, lambda number, frame: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, kept)
