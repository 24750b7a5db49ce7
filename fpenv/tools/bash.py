"""Run a shell command in the sandbox."""

from __future__ import annotations

from pydantic import Field

from fpenv.records import ToolResult
from fpenv.tools.tool import Arguments, Room, ShellText, Tool

OUTPUT_LIMIT = 32 << 10
DEFAULT_TIMEOUT_S = 120.0


class BashArguments(Arguments):
    command: ShellText = Field(min_length=1, max_length=1 << 20)
    timeout_s: float = Field(default=DEFAULT_TIMEOUT_S, gt=0, le=36_000, strict=False)


class Bash(Tool[BashArguments]):
    """`bash -c COMMAND` in /root. Each call is a process group of its own, killed when the call ends."""

    name = "bash"
    description = (
        "Run a shell command in /root and return stdout, stderr and the exit code. Each call is a new shell: no "
        "variables, working directory or background processes are kept. timeout_s limits the call (default "
        f"{DEFAULT_TIMEOUT_S:.0f}). Of each stream at most {OUTPUT_LIMIT >> 10} KiB are shown, head and tail."
    )
    arguments = BashArguments

    def run(self, arguments: BashArguments, room: Room) -> ToolResult:
        timeout = max(0.05, min(arguments.timeout_s, room.seconds_left()))
        done = room.sandbox.exec(
            ("bash", "-c", arguments.command),
            timeout_s=timeout,
            output_limit=OUTPUT_LIMIT,
            on_output=room.on_output,
        )
        parts = [
            _stream(done.stdout, done.stdout_head, done.stdout_cut),
            _stream(done.stderr, done.stderr_head, done.stderr_cut, label="[stderr]\n"),
        ]
        if done.timed_out:
            parts.append(f"[killed at its time limit of {timeout:.1f} s]")
        elif done.exit_code:
            parts.append(f"[exit code {done.exit_code}]")
        return ToolResult(
            output="\n".join(part for part in parts if part),
            failed=done.timed_out or done.exit_code != 0,
            data={
                "exit_code": done.exit_code,
                "timed_out": done.timed_out,
                "stdout_cut": done.stdout_cut,
                "stderr_cut": done.stderr_cut,
            },
        )


def _stream(data: bytes, head: int, cut: int, label: str = "") -> str:
    if not data:
        return ""
    if not cut:
        return label + data.decode("utf-8", "replace").rstrip("\n")
    first, last = data[:head].decode("utf-8", "replace"), data[head:].decode("utf-8", "replace")
    return f"{label}{first}\n[... {cut:,} bytes cut ...]\n{last}".rstrip("\n")
