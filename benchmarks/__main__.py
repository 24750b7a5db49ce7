"""Run a suite by name."""

from __future__ import annotations

import argparse

from benchmarks import tool_call

SUITES = {"tool_call": tool_call.main}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("suite", choices=sorted(SUITES))
    parser.add_argument("--rounds", type=int, default=200, help="interleaved rounds (default: 200)")
    arguments = parser.parse_args()
    return SUITES[arguments.suite](arguments.rounds)


if __name__ == "__main__":
    raise SystemExit(main())
