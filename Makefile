# Every target sets up what it needs; nothing is assumed but python3 (3.11 or newer) and make.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
FLAGSHIP := rydberg-ising-critical-point
# Tasks whose slow checks `make tasks` runs; CI passes the changed ones.
TASKS ?= $(notdir $(patsubst %/,%,$(dir $(wildcard tasks/*/task.md))))

.PHONY: help setup demo test test-slow test-oldest check format tasks bench clean

help:
	@echo "make demo    play the flagship task with its oracle and print the grade"
	@echo "make test    run the test suite"
	@echo "make test-slow    the tests that take too long for every change"
	@echo "make test-oldest  the environment's tests under the oldest supported Gymnasium"
	@echo "make check   formatting, lint, types"
	@echo "make tasks   slow checks of every task: oracle, noop, all cases (TASKS=... for some)"
	@echo "make bench   measure what a tool call costs"

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "expected Python 3.11 or newer as $(PYTHON); run make PYTHON=/path/to/python3.11"; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' || \
	  { echo "expected the venv module; on Debian or Ubuntu: apt-get install python3-venv"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[dev]"
	@touch $@

demo: setup
	$(BIN)/fpenv run $(FLAGSHIP) --agent oracle --out runs

test: setup
	$(BIN)/python -m pytest -m "not slow"

# What takes too long for every change: the rest of the suite.
test-slow: setup
	$(BIN)/python -m pytest -m slow

# The oldest Gymnasium that is supported, in an environment of its own.
test-oldest:
	$(MAKE) setup VENV=.venv-oldest
	.venv-oldest/bin/python -m pip install --quiet --disable-pip-version-check "gymnasium==1.2.2"
	.venv-oldest/bin/python -m pytest tests/test_env.py

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

tasks: setup
	@set -e; for task in $(TASKS); do echo "== $$task"; $(BIN)/fpenv tasks check $$task $(CHECK_FLAGS); done

bench: setup
	$(BIN)/python -m benchmarks tool_call

clean:
	rm -rf $(VENV) .venv-oldest build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
