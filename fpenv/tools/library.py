"""The literature within an episode's reach: real works, with summaries in our words, searched by full text.

A task's `literature.json` is a list of works; which of them matter is not shown to the agent.
"""

from __future__ import annotations

import json
import re
import sqlite3
from contextlib import closing
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import Field, TypeAdapter, ValidationError

from fpenv.errors import TaskError
from fpenv.records import Record, Search

MAX_QUERIES = 5000


class Work(Record):
    """One publication. `important` and `distractor` are for reviewers; `public` leaves them out."""

    key: str
    title: str
    authors: tuple[str, ...]
    year: int
    venue: str
    doi: str | None = None
    arxiv: str | None = None
    summary: str
    important: bool = False
    distractor: bool = False

    def public(self) -> dict[str, Any]:
        """What an agent sees of it."""
        return self.model_dump(exclude={"important", "distractor"}, exclude_none=True, mode="json")


class SearchRequest(Record):
    query: str = Field(min_length=1, max_length=500)
    limit: int = Field(default=5, ge=1, le=20)


class Library:
    """Full-text search (SQLite FTS5, BM25 ranking) over a task's works. Every query is kept."""

    def __init__(self, works: tuple[Work, ...]) -> None:
        self._works = works
        self._log: list[Search] = []

    def __len__(self) -> int:
        return len(self._works)

    @property
    def log(self) -> tuple[Search, ...]:
        return tuple(self._log)

    def search(self, query: str, limit: int = 5) -> list[Work]:
        """Return at most `limit` works, best first; titles count threefold. Deterministic.

        Beyond MAX_QUERIES in an episode nothing is found, and nothing is kept.
        """
        if len(self._log) >= MAX_QUERIES:
            return []
        terms = " OR ".join(f'"{word}"' for word in re.findall(r"\w+", query))
        hits = self._match(terms, limit) if terms else []
        self._log.append(Search(query=query, hits=tuple(work.key for work in hits)))
        return hits

    def _match(self, terms: str, limit: int) -> list[Work]:
        with closing(_build_index(self._works)) as index:
            rows = index.execute(
                "SELECT rowid FROM works WHERE works MATCH ? ORDER BY bm25(works, 3.0, 1.0, 1.0), rowid LIMIT ?",
                (terms, limit),
            )
            return [self._works[row[0] - 1] for row in rows]


def load_library(task_folder: Path) -> Library:
    """Open a task's literature.json; a task without one has an empty library. Raises TaskError."""
    file = task_folder / "literature.json"
    return Library(_read_works(file, file.stat().st_mtime_ns) if file.is_file() else ())


@lru_cache(maxsize=64)
def _read_works(file: Path, modified: int) -> tuple[Work, ...]:
    try:
        return TypeAdapter(tuple[Work, ...]).validate_json(file.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        raise TaskError(f"{file}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error


def show_works(works: list[Work]) -> str:
    """Render hits for an agent to read."""
    if not works:
        return "no works found; try other or fewer terms"
    lines = []
    for number, work in enumerate(works, 1):
        ids = [f"doi:{work.doi}"] * bool(work.doi) + [f"arXiv:{work.arxiv}"] * bool(work.arxiv)
        source = ", ".join((work.venue, *ids))
        lines.append(f"{number}. {work.title}\n   {', '.join(work.authors)} ({work.year}). {source}\n   {work.summary}")
    return "\n".join(lines)


def _build_index(works: tuple[Work, ...]) -> sqlite3.Connection:
    index = sqlite3.connect(":memory:")
    index.execute("CREATE VIRTUAL TABLE works USING fts5(title, summary, rest, tokenize='porter unicode61')")
    rest = [json.dumps([w.authors, w.year, w.venue, w.doi, w.arxiv], ensure_ascii=False) for w in works]
    rows = [(work.title, work.summary, words) for work, words in zip(works, rest, strict=True)]
    index.executemany("INSERT INTO works VALUES (?, ?, ?)", rows)
    return index
