#!/bin/bash
# canary-6b1d-test-sh
python3 -m pytest /verifier/test_outputs.py
code=$?
echo $((code == 0)) > /logs/verifier/reward.txt
exit $code
