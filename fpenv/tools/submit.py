"""End the episode and hand in the deliverables."""

from __future__ import annotations

from fpenv.records import ToolResult
from fpenv.tools.tool import Arguments, Room, Tool


class SubmitArguments(Arguments):
    pass


class Submit(Tool[SubmitArguments]):
    """The episode ends after this action; whatever deliverables exist are frozen and graded."""

    name = "submit"
    description = "Hand in the deliverables and end the episode. They are graded as they are; this cannot be undone."
    arguments = SubmitArguments

    def run(self, arguments: SubmitArguments, room: Room) -> ToolResult:
        return ToolResult(output="submitted", data={"submitted": True})
