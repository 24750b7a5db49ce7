#!/bin/bash
cd /verifier
python3 -m pytest test_outputs.py --ctrf /logs/verifier/ctrf.json
code=$?
echo "{\"reward\": $((code == 0))}" > /logs/verifier/reward.json
echo $((code == 0)) > /logs/verifier/reward.txt
exit $code
