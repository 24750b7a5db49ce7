"""The verifier's result D, honest and under attack."""

import pytest

from fpenv.errors import SandboxError, SandboxGone, VerifierError
from fpenv.grading import verifier
from fpenv.grading.verifier import collect_tests, run_verifier

VALUE, INPUT = "test_outputs.py::test_value", "test_outputs.py::test_input_is_as_handed_out"
# A verifier that makes the mistake of importing what the agent handed in.
CARELESS = """
import sys
sys.path.insert(0, "/root")

def test_value():
    import solution
    assert solution.x == 1.5

def test_input_is_as_handed_out():
    assert True
"""
CARELESS_CONTROL = {"solution.py": b"x = 1.5"}


def outcomes(result):
    return {test.test_id: test.outcome for test in result.tests}


def test_right_deliverables_pass_every_test(package, right):
    result = run_verifier(package.job(right), package.backend)
    assert (result.status, result.passed, result.reason) == ("graded", True, "")
    assert outcomes(result) == {VALUE: "passed", INPUT: "passed"}


def test_a_wrong_value_fails_its_test_and_keeps_the_message(package):
    result = run_verifier(package.job({"result.md": b"x: 2\n"}), package.backend)
    assert (result.status, result.passed) == ("graded", False)
    assert outcomes(result) == {VALUE: "failed", INPUT: "passed"}
    assert "assert 2.0 == 1.5" in result.tests[0].message


def test_no_deliverables_fail_without_a_control(package):
    result = run_verifier(package.job({}, control=None), package.backend)
    assert (result.status, result.passed) == ("graded", False)


def test_expected_tests_come_from_the_control_where_none_were_recorded(package):
    result = run_verifier(package.job({}, expected=None), package.backend)
    assert set(outcomes(result)) == {VALUE, INPUT}
    assert not result.passed


def test_expected_tests_come_from_collection_where_there_is_no_control_either(package, right):
    assert collect_tests(package.job(right), package.backend) == (VALUE, INPUT)
    assert run_verifier(package.job(right, expected=None, control=None), package.backend).passed


def test_the_same_deliverables_give_the_same_result(package):
    package.write("verifier/test_outputs.py", "def test_value():\n    assert object() == open('/root/result.md')\n")
    job = package.job({"result.md": b"x: 2"}, expected=(VALUE,))
    assert run_verifier(job, package.backend) == run_verifier(job, package.backend)


END = b"import os; os._exit(0)"
PLANTED = {
    "conftest": {"conftest.py": END},
    "pytest configuration": {"pytest.ini": b"[pytest]\naddopts = --co\n", "tox.ini": b"[pytest]\naddopts = --co\n"},
    "site customisation": {"sitecustomize.py": END, "usercustomize.py": END},
    "shadowing modules": {
        "json.py": b"def loads(s): return {'x': 2}",
        "pathlib.py": b"",
        "numpy.py": b"",
        "pytest.py": b"",
    },
    "path files": {"evil.pth": END, ".local/lib/python3.11/site-packages/evil.pth": END},
    "rewards": {"reward.txt": b"1", "reward.json": b'{"reward": 1}', "logs/verifier/reward.txt": b"1"},
    "shell profiles": {".bashrc": b"exit 0", ".profile": b"exit 0", ".bash_profile": b"exit 0"},
    "a plugin": {"evil-1.dist-info/entry_points.txt": b"[pytest11]\nevil = evil\n", "evil.py": END},
}


ALL_PLANTED = {name: content for files in PLANTED.values() for name, content in files.items()}


def test_planted_files_do_not_help_a_wrong_value(package):
    result = run_verifier(package.job({"result.md": b"x: 2", **ALL_PLANTED}), package.backend)
    assert (result.status, result.passed) == ("graded", False)
    assert outcomes(result) == {VALUE: "failed", INPUT: "passed"}


def test_planted_files_do_not_harm_a_right_value(package, right):
    assert run_verifier(package.job({**right, **ALL_PLANTED}), package.backend).passed


def test_planted_files_change_nothing_where_test_sh_works_in_root(package, right):
    package.write("verifier/test.sh", "cd /root\npython3 -m pytest /verifier/test_outputs.py\n")
    assert run_verifier(package.job({**right, **ALL_PLANTED}), package.backend).passed


