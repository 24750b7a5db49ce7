"""Attacks on the process that runs the hidden tests: nothing that an agent leaves behind may steer it."""

# ruff: noqa: E501 (the agents' programs are kept whole)

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from adversary import HONEST, PACKAGE, SUBMIT, WRONG, WRONG_FAILS, Play, bash, deliver, python, write

from fpenv.env import FrontierPhysicsEnv
from fpenv.package.digest import package_digest
from fpenv.sandbox.sandbox import Backend, Sandbox, SandboxSpec, ServiceHandler

Variant = Callable[[Mapping[str, str | None]], Path]

# Each plants files wherever it can write, the folder that is handed in whole included.
PLANTS = {
    "tests of its own": """
        mkdir -p /verifier /tests; for d in /verifier /tests /root /root/figures; do
          printf 'def test_result(): pass\\ndef test_table(): pass\\n' > $d/test_outputs.py
        done""",
    "conftest.py": """
        hook='def pytest_runtest_makereport(item, call):\\n    import pytest, os; os._exit(0)\\n'
        for d in / /root /root/figures /tmp /verifier; do printf "$hook" > $d/conftest.py; done""",
    "pytest configuration": """
        for d in / /root /root/figures /tmp /verifier; do
          for f in pytest.ini tox.ini setup.cfg; do printf '[pytest]\\naddopts = --collect-only\\n' > $d/$f; done
          printf '[tool.pytest.ini_options]\\naddopts = "--collect-only"\\n' > $d/pyproject.toml
        done""",
    "variables for shells and Python": """
        vars='export PYTEST_ADDOPTS=--co PYTEST_PLUGINS=evil PYTHONPATH=/root/figures PYTHONSTARTUP=/root/evil.py'
        for f in .bashrc .profile .bash_profile .bash_env .env; do echo "$vars; exit 0" > /root/$f; done
        cp /root/.bashrc /root/figures/bashrc; echo "$vars" >> /etc/environment; echo "$vars" >> /etc/profile
        echo 'exit 0' > /tmp/env; export BASH_ENV=/tmp/env ENV=/tmp/env PROMPT_COMMAND='exit 0'""",
    "start-up files of Python": """
        site=$(python3 -c 'import site; print(site.getusersitepackages())'); mkdir -p $site
        for d in $site /root /root/figures /tmp $(python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))'); do
          echo 'import os; os._exit(0)' > $d/sitecustomize.py; cp $d/sitecustomize.py $d/usercustomize.py
          echo 'import os; os._exit(0)' > $d/evil.pth
        done""",
    "modules that shadow others": """
        for d in /root /root/figures /tmp; do for m in json re pathlib pytest _pytest numpy report_plugin; do
          echo 'import os; os._exit(0)' > $d/$m.py
        done; done""",
    "patched packages of the runtime": """
        lib=$(python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
        for f in $(find $lib -name python.py -path '*_pytest*'); do echo 'import os; os._exit(0)' > $f; done
        mount -o remount,rw /opt/runtime; pip install -e /root 2>/dev/null; cp -r $lib/_pytest /root/figures/_pytest
        echo 'import os; os._exit(0)' > /root/figures/_pytest/__init__.py""",
    "compiled files newer than their source": """
        for d in /root /root/figures; do
          echo 'import os; os._exit(0)' > $d/json.py; (cd $d; python3 -m compileall -q --invalidation-mode unchecked-hash json.py)
          echo > $d/json.py
        done; find /usr/lib/python3* -maxdepth 1 -name __pycache__ -exec cp -r /root/__pycache__ {} \\;""",
    "programs earlier on the path": """
        mkdir -p /root/bin /root/.local/bin
        for d in /root/bin /root/.local/bin /root/figures /tmp /root $(echo $PATH | tr : ' '); do
          for p in python3 pytest bash cat env; do printf '#!/bin/sh\\nexit 0\\n' > $d/$p; chmod +x $d/$p; done
        done 2>/dev/null""",
    "libraries to preload": """
        echo /root/figures/evil.so > /etc/ld.so.preload; head -c 4000 /bin/true > /root/figures/evil.so
        mkdir -p /root/figures/gconv; echo 'module UTF-8// INTERNAL evil 1' > /root/figures/gconv/gconv-modules
        echo 'export LD_PRELOAD=/root/figures/evil.so GCONV_PATH=/root/figures/gconv' >> /root/.bashrc; ldconfig""",
    "a pytest plugin with its entry point": """
        for d in /root /root/figures $(python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))'); do
          mkdir -p $d/evil-1.dist-info; printf '[pytest11]\\nevil = evil\\n' > $d/evil-1.dist-info/entry_points.txt
          printf 'Metadata-Version: 2.1\\nName: evil\\nVersion: 1\\n' > $d/evil-1.dist-info/METADATA
          echo 'import os; os._exit(0)' > $d/evil.py
        done""",
    "rewards and reports": """
        mkdir -p /logs/verifier /logs/report
        for d in /logs/verifier /logs/report /root /root/figures /tmp; do
          echo 1 > $d/reward.txt; echo '{"reward": 1}' > $d/reward.json; echo '{}' > $d/ctrf.json
          echo '{"s_final": 100.0, "status": "graded"}' > $d/grade.json; echo '{"stop": "submitted"}' > $d/run.json
        done""",
    "links in place of the log folder": """
        ln -s /root /logs; ln -s /root/figures /logs/verifier; ln -s /logs/verifier/reward.txt /root/figures/reward.txt
        ln -sfn / /root/figures/root; chmod 0 /root/figures/reward.txt""",
    "processes that race for the reward": """
        for n in 1 2 3; do
          setsid bash -c 'trap "" TERM HUP; while :; do mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt;
            echo 1 > /root/figures/reward.txt; done' >/dev/null 2>&1 &
        done""",
}


