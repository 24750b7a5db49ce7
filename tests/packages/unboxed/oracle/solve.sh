#!/bin/bash
set -e
mkdir -p plots
python3 -c "x = [float(line) for line in open('$SAMPLE')]; print(sum(x) / len(x))" > result.md
echo '<svg xmlns="http://www.w3.org/2000/svg"/>' > plots/sample.svg