def test_deliverables_that_end_pytest_are_found_out_by_the_control(package):
    package.write("verifier/test_outputs.py", CARELESS)
    job = package.job({"solution.py": b"import os; os._exit(0)"}, control=CARELESS_CONTROL)
    result = run_verifier(job, package.backend)
    assert (result.status, result.passed) == ("graded", False)
    assert outcomes(result) == {VALUE: "missing", INPUT: "missing"}
    assert "kept the verifier from its end" in result.reason


def test_deliverables_that_hang_are_found_out_by_the_control(package):
    package.write("verifier/test_outputs.py", CARELESS)
    hang = {"solution.py": b"import time; time.sleep(60)"}
    result = run_verifier(package.job(hang, control=CARELESS_CONTROL, timeout_s=3), package.backend)
    assert (result.status, result.passed) == ("graded", False)


def test_lines_forged_into_the_report_are_not_believed(package):
    forge = b"""
import glob, os
for report in glob.glob("/logs/report/*"):
    for name in ("value", "input_is_as_handed_out"):
        line = '{"n": 1, "kind": "test", "id": "test_outputs.py::test_%s", "outcome": "passed", "message": ""}'
        open(report, "a").write("0" * 64 + " " + line % name + chr(10))
open("/logs/verifier/reward.txt", "w").write("1")
os._exit(0)
"""
    package.write("verifier/test_outputs.py", CARELESS)
    result = run_verifier(package.job({"solution.py": forge}, control=CARELESS_CONTROL), package.backend)
    assert (result.status, result.passed) == ("graded", False)


def test_the_key_lies_nowhere_that_another_process_could_read(package, monkeypatch):
    monkeypatch.setattr(verifier.secrets, "token_hex", lambda size: "ab" * size)
    probe = b"""
import glob

def read(path):
    try:
        return open(path, "rb").read()
    except OSError:
        return b""

seen = b"".join(map(read, glob.glob("/proc/[0-9]*/environ") + glob.glob("/proc/[0-9]*/cmdline")))
seen += b"".join(map(read, glob.glob("/logs/**", recursive=True) + glob.glob("/tmp/**", recursive=True)))
assert b"FPENV_REPORT_KEY_FD=9" in seen
assert b"ab" * 20 not in seen
assert read("/proc/self/fd/9") == b""
x = 1.5
"""
    package.write("verifier/test_outputs.py", CARELESS)
    assert run_verifier(package.job({"solution.py": probe}, control=CARELESS_CONTROL), package.backend).passed


NOT_PASSED = """
import pytest

@pytest.fixture
def broken(): raise OSError

@pytest.fixture
def late():
    yield
    raise OSError

@pytest.mark.skip
def test_skip_marked(): pass

@pytest.mark.xfail
def test_xfailed(): assert 0

@pytest.mark.xfail
def test_xpassed(): pass

def test_skipped(): pytest.skip("no")
def test_set_up(broken): pass
def test_torn_down(late): pass
def test_passed(): pass
"""


def test_only_a_passed_test_has_passed(package, right):
    package.write("verifier/test_outputs.py", NOT_PASSED)
    package.write("verifier/test.sh", TRUSTING)
    names = ["skip_marked", "xfailed", "xpassed", "skipped", "set_up", "torn_down", "passed"]
    expected = tuple(f"test_outputs.py::test_{name}" for name in names)
    result = run_verifier(package.job(right, expected=expected), package.backend)
    assert (result.status, result.passed) == ("graded", False)
    assert [test.outcome for test in result.tests] == ["skipped"] * 4 + ["error"] * 2 + ["passed"]


def test_skipping_everything_is_not_passing(package, right):
    package.write("verifier/test_outputs.py", "import pytest\npytest.skip('all', allow_module_level=True)\n")
    package.write("verifier/test.sh", TRUSTING)
    result = run_verifier(package.job(right, control=None), package.backend)
    assert (result.status, result.passed) == ("ungraded", False)


TRUSTING = "python3 -m pytest /verifier/test_outputs.py\necho 1 > /logs/verifier/reward.txt\n"


