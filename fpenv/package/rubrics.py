"""The rubric of a package in any published version, as the criteria that `fpenv.rubric` reads.

Two scales: 0, 1, 2 for a non-blocker and 0, 1 for a blocker; or pass and fail for all. A non-blocker that
can only pass or fail counts as 2 or 0, so that equation 1 holds, and its guidance says so. What marks it:
`scale` (or `scoring`, `type`) `pass_fail`, `binary` or `boolean`, on the criterion or on the whole rubric.

Assumed where a version leaves something out: weight 1; a criterion is a blocker if it says `blocker`,
`required`, `gate` or `"type": "blocker"`. Names are kebab or snake case; a title in words is made one. `id`,
`title` and `match_criteria` stand in for `name`, `description` and `guidance`. Unknown fields are noted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fpenv.errors import TaskError
from fpenv.records import Criterion
from fpenv.rubric import parse_rubric
from fpenv.untrusted import Untrusted, parse_json

PASS_FAIL_GUIDANCE = "This criterion only passes or fails: 2 for pass, 0 for fail."
_LISTS = ("criteria", "rubric", "rubrics", "items")
_SCALES = ("scale", "scoring", "type", "score_type")
_PASS_FAIL = {"pass_fail", "passfail", "pass", "binary", "boolean", "bool"}
_SCORED = {"score", "scored", "0_1_2", "ternary", "three_level", "blocker", "nonblocker", "non_blocker"}
_NAMES = ("name", "id", "title")
_BLOCKERS = ("blocker", "required", "gate")
_DESCRIPTIONS = ("description", "criterion", "requirement", "question", "title", "match_criteria")
_GUIDANCES = ("guidance", "match_criteria", "rationale")
_ANCHORS = ("scores", "anchors", "levels")
_KNOWN = {*_SCALES, *_NAMES, *_BLOCKERS, *_DESCRIPTIONS, *_GUIDANCES, *_ANCHORS, "weight"}


def read_rubric(path: Path) -> tuple[tuple[Criterion, ...], tuple[str, ...]]:
    """Read a rubric file; return criteria in its order, and notes. Raises TaskError naming file and key."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise TaskError(f"{path}: expected a readable rubric, got {error.strerror}") from error
    return normalise_rubric(data, str(path))


def normalise_rubric(data: bytes, where: str = "rubric.json") -> tuple[tuple[Criterion, ...], tuple[str, ...]]:
    """Bring a rubric into the current form, then parse it strictly; `where` names it in errors."""
    try:
        raw = parse_json(data, max_bytes=1 << 20)
    except Untrusted as error:
        raise TaskError(f"{where}: {error}") from error
    whole = raw if isinstance(raw, dict) else {}
    listed = raw if isinstance(raw, list) else next((raw[k] for k in _LISTS if isinstance(whole.get(k), list)), None)
    if listed is None or not all(isinstance(item, dict) for item in listed):
        return parse_rubric(data, where), ()  # says what it expected
    unknown = sorted({key for item in listed for key in item if key not in _KNOWN})
    notes = (f"rubric fields not known here, not used: {', '.join(unknown)}",) if unknown else ()
    criteria = [_criterion(item, whole, f"{where}: criteria[{i}]") for i, item in enumerate(listed)]
    return parse_rubric(json.dumps({"criteria": criteria}).encode(), where), notes


def _criterion(item: Mapping[str, Any], whole: Mapping[str, Any], where: str) -> dict[str, Any]:
    scale = _scale(item, where) or _scale(whole, where)
    blocker = _first(item, _BLOCKERS, int(item.get("type") == "blocker"))
    guidance = _texts(item)
    if scale == "pass_fail" and blocker in (0, False):
        guidance = [*guidance, PASS_FAIL_GUIDANCE]
    return {
        "name": _name(_first(item, _NAMES, None)),
        "blocker": blocker,
        "weight": item.get("weight", 1),
        "description": _first(item, _DESCRIPTIONS, ""),
        "guidance": "\n".join(guidance),
    }


def _scale(item: Mapping[str, Any], where: str) -> str:
    """`pass_fail`, `score`, or empty where nothing is said. A scale that is neither is an error."""
    anchors = next((item[key] for key in _ANCHORS if isinstance(item.get(key), dict | list)), None)
    if anchors is not None and {str(key).lower() for key in anchors} in ({"0", "1"}, {"pass", "fail"}):
        return "pass_fail"
    for key in _SCALES:
        value = item.get(key)
        said = re.sub(r"[^a-z0-9]+", "_", value.lower()).strip("_") if isinstance(value, str) else ""
        if said in _PASS_FAIL:
            return "pass_fail"
        if said in _SCORED:
            return "score"
        if said and key in ("scale", "scoring"):
            raise TaskError(f"{where}.{key}: expected pass_fail or score, got {value!r}")
    return ""


def _texts(item: Mapping[str, Any]) -> list[Any]:
    given = _first(item, _GUIDANCES, "")
    anchors: Mapping[str, Any] = next((item[k] for k in _ANCHORS if isinstance(item.get(k), dict)), {})
    texts = [given] if isinstance(given, str) and given else []
    return texts + [f"{score}: {meaning}" for score, meaning in anchors.items()]


def _first(item: Mapping[str, Any], keys: tuple[str, ...], default: Any) -> Any:
    return next((item[key] for key in keys if item.get(key) is not None), default)


def _name(value: Any) -> Any:
    """A name as it is, or words as a kebab-case name."""
    if not isinstance(value, str) or re.fullmatch(r"[\w-]+", value, re.ASCII):
        return value
    return re.sub(r"[^a-z0-9]+", "-", value.lower()).strip("-")
