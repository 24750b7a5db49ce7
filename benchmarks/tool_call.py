"""What a call through the environment costs, against the plain thing, in one interleaved run.

    call    `bash -c true` through env.step     against   subprocess.run of the same           at most 1.5
    reset   env.reset                           against   bare bwrap starting python with the same mounts,
                                                          until python's first output             at most 2
    own     env.step with a sandbox that answers at once: the environment's own time           at most 0.3 ms

The machine's noise hits both sides of a round alike, so the ratio is taken of the medians of one run; the
spread beside it is that of the rounds' own ratios (quartiles).
"""

from __future__ import annotations

import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from fpenv.env import FrontierPhysicsEnv
from fpenv.sandbox.local.bwrap import find_bwrap
from fpenv.sandbox.local.mounts import default_hidden_paths, plan
from fpenv.sandbox.rootfs import provide_stage
from fpenv.sandbox.runtime import provide
from fpenv.sandbox.sandbox import SandboxSpec
from fpenv.testing.fake_sandbox import FakeBackend

TASK = Path(__file__).resolve().parent.parent / "tests" / "packages" / "coin"
TRUE = {"tool": "bash", "arguments": {"command": "true"}}
LIMITS = {"call": 1.5, "reset": 2.0, "own": 0.3}


def main(rounds: int) -> int:
    """Measure, print, and return 1 where a limit is exceeded."""
    env = FrontierPhysicsEnv(TASK, max_steps=10**9)
    env.reset()
    call = _compare(rounds, lambda: env.step(TRUE), lambda: subprocess.run(["bash", "-c", "true"], check=True))
    bare = bare_bwrap_argv()
    reset = _compare(max(rounds // 4, 10), env.reset, lambda: _first_output(bare))
    env.close()
    fake = FrontierPhysicsEnv(TASK, sandbox=FakeBackend(), max_steps=10**9)
    fake.reset()
    own = statistics.median(_timed(lambda: fake.step(TRUE)) for _ in range(rounds * 5)) * 1e3
    fake.close()
    print(f"{'':8}{'fpenv':>10}{'plain':>10}{'ratio':>8}{'quartiles':>16}{'limit':>8}")
    _show("call", call)
    _show("reset", reset)
    print(f"{'own':8}{own:>7.3f} ms{'':34}{LIMITS['own']:>5} ms")
    measured = {"call": call[0] / call[1], "reset": reset[0] / reset[1], "own": own}
    over = [name for name, value in measured.items() if value > LIMITS[name]]
    print(f"over the limit: {', '.join(over)}" if over else "all within their limits")
    return 1 if over else 0


def bare_bwrap_argv() -> list[str]:
    """A plain bwrap with the mounts of a sandbox, that starts the runtime's python and prints a byte."""
    bwrap = find_bwrap()
    layout = plan(SandboxSpec(), provide("pytest\npypdf\n").path, default_hidden_paths())
    stage, arguments, rest = str(provide_stage()), [], list(layout.arguments)
    while rest:
        word = rest.pop(0)
        if word == "--bind" and rest[0].startswith(stage):
            arguments += ["--tmpfs", rest[1]]
            del rest[:2]
        else:
            arguments.append(word)
    python = ["/opt/runtime/bin/python3", "-I", "-S", "-B", "-c", "import os; os.write(1, b'!')"]
    return [str(bwrap.path), "--unshare-all", "--die-with-parent", *arguments, "--", *python]


def _first_output(argv: list[str]) -> None:
    with subprocess.Popen(argv, stdout=subprocess.PIPE, bufsize=0) as process:
        assert process.stdout is not None
        if process.stdout.read(1) != b"!":
            raise RuntimeError("the bare bwrap did not start python")


def _timed(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def _compare(rounds: int, ours: Callable[[], object], plain: Callable[[], object]) -> tuple[float, float, list[float]]:
    """Median seconds of each, and the quartiles of the rounds' ratios; which goes first alternates."""
    times: list[tuple[float, float]] = []
    for number in range(rounds + 3):
        if number % 2:
            first = _timed(ours)
            pair = (first, _timed(plain))
        else:
            second = _timed(plain)
            pair = (_timed(ours), second)
        times.append(pair)
    times = times[3:]  # warm caches are what thousands of episodes see
    quartiles = statistics.quantiles([a / b for a, b in times], n=4)
    return statistics.median(a for a, _ in times), statistics.median(b for _, b in times), quartiles


def _show(name: str, measured: tuple[float, float, list[float]]) -> None:
    ours, plain, quartiles = measured
    spread = f"{quartiles[0]:.2f} to {quartiles[2]:.2f}"
    print(f"{name:8}{ours * 1e3:>7.2f} ms{plain * 1e3:>7.2f} ms{ours / plain:>8.2f}{spread:>16}{LIMITS[name]:>8}")