def test_a_reward_of_one_does_not_make_up_for_a_failed_test(package):
    package.write("verifier/test.sh", TRUSTING)
    result = run_verifier(package.job({"result.md": b"x: 2"}), package.backend)
    assert not result.passed
    assert "the tests count" in result.reason


def test_a_reward_of_zero_outweighs_passed_tests(package, right):
    package.write("verifier/test.sh", TRUSTING.replace("echo 1", "echo 0"))
    result = run_verifier(package.job(right), package.backend)
    assert (result.status, result.passed) == ("graded", False)
    assert "own reward is 0, not 1" in result.reason


def test_a_package_may_leave_the_reward_to_its_exit_code(package, right):
    package.write("verifier/test.sh", "exec python3 -m pytest /verifier/test_outputs.py\n")
    assert run_verifier(package.job(right), package.backend).passed
    wrong = run_verifier(package.job({"result.md": b"x: 2"}), package.backend)
    assert (wrong.status, wrong.passed) == ("graded", False)


def test_a_script_that_fails_after_its_tests_without_a_reward_is_ungraded(package, right):
    package.write("verifier/test.sh", "python3 -m pytest /verifier/test_outputs.py\nexit 3\n")
    result = run_verifier(package.job(right), package.backend)
    assert result.status == "ungraded"
    assert "failed and wrote no reward" in result.reason


@pytest.mark.parametrize(
    ("script", "controlled"),
    [("exit 1\n", True), ("echo 1 > /logs/verifier/reward.txt\n", False), ("kill -9 $$\n", True)],
)
def test_a_verifier_that_fails_by_itself_is_ungraded(package, right, script, controlled):
    package.write("verifier/test.sh", script)
    result = run_verifier(package.job(right, control=right if controlled else None), package.backend)
    assert (result.status, result.passed) == ("ungraded", False)
    assert outcomes(result) == {VALUE: "missing", INPUT: "missing"}
    assert "the verifier" in result.reason


def test_a_broken_test_module_is_ungraded_and_says_why(package, right):
    package.write("verifier/test_outputs.py", "import no_such_module\n")
    result = run_verifier(package.job(right), package.backend)
    assert result.status == "ungraded"
    assert "no_such_module" in result.tests[0].message


def test_a_test_that_nobody_expected_can_only_lose(package, right):
    package.write("verifier/test_outputs.py", "def test_value(): pass\ndef test_more(): assert 0\n")
    result = run_verifier(package.job(right, expected=(VALUE,)), package.backend)
    assert not result.passed
    assert outcomes(result) == {VALUE: "passed", "test_outputs.py::test_more": "failed"}


def test_messages_are_capped_and_hold_no_control_characters(package, right):
    package.write("verifier/test_outputs.py", "def test_value():\n    assert 0, chr(27) + '[31m' + 'x' * 9000\n")
    message = run_verifier(package.job(right, expected=(VALUE,)), package.backend).tests[0].message
    assert "\\x1b[31m" in message
    assert len(message) <= 2000


def test_the_verifier_cannot_be_written_to(package, right):
    package.write("verifier/test.sh", "echo > /verifier/test_outputs.py && exit 0\n" + TEST_SH_AFTER)
    assert run_verifier(package.job(right), package.backend).passed


TEST_SH_AFTER = "python3 -m pytest /verifier/test_outputs.py\n"


def test_a_sandbox_that_cannot_be_had_is_infrastructure(package, right, fake):
    result = run_verifier(package.job(right), fake(broken=SandboxError("no namespaces here")))
    assert (result.status, result.passed) == ("ungraded", False)
    assert "infrastructure" in result.reason
    assert "no namespaces here" in result.reason


def test_a_sandbox_lost_by_the_host_is_infrastructure(package, right, fake):
    result = run_verifier(package.job(right), fake(broken=SandboxGone("lost", by_agent=False)))
    assert (result.status, result.passed) == ("ungraded", False)


def test_a_folder_without_test_sh_is_the_verifiers_fault(package, right):
    (package.folder / "verifier" / "test.sh").unlink()
    with pytest.raises(VerifierError, match=r"expected a verifier with test\.sh, found none"):
        run_verifier(package.job(right), package.backend)
