"""Search the literature."""

from __future__ import annotations

from pydantic import Field

from fpenv.records import ToolResult
from fpenv.tools.library import show_works
from fpenv.tools.tool import Arguments, Room, Tool


class SearchArguments(Arguments):
    query: str = Field(min_length=1, max_length=500)
    limit: int = Field(default=5, ge=1, le=20)


class SearchLiterature(Tool[SearchArguments]):
    """Full-text search over the works within reach of the task."""

    name = "search_literature"
    description = (
        "Search the physics literature by keywords, authors or a phrase. Returns title, authors, year, venue, DOI or "
        "arXiv id and a summary of each work, best first."
    )
    arguments = SearchArguments

    def run(self, arguments: SearchArguments, room: Room) -> ToolResult:
        works = room.library.search(arguments.query, arguments.limit)
        return ToolResult(output=show_works(works), data={"works": [work.public() for work in works]})
