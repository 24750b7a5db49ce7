"""The rubric: reading `rubric.json`, and the rubric's part of equation 1.

    {"criteria": [{"name": "...", "blocker": 0 or 1, "weight": 1 to 10, "description": "...", "guidance": "..."}]}

Names are kebab or snake case and unique, also when hyphens and underscores are not told apart: each is
the name of a check function.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from fpenv.errors import TaskError
from fpenv.records import Criterion, Verdict
from fpenv.untrusted import Untrusted, parse_json

NAME = re.compile(r"[A-Za-z][A-Za-z0-9]*(?:[-_]+[A-Za-z0-9]+)*", re.ASCII)
KEYS = ("name", "blocker", "weight", "description", "guidance")


def load_rubric(path: Path) -> tuple[Criterion, ...]:
    """Read a rubric file; criteria in the file's order. Raises TaskError naming file, key and what came."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise TaskError(f"{path}: expected a readable rubric, got {error.strerror}") from error
    return parse_rubric(data, str(path))


def parse_rubric(data: bytes, where: str = "rubric.json") -> tuple[Criterion, ...]:
    """Parse a rubric; `where` names it in errors."""
    try:
        raw = parse_json(data, max_bytes=1 << 20)
    except Untrusted as error:
        raise TaskError(f"{where}: {error}") from error
    listed = raw.get("criteria") if isinstance(raw, dict) else None
    if not isinstance(listed, list) or not listed:
        raise TaskError(f'{where}: expected an object with a non-empty list "criteria", got {_brief(raw)}')
    criteria = tuple(_criterion(item, f"{where}: criteria[{i}]") for i, item in enumerate(listed))
    seen: dict[str, str] = {}
    for criterion in criteria:
        name = function_name(criterion.name)
        if name in seen:
            raise TaskError(f"{where}: expected each name once, got {seen[name]!r} and {criterion.name!r}")
        seen[name] = criterion.name
    return criteria


def function_name(criterion: str) -> str:
    """The name of a criterion's check function: hyphens become underscores."""
    return criterion.replace("-", "_")


def score_rubric(criteria: Sequence[Criterion], verdicts: Iterable[Verdict]) -> tuple[float | None, tuple[str, ...]]:
    """The weighted non-blocker score in [0, 100], and the names of the failed blockers.

    Equation 1 before its gates: 100 sum(w_i s_i) / (2 sum w_i), in integers up to one correctly rounded
    division. A rubric without non-blockers grades nothing by degree: its score is None, and passing its
    gates is worth 100 (see `combine`), because nothing is left in which the work could fall short.
    Raises KeyError when a criterion has no verdict.
    """
    scores = {verdict.criterion: verdict.score for verdict in verdicts}
    graded = [criterion for criterion in criteria if not criterion.blocker]
    failed = tuple(c.name for c in criteria if c.blocker and scores[c.name] == 0)
    if not graded:
        return None, failed
    reached = sum(c.weight * scores[c.name] for c in graded)
    return 100 * reached / (2 * sum(c.weight for c in graded)), failed


def _criterion(item: Any, where: str) -> Criterion:
    if not isinstance(item, dict):
        raise TaskError(f"{where}: expected an object, got {_brief(item)}")
    unknown = sorted(set(item) - set(KEYS))
    if unknown:
        raise TaskError(f"{where}: expected the keys {', '.join(KEYS)}, got {unknown[0]!r} too")
    name, blocker, weight = item.get("name"), item.get("blocker"), item.get("weight")
    if not isinstance(name, str) or not NAME.fullmatch(name) or len(name) > 100:
        raise TaskError(f"{where}.name: expected a kebab-case or snake_case name, got {_brief(name)}")
    if not (isinstance(blocker, bool) or (isinstance(blocker, int) and blocker in (0, 1))):
        raise TaskError(f"{where}.blocker: expected 0, 1, true or false, got {_brief(blocker)}")
    if isinstance(weight, bool) or not isinstance(weight, int) or not 1 <= weight <= 10:
        raise TaskError(f"{where}.weight: expected a whole number from 1 to 10, got {_brief(weight)}")
    texts = {key: item.get(key, "") for key in ("description", "guidance")}
    for key, text in texts.items():
        if not isinstance(text, str):
            raise TaskError(f"{where}.{key}: expected text, got {_brief(text)}")
    if not texts["description"].strip():
        raise TaskError(f"{where}.description: expected a sentence, got none")
    return Criterion(name=name, blocker=bool(blocker), weight=weight, **texts)


def _brief(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=True)
    return text if len(text) <= 80 else text[:77] + "..."
