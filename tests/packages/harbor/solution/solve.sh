#!/bin/bash
set -e
[ "$PWD" = /app ]
python3 -c "import math; print(2 * math.pi * math.sqrt($(bin/measure) / $GRAVITY))" > period.txt
