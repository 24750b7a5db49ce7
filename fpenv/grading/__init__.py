"""Grading: the verifier's hidden tests and the reviewer's rubric, combined into a grade."""
