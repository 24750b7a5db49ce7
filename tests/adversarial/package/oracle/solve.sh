#!/bin/bash
# canary-6b1d-oracle
lab instrument '{"operation": "weigh", "arguments": {"shots": 400}}' > reading.json
python3 /oracle/report.py