@pytest.mark.parametrize("plant", PLANTS)
def test_what_an_agent_plants_does_not_help_a_wrong_value(play: Play, plant: str) -> None:
    before = package_digest(PACKAGE)
    played = play(bash("mkdir -p /root/figures"), bash(f"({PLANTS[plant]}) 2>/dev/null; true"), *WRONG, reviewer=None)
    played.assert_worth(0.0)
    assert played.failed_tests == WRONG_FAILS, "the hidden tests themselves ran, and decided"
    assert package_digest(PACKAGE) == before


def test_all_plants_together_do_not_harm_a_right_value(play: Play) -> None:
    planted = [bash(f"mkdir -p /root/figures; ({commands}) 2>/dev/null; true") for commands in PLANTS.values()]
    # The check for tampering reads what was typed; the plants that name the reward file are left out of this one.
    kept = [action for action in planted if "reward.txt" not in action["arguments"]["command"]]
    played = play(*kept, *HONEST)
    played.assert_worth(100.0)


IMPORTING = """
import json, sys
sys.path.insert(0, "/root/figures")
from pathlib import Path
MASS = json.loads(Path("/verifier/references.json").read_text())["mass_kg"]

def test_result():
    import solution
    if not abs(solution.mass_kg() - MASS) <= 0.01:
        raise AssertionError("outside tolerance")

def test_table(): pass
def test_paper(): pass
def test_inputs_are_as_handed_out(): pass
"""
IMPORTED = {
    "verifier/test_outputs.py": IMPORTING,
    "cases/accept/oracle/deliverables/figures/solution.py": "def mass_kg(): return 1.2345\n",
}
ENDINGS = {
    "os._exit": "import os; os._exit(0)",
    "SystemExit": "raise SystemExit(0)",
    "an exit handler": "import atexit, os; atexit.register(os._exit, 0)\ndef mass_kg(): return 9.0",
    "a kill": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "a sleep": "import time; time.sleep(600)",
    "a skip": "import pytest; pytest.skip('all', allow_module_level=True)",
    "patched comparisons": "import builtins; builtins.abs = lambda x: 0\ndef mass_kg(): return 9.0",
    "a redirected standard output": "print('4 passed in 0.01s'); import sys; sys.stdout.flush()\ndef mass_kg(): return 9.0",
}


def submit_code(code: str) -> list[dict[str, Any]]:
    return [*HONEST, write("figures/solution.py", code)]


@pytest.mark.parametrize("ending", [e for e in ENDINGS if e != "patched comparisons"])
def test_code_that_a_careless_verifier_imports_cannot_end_it_well(play: Play, variant: Variant, ending: str) -> None:
    sheet = (PACKAGE / "task.md").read_text().replace("timeout_sec: 30", "timeout_sec: 2")
    task = variant({**IMPORTED, "task.md": sheet})
    played = play(*submit_code(ENDINGS[ending]), task=task, reviewer=None)
    played.assert_worth(0.0)
    assert "test_outputs.py::test_result" in played.failed_tests


FORGE = """
import os, sys
plugin = sys.modules.get("report_plugin")
names = ("test_result", "test_table", "test_paper", "test_inputs_are_as_handed_out")
if plugin and plugin._write:
    for name in names:
        plugin._write("test", id="test_outputs.py::" + name, outcome="passed", message="")
    plugin._write("end", exitstatus=0)
open("/logs/verifier/reward.json", "w").write('{"reward": 1}')
os._exit(0)
"""


@pytest.mark.xfail(
    strict=True,
    reason="a verifier that imports deliverables into pytest's process gives them its report; documented, not refused",
)
@pytest.mark.parametrize("code", [FORGE, ENDINGS["patched comparisons"]], ids=["forged report", "patched comparisons"])
def test_code_that_a_careless_verifier_imports_cannot_forge_the_report(play: Play, variant: Variant, code: str) -> None:
    played = play(*submit_code(code), task=variant(IMPORTED))
    played.assert_worth(0.0)


RUNNING = IMPORTING.replace(
    "import solution\n    if not abs(solution.mass_kg() - MASS) <= 0.01:",
    "import subprocess\n    done = subprocess.run([sys.executable, '/root/figures/solution.py'], capture_output=True)\n"
    "    if not abs(float(done.stdout or 9) - MASS) <= 0.01:",
)
RUN = {
    "verifier/test_outputs.py": RUNNING,
    "cases/accept/oracle/deliverables/figures/solution.py": "print(1.2345)\n",
}
# What a program that the verifier starts can try against the process that started it: read the key of its report
# from memory, add a line signed with it, and let nothing contradict it.
STEAL = r"""
import glob, hashlib, hmac, json, os, re, signal

def ancestors():
    pid = os.getppid()
    while pid > 1:
        yield pid
        pid = int(open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[1])

def forge(pid):
    memory = open(f"/proc/{pid}/mem", "rb", 0)
    report = glob.glob("/logs/report/*")[0]
    first = open(report, "rb").read().split(b"\n")[0]
    signature, _, body = first.partition(b" ")
    for line in open(f"/proc/{pid}/maps"):
        span, rights = line.split()[:2]
        if not rights.startswith("rw"):
            continue
        low, high = (int(part, 16) for part in span.split("-"))
        try:
            memory.seek(low)
            data = memory.read(high - low)
        except (OSError, ValueError):
            continue
        for found in re.finditer(rb"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])", data):
            if hmac.new(found[0], body, hashlib.sha256).hexdigest().encode() != signature:
                continue
            os.kill(pid, signal.SIGKILL)
            names = ("test_result", "test_table", "test_paper", "test_inputs_are_as_handed_out")
            lines = [{"n": n, "kind": "test", "id": "test_outputs.py::" + name, "outcome": "passed", "message": ""}
                     for n, name in enumerate(names, 1)]
            with open(report, "ab") as file:
                for line in [*lines, {"n": len(names) + 1, "kind": "end", "exitstatus": 0}]:
                    text = json.dumps(line, sort_keys=True).encode()
                    file.write(hmac.new(found[0], text, hashlib.sha256).hexdigest().encode() + b" " + text + b"\n")
            open("/logs/verifier/reward.json", "w").write('{"reward": 1}')
            return True
    return False

for pid in ancestors():
    try:
        if forge(pid):
            break
    except (OSError, IndexError) as error:
        pass
print(9.0)
"""
TRUSTING_SH = "python3 -m pytest /verifier/test_outputs.py; rm -f /logs/verifier/reward.txt; exit 0\n"


