#!/bin/bash
python3 -m pytest -q /verifier/test_outputs.py && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt
