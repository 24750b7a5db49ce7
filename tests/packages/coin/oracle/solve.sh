#!/bin/bash
# fpenv: one action a line
lab literature '{"query": "coin tossing"}'
lab instrument '{"operation": "toss", "arguments": {"shots": 2000}}' > tosses.json
python3 -c 'import json; print("bias:", json.load(open("tosses.json"))["result"]["heads"] / 2000)' > result.md
