"""A person at a real pseudo-terminal: types at `fpenv play` and reads what the screen shows."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path

# The program becomes the terminal's foreground job, so that the terminal turns ^C and ^D into what they mean.
_AT_TERMINAL = (
    "import fcntl, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); from fpenv.cli import main; sys.exit(main())"
)
CTRL_C, CTRL_D = "\x03", "\x04"


class Person:
    """Starts `fpenv ARGV` at a terminal. A context manager that ends it."""

    def __init__(self, *argv: str, cwd: Path, editor: str = "") -> None:
        self.screen = ""
        self._read_to = 0
        ours, theirs = pty.openpty()
        env = {**os.environ, "TERM": "xterm", "EDITOR": editor, "VISUAL": "", "COLUMNS": "200", "NO_COLOR": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-c", _AT_TERMINAL, *argv],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            cwd=cwd,
            env=env,
            start_new_session=True,
        )
        os.close(theirs)
        self._terminal = ours

    def types(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def line(self, text: str, then: str = "] $ ") -> str:
        """Type a line, and return what the screen shows from there to the next prompt."""
        self.types(text + "\r")
        return self.sees(then)

    def sees(self, text: str, timeout_s: float = 60.0) -> str:
        """Wait for a text beyond what was seen before; return all up to and with it."""
        deadline = time.monotonic() + timeout_s
        while text not in self.screen[self._read_to :]:
            if not self._receive(deadline):
                raise AssertionError(f"expected {text!r} on the screen, saw:\n{self.screen[self._read_to :]}")
        end = self.screen.index(text, self._read_to) + len(text)
        seen, self._read_to = self.screen[self._read_to : end], end
        return seen

    def presses_until(self, key: str, text: str) -> None:
        """Press a key, again every few seconds as a person would, until a text is seen.

        Python's readline may lose a signal that arrives just before it begins to wait for input.
        """
        for _ in range(10):
            self.types(key)
            with contextlib.suppress(AssertionError):
                self.sees(text, timeout_s=4)
                return
        raise AssertionError(f"expected {text!r} on the screen, saw:\n{self.screen[self._read_to :]}")

    def ends(self, timeout_s: float = 60.0) -> int:
        """Wait for the end; return the exit code."""
        deadline = time.monotonic() + timeout_s
        while self._receive(deadline):
            pass
        return self._process.wait(max(deadline - time.monotonic(), 1))

    def _receive(self, deadline: float) -> bool:
        ready, _, _ = select.select([self._terminal], [], [], max(0.0, deadline - time.monotonic()))
        data = b""
        with contextlib.suppress(OSError):  # the other side has closed
            data = os.read(self._terminal, 65536) if ready else b""
        self.screen += data.decode(errors="replace")
        return bool(data)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Person:
        return self

    def __exit__(self, *exc: object) -> None:
        self.kill()
        os.close(self._terminal)
