"""One command per suite: `python -m benchmarks SUITE`. What is compared is measured in the same run."""
