#!/bin/bash
if [ "$(cat /app/hello.txt 2>/dev/null)" = "Hello, world!" ]; then reward=1; else reward=0; fi
echo "{\"reward\": $reward, \"evidence\": \"text compared\"}" > /logs/verifier/reward.json