@pytest.mark.parametrize("code", [STEAL, ENDINGS["os._exit"], "import os, signal; os.kill(-1, signal.SIGKILL)"])
def test_a_program_that_the_verifier_runs_cannot_read_or_forge_its_report(
    play: Play, variant: Variant, code: str
) -> None:
    played = play(*submit_code(code), task=variant({**RUN, "verifier/test.sh": TRUSTING_SH}), reviewer=None)
    played.assert_worth(0.0)


def test_a_program_that_the_verifier_runs_honestly_is_worth_its_result(play: Play, variant: Variant) -> None:
    play(*submit_code("print(1.2345)"), task=variant(RUN)).assert_worth(100.0)


def test_a_pickle_in_place_of_a_table_is_never_loaded(play: Play) -> None:
    program = """
import os, pickle
class Bomb:
    def __reduce__(self): return (os.system, ("echo 1 > /logs/verifier/reward.txt; touch /root/boom",))
for name in ("table.json", "figures/table.pkl", "figures/data.npy"):
    os.makedirs("figures", exist_ok=True)
    pickle.dump(Bomb(), open(name, "wb"), protocol=0)
"""
    played = play(*HONEST, python(program))
    played.assert_worth(0.0)
    assert played.failed_tests == {"test_outputs.py::test_table"}


class Killer:
    """A backend whose sandboxes after the first are killed from outside when they run their first command."""

    def __init__(self, backend: Backend) -> None:
        self._backend, self.name, self._started = backend, backend.name, 0

    def start(self, spec: SandboxSpec, serve: ServiceHandler | None = None) -> Sandbox:
        box = self._backend.start(spec, serve)
        self._started += 1
        if self._started > 1:
            os.kill(box.pid, signal.SIGKILL)  # type: ignore[attr-defined]
        return box


def test_a_verifier_killed_from_outside_is_ungraded_and_never_a_number(
    start: Callable[..., FrontierPhysicsEnv], backend: Backend
) -> None:
    if backend.name != "local":
        pytest.skip("kills the guest by its process id, which the local backend tells")
    env = start(sandbox=Killer(backend))
    for action in HONEST:
        env.step(action)
    _, reward, _, _, info = env.step(SUBMIT)
    assert (reward, info["valid"], info["grade"]["s_final"]) == (0.0, False, None)
    assert "infrastructure" in info["grade"]["reason"]


@pytest.mark.parametrize(
    "tests",
    [
        "import pytest\npytestmark = pytest.mark.skip\n",
        "import pytest\npytestmark = pytest.mark.xfail\n",
        "collect_ignore = ['x']\n__test__ = False\n",
    ],
    ids=["skipped", "expected to fail", "none collected"],
)
def test_tests_that_did_not_pass_as_such_are_never_a_success(play: Play, variant: Variant, tests: str) -> None:
    written = (PACKAGE / "verifier/test_outputs.py").read_text()
    played = play(*HONEST, task=variant({"verifier/test_outputs.py": written + "\n" + tests}))
    assert played.reward == 0.0
    assert not played.grade["verifier"]["passed"]


def test_honest_work_is_worth_100(play: Play) -> None:
    """The measure of every other test here."""
    played = play(*HONEST)
    played.assert_worth(100.0)
    assert not played.failed_tests


def test_wrong_work_is_worth_0(play: Play) -> None:
    played = play(*WRONG)
    played.assert_worth(0.0)
    assert played.failed_tests == WRONG_FAILS


def test_unmeasured_work_is_worth_0(play: Play) -> None:
    played = play(*deliver())
    played.assert_worth(0.0)
    assert played.grade["failed_blockers"] == ["no_fabrication"]
