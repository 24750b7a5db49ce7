"""The verifier: a task's hidden tests, run in a fresh sandbox over frozen deliverables. Its result is D.

The sandbox holds the inputs as handed out, copies of the deliverables in /root, the verifier read-only in
/verifier, and an empty /logs/verifier; nothing of the machine the agent worked in. Each test's outcome
comes from a signed report (`report_plugin`), never from standard output.

D = 1 when every expected test reported `passed` and the package's own reward, where it writes one, is 1.
A skipped, xfailed, deselected or missing test has not passed. A run that is not conclusive (a test did not
report; all passed, yet test.sh failed without a reward) is repeated once on the oracle's deliverables: if
that control is conclusive, the deliverables were the cause and D = 0; if not, the result is ungraded. Without
a control, a run that came to its end with a reward of 0 is D = 0, by the published rules; else it is ungraded.

A package that runs no pytest at all is graded by its own reward alone, as the single test `test.sh`: D = 1 for
a reward of 1. Without a reward it is ungraded, however test.sh ended.

Not covered: a verifier that imports deliverables into pytest's own process lets them find the report's key
in its memory. Only the first pytest that a test.sh starts is heard, and none that is started by `python -I`:
what is then missing leaves every submission of that package ungraded.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib.resources import files as package_files
from pathlib import Path, PurePosixPath
from typing import Any

from fpenv.errors import SandboxError, SandboxGone, VerifierError
from fpenv.grading.outcomes import MAX_REPORT_BYTES, MESSAGE_LIMIT, Report, parse_report, parse_reward
from fpenv.grading.written_tests import complete, written_tests
from fpenv.records import TestOutcome, VerifierResult
from fpenv.sandbox.image_layer import ImageLayer
from fpenv.sandbox.sandbox import Backend, Collected, ExecResult, Limits, Sandbox, SandboxSpec
from fpenv.store import check_name, read_files
from fpenv.untrusted import show

PLUGIN_FOLDER = "/opt/fpenv"
LOGS = "/logs/verifier"
REPORTS = "/logs/report"
KEY_FD = 9
TOO_LONG = "it ran past"

# The key goes in by stdin and on by a pipe that only the plugin drains: no environment or file holds it.
LAUNCHER = (
    f'IFS= read -r key && exec {KEY_FD}< <(printf %s "$key") || exit 97; unset key; '
    'exec /bin/bash "$0/test.sh" < /dev/null'
)
# Only the verifier's own configuration counts, wherever test.sh changes directory to.
PYTEST_OPTIONS = "-c /dev/null --rootdir={mount} --confcutdir={mount} -p no:cacheprovider"
ENVIRONMENT = {
    "HOME": "/tmp",
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    "PYTEST_PLUGINS": "report_plugin",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONHASHSEED": "0",
    "PYTHONNOUSERSITE": "1",
    "PYTHONSAFEPATH": "1",
    "FPENV_REPORT_KEY_FD": str(KEY_FD),
}


@dataclass(frozen=True)
class VerifierJob:
    """All that a verification depends on: the same job twice gives the same result, byte for byte.

    folder: the package's verifier, on the host. deliverables: win over an input of the same path.
    mount: where the package's scripts expect that folder. cwd: where test.sh starts. base: the folder that
        names of inputs and deliverables are relative to. layer: what the task's image adds. env: the package's
        own variables.
    references: become references.json in the verifier's folder, if given.
    expected: ids of the hidden tests relative to `mount`; None takes what the control reports, or else
        what pytest collects in a sandbox without deliverables.
    control: the oracle's deliverables. timeout_s: for one run of test.sh.
    """

    folder: Path
    inputs: Mapping[str, bytes]
    deliverables: Mapping[str, bytes]
    references: Mapping[str, Any] | None = None
    expected: tuple[str, ...] | None = None
    control: Mapping[str, bytes] | None = None
    runtime: Path | None = None
    limits: Limits = field(default_factory=Limits)
    timeout_s: float = 300.0
    mount: str = "/verifier"
    cwd: str = "/"
    base: str = "/root"
    layer: ImageLayer = field(default_factory=ImageLayer)
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Run:
    """One run of test.sh. `reward` is None where the package wrote none; `trouble` says what was wrong with it."""

    report: Report
    reward: float | None = None
    trouble: str = ""
    clean_exit: bool = False
    ending: str = ""


def run_verifier(job: VerifierJob, backend: Backend) -> VerifierResult:
    """Grade the deliverables by the hidden tests.

    What breaks on our side (no sandbox, a lost one) is an ungraded result whose reason says so. Raises
    VerifierError when the verifier's folder has no test.sh.
    """
    if not (job.folder / "test.sh").is_file():
        raise VerifierError(f"{job.folder}: expected a verifier with test.sh, found none")
    try:
        return _verify(job, backend)
    except SandboxError as error:
        return _ungraded(
            job.expected or (), None, f"infrastructure: the verifier's sandbox failed: {show(str(error), 500)}"
        )


def collect_tests(job: VerifierJob, backend: Backend) -> tuple[str, ...]:
    """Ids of the tests that pytest collects without deliverables, in order. Raises SandboxError."""
    return _list_tests(job, backend).report.collected


def _list_tests(job: VerifierJob, backend: Backend) -> Run:
    return _run(replace(job, deliverables={}), backend, extra_options=" --collect-only")


def _verify(job: VerifierJob, backend: Backend) -> VerifierResult:
    control = run = None
    expected = job.expected
    if expected is None and job.control is not None:
        control = _run(replace(job, deliverables=job.control), backend)
        expected = control.report.collected
    elif expected is None:
        listing = _list_tests(job, backend)
        expected = listing.report.collected
        if listing.report == Report():
            return _graded_by_reward(_run(job, backend))
        if listing.report.uncollected:
            run = _run(job, backend)
            written = written_tests(job.folder, (name for name, _ in listing.report.uncollected))
            expected = complete(dict.fromkeys((*expected, *run.report.collected)), written)
    if not expected:
        return _ungraded((), control, "the verifier: expected at least one hidden test, none was reported")
    run = run or _run(job, backend)
    doubt = _doubt(run, expected)
    if not doubt:
        return _graded(run, expected)
    if job.control is None and run.reward == 0 and not run.trouble and not run.ending.startswith(TOO_LONG):
        reason = f"test.sh's own reward is 0 ({doubt})"
        return VerifierResult(status="graded", passed=False, tests=_tests(run.report, expected), reason=reason)
    if job.control is None:
        return _ungraded(expected, run, f"the verifier: {doubt}, and there is no control to tell why")
    control = control or _run(replace(job, deliverables=job.control), backend)
    control_doubt = _doubt(control, expected)
    if control_doubt:
        return _ungraded(
            expected, control, f"the verifier: {doubt}; so too on the oracle's deliverables: {control_doubt}"
        )
    tests = _tests(run.report, expected)
    reason = f"the deliverables kept the verifier from its end ({doubt}); on the oracle's it ends"
    return VerifierResult(status="graded", passed=False, tests=tests, reason=reason)


def _run(job: VerifierJob, backend: Backend, extra_options: str = "") -> Run:
    key = secrets.token_hex(32)
    report = f"{REPORTS}/{secrets.token_hex(16)}"
    options = PYTEST_OPTIONS.format(mount=job.mount) + extra_options
    places = {"PYTEST_ADDOPTS": options, "PYTHONPATH": f"{PLUGIN_FOLDER}:{job.mount}", "FPENV_REPORT": report}
    env = {**job.env, **ENVIRONMENT, **places}
    with job.layer.start(backend, _spec(job)) as sandbox:
        ending, clean = _execute(sandbox, job, key, env)
        names = (f"{LOGS}/reward.json", f"{LOGS}/reward.txt")
        found = _collect(sandbox, (report, *names))
    reward, trouble = parse_reward({Path(name).name: found[name] for name in names if name in found})
    return Run(parse_report(found.get(report, b""), key.encode()), reward, trouble, clean, ending)


def _spec(job: VerifierJob) -> SandboxSpec:
    verifier = read_files(job.folder)
    if job.references is not None:
        verifier["references.json"] = json.dumps(dict(job.references), sort_keys=True, indent=1).encode()
    plugin = package_files("fpenv.grading").joinpath("report_plugin.py").read_bytes()
    handed = {**job.inputs, **job.deliverables}
    return SandboxSpec(
        runtime=job.runtime,
        files={f"{folder}/.keep": b"" for folder in (LOGS, REPORTS)}
        | {str(PurePosixPath(job.base) / check_name(name)): content for name, content in handed.items()},
        read_only={job.mount: verifier, PLUGIN_FOLDER: {"report_plugin.py": plugin}},
        limits=job.limits,
    )


def _execute(sandbox: Sandbox, job: VerifierJob, key: str, env: Mapping[str, str]) -> tuple[str, bool]:
    """Run test.sh; return how it ended, in words, and whether it exited with 0."""
    command = ["/bin/bash", "-c", LAUNCHER, job.mount]
    try:
        result = sandbox.exec(command, timeout_s=job.timeout_s, cwd=job.cwd, env=env, stdin=f"{key}\n".encode())
    except SandboxGone as gone:
        if not gone.by_agent:
            raise
        return "its sandbox was ended from inside", False
    return _ending(result, job.timeout_s), result.exit_code == 0 and not result.timed_out


def _ending(result: ExecResult, timeout_s: float) -> str:
    how = f"{TOO_LONG} {timeout_s:g} s" if result.timed_out else f"test.sh exited with {result.exit_code}"
    said = show((result.stdout[-1000:] + b"\n" + result.stderr[-1000:]).decode("utf-8", "replace").strip(), 1500)
    return f"{how}, last saying: {said}" if said else how


def _collect(sandbox: Sandbox, paths: tuple[str, ...]) -> Mapping[str, bytes]:
    try:
        collected: Collected = sandbox.collect(paths, max_bytes=MAX_REPORT_BYTES)
    except SandboxGone as gone:
        if not gone.by_agent:
            raise
        return {}
    return collected.files


def _doubt(run: Run, expected: tuple[str, ...]) -> str:
    """Why the run decides nothing, or an empty text when it is conclusive."""
    reported = {test.test_id for test in run.report.outcomes}
    missing = [name for name in expected if name not in reported]
    if missing:
        return f"{len(missing)} of {len(expected)} expected tests did not report, the first is {missing[0]}"
    if not run.report.ended:
        return "the test session did not come to its own end"
    if not all(test.outcome == "passed" for test in _tests(run.report, expected)):
        return ""  # one failed test decides, whatever test.sh makes of it
    if run.trouble:
        return run.trouble
    if run.reward is None and not run.clean_exit:
        return "every test passed, but test.sh failed and wrote no reward"
    return ""


def _graded(run: Run, expected: tuple[str, ...]) -> VerifierResult:
    tests = _tests(run.report, expected)
    passed = all(test.outcome == "passed" for test in tests)
    agrees = run.reward is None or abs(run.reward - 1) <= 1e-9
    reason = ""
    if passed and not agrees:
        reason = f"every test passed, but test.sh's own reward is {run.reward:g}, not 1"
    elif not passed and run.reward is not None and agrees:
        reason = "test.sh's own reward is 1 although a test did not pass: the tests count"
    return VerifierResult(status="graded", passed=passed and agrees, tests=tests, reason=reason)


def _graded_by_reward(run: Run) -> VerifierResult:
    """By the published rules, for a package that runs no pytest."""
    name = "test.sh"
    if run.trouble or run.reward is None or run.ending.startswith(TOO_LONG):
        return _ungraded((name,), run, f"the verifier: {run.trouble or 'no pytest ran, and no reward was written'}")
    passed = abs(run.reward - 1) <= 1e-9
    message = "" if passed else f"test.sh's own reward is {run.reward:g}, not 1"
    test = TestOutcome(test_id=name, outcome="passed" if passed else "failed", message=message)
    return VerifierResult(status="graded", passed=passed, tests=(test,), reason=message)


def _tests(report: Report, expected: tuple[str, ...]) -> tuple[TestOutcome, ...]:
    """The expected tests in their order; then those that nobody expected and that did not pass."""
    found = {test.test_id: test for test in report.outcomes}
    why = "; ".join(f"{name}: {message}" for name, message in report.uncollected)
    message = show(f"did not report: {why}" if why else "did not report", MESSAGE_LIMIT)
    known = [found.get(name) or TestOutcome(test_id=name, outcome="missing", message=message) for name in expected]
    wanted = set(expected)
    extra = [test for test in report.outcomes if test.test_id not in wanted and test.outcome != "passed"]
    return (*known, *extra)


def _ungraded(expected: tuple[str, ...], run: Run | None, reason: str) -> VerifierResult:
    tests = _tests(run.report if run else Report(), expected)
    if run and run.ending:
        reason = f"{reason} ({run.ending})"
    return VerifierResult(status="ungraded", passed=False, tests=tests, reason=reason)
