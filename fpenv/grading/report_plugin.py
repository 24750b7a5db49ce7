"""A pytest plugin that runs inside the verifier's sandbox and reports each test's outcome, signed.

Standard library and pytest only; laid read-only into the sandbox. The key arrives through a pipe that
is drained here, so that no environment, command line or file holds it, into a process whose memory is
closed to others: another process can see the report but cannot add a line to it. Code that a test imports
into pytest's own process could find the key there; a verifier that runs deliverables as code must give them
a process of their own.

Each line is `HMAC-SHA256(key, body) body`, body being JSON with a running number. The last says `end`.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import hmac
import json
import os
from collections.abc import Callable
from typing import Any

import pytest

PATH_VARIABLE = "FPENV_REPORT"
KEY_VARIABLE = "FPENV_REPORT_KEY_FD"
MESSAGE_LIMIT = 8000
PR_SET_DUMPABLE = 4
RANK = {"passed": 0, "skipped": 1, "failed": 2, "error": 3}


def _receive() -> Callable[..., None] | None:
    path, number = os.environ.pop(PATH_VARIABLE, ""), os.environ.pop(KEY_VARIABLE, "")
    # A program that a test starts runs as the same user: without this it could read the key from /proc/PID/mem.
    if ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
        return None
    try:
        with open(int(number), "rb") as pipe:
            key = pipe.read().strip()
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_NOFOLLOW, 0o600)
    except (OSError, ValueError):
        return None
    if len(key) < 32:
        return None
    written = [0]

    def write(kind: str, **fields: Any) -> None:
        body = json.dumps({"n": written[0], "kind": kind, **fields}, sort_keys=True).encode()
        written[0] += 1
        rest = hmac.new(key, body, hashlib.sha256).hexdigest().encode() + b" " + body + b"\n"
        while rest:
            rest = rest[os.write(fd, rest) :]

    return write


_write = _receive()


def _outcome(report: Any) -> str:
    if hasattr(report, "wasxfail"):
        return "skipped"
    if report.outcome == "failed":
        return "failed" if report.when == "call" else "error"
    return str(report.outcome)


def _message(report: Any) -> str:
    longrepr = report.longrepr
    if longrepr is None:
        return str(getattr(report, "wasxfail", "") or "")
    if isinstance(longrepr, tuple):
        return str(longrepr[-1])
    crash = getattr(longrepr, "reprcrash", None)
    return str(longrepr if crash is None else crash.message)


class Reporter:
    """Collects setup, call and teardown of each test, and writes the worst of them."""

    def __init__(self, write: Callable[..., None]) -> None:
        self.write = write
        self.worst: dict[str, tuple[str, str]] = {}

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.write("collected", ids=[item.nodeid for item in session.items])

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.write("uncollected", id=report.nodeid, message=_message(report)[:MESSAGE_LIMIT])

    def pytest_runtest_logreport(self, report: Any) -> None:
        outcome = _outcome(report)
        before = self.worst.get(report.nodeid)
        if before is None or RANK[outcome] > RANK[before[0]]:
            text = "" if outcome == "passed" else _message(report)[:MESSAGE_LIMIT]
            self.worst[report.nodeid] = (outcome, text)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        outcome, message = self.worst.pop(nodeid, ("error", "no outcome"))
        self.write("test", id=nodeid, outcome=outcome, message=message)

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        self.write("end", exitstatus=int(exitstatus))


class Ctrf:
    """Writes the small CTRF summary that packages ask for with `--ctrf FILE`."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.status: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: Any) -> None:
        outcome = "failed" if _outcome(report) == "error" else _outcome(report)
        before = self.status.get(report.nodeid, "passed")
        self.status[report.nodeid] = max(before, outcome, key=RANK.__getitem__)

    def pytest_sessionfinish(self) -> None:
        values = list(self.status.values())
        counts = {name: values.count(name) for name in ("passed", "failed", "skipped")}
        summary = {"tests": len(values), **counts, "pending": 0, "other": 0, "start": 0, "stop": 0}
        tests = [{"name": name, "status": status, "duration": 0} for name, status in self.status.items()]
        with open(self.path, "w") as file:
            json.dump({"results": {"tool": {"name": "pytest"}, "summary": summary, "tests": tests}}, file)


def pytest_addoption(parser: pytest.Parser) -> None:
    with contextlib.suppress(ValueError):  # the package loads pytest-json-ctrf by name
        parser.addoption("--ctrf", default=None, help="write a CTRF summary here")


def pytest_configure(config: pytest.Config) -> None:
    if _write is not None:
        config.pluginmanager.register(Reporter(_write), "fpenv-reporter")
    path = getattr(config.option, "ctrf", None)
    if path and not config.pluginmanager.has_plugin("pytest_json_ctrf"):
        config.pluginmanager.register(Ctrf(path), "fpenv-ctrf")
