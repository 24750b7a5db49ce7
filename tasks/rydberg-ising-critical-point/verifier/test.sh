#!/bin/bash
# Runs the hidden tests on the frozen deliverables. The reward is 1 only if pytest itself says that all passed.
set -u
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
logs="${VERIFIER_LOGS:-/logs/verifier}"
mkdir -p "$logs"
echo 0 > "$logs/reward.txt"
cd /
python3 -B -P -m pytest -c /dev/null --rootdir="$here" --confcutdir="$here" -p no:cacheprovider \
  --junitxml="$logs/junit.xml" -v "$here/test_outputs.py"
code=$?
if [ "$code" -eq 0 ]; then echo 1 > "$logs/reward.txt"; fi
exit "$code"
