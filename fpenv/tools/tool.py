"""What an action calls. A tool takes checked arguments and the room of an episode, and returns a ToolResult.

Whatever an agent sends is an observation, never an exception: `ToolBox.use` answers a malformed action, an
unknown tool and a wrong argument with what was expected, what came and how to do it right. Only a lost
sandbox and a broken task pass through as errors.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Generic, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError

from fpenv.instruments.bench import Bench
from fpenv.records import ToolResult
from fpenv.sandbox.sandbox import OutputSink, Sandbox
from fpenv.tools.library import Library

MAX_ARGUMENT_CHARS = 4 << 20
MAX_NAME_CHARS = 80


class Arguments(BaseModel):
    """Base of a tool's arguments: exact types (no silent casts), nothing unknown."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


def _without_nul(text: str) -> str:
    if "\0" in text:
        raise ValueError("expected text without NUL characters")
    return text


ShellText = Annotated[str, AfterValidator(_without_nul)]
"""Text that an operating system takes as an argument or a path."""

ArgumentsT = TypeVar("ArgumentsT", bound=Arguments)


@dataclass(frozen=True)
class Room:
    """What tools work with during one episode."""

    sandbox: Sandbox
    bench: Bench
    library: Library
    seconds_left: Callable[[], float]
    on_output: OutputSink | None = None


class Tool(Generic[ArgumentsT]):
    """One tool. `description` is written for the agent and says what the tool cannot do."""

    name: ClassVar[str]
    description: ClassVar[str]
    arguments: type[ArgumentsT]

    def run(self, arguments: ArgumentsT, room: Room) -> ToolResult:
        raise NotImplementedError


class ToolBox:
    """The tools of an episode, by name."""

    def __init__(self, tools: Sequence[Tool[Any]]) -> None:
        self._tools = {tool.name: tool for tool in tools}
        self._schemas = [
            {"name": t.name, "description": t.description, "parameters": t.arguments.model_json_schema()} for t in tools
        ]

    def schemas(self) -> list[dict[str, Any]]:
        """Name, description and JSON Schema of the arguments of each tool, as model APIs take them."""
        return deepcopy(self._schemas)

    def use(self, tool: str, arguments: str, room: Room) -> ToolResult:
        """Check and run one action. Raises SandboxError and TaskError only."""
        chosen = self._tools.get(tool)
        if chosen is None:
            return _refused(f"tool: expected one of {', '.join(self._tools)}, got {tool[:80]!r}")
        try:
            parsed = chosen.arguments.model_validate(_parse(arguments))
        except ValueError as error:
            return _refused(f"{tool}: {_explain(error)}\nexpected arguments: {_usage(chosen)}")
        return chosen.run(parsed, room)


def normalise(action: object) -> tuple[str, str] | str:
    """Return (tool, arguments as JSON text) of an action, or a sentence that says what is wrong with it."""
    form = 'expected an action {"tool": NAME, "arguments": JSON text or mapping}'
    if not isinstance(action, Mapping):
        return f"{form}, got {type(action).__name__}"
    extra = [str(key)[:40] for key in action if key not in ("tool", "arguments")]
    tool, arguments = action.get("tool"), action.get("arguments", "{}")
    if not isinstance(tool, str) or extra:
        return f"{form}, got keys {[str(key)[:40] for key in action][:8]}"
    if len(tool) > MAX_NAME_CHARS or not tool.isprintable():
        return f"{form} with a printable NAME of at most {MAX_NAME_CHARS} characters, got {tool[:MAX_NAME_CHARS]!r}"
    if isinstance(arguments, Mapping):
        try:
            arguments = json.dumps(arguments, ensure_ascii=False)
        except (TypeError, ValueError, RecursionError) as error:
            return f"{form}; the arguments are not JSON: {error}"
    if not isinstance(arguments, str):
        return f"{form}, got arguments of type {type(arguments).__name__}"
    if len(arguments) > MAX_ARGUMENT_CHARS:
        return f"{form} of at most {MAX_ARGUMENT_CHARS:,} characters, got {len(arguments):,}"
    return _clean(tool), _clean(arguments)


def _clean(text: str) -> str:
    """Replace lone surrogates, which no file or wire can carry."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _parse(arguments: str) -> dict[str, Any]:
    text = arguments.strip() or "{}"
    if text.startswith("```"):
        text = text.strip("`").removeprefix("json").strip()
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except RecursionError as error:
        raise ValueError("the arguments are nested too deeply") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"the arguments are not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"expected a JSON object as arguments, got {type(value).__name__}")
    return value


def _no_constant(name: str) -> float:
    raise ValueError(f"the arguments hold {name}, which is not JSON")


def _explain(error: ValueError) -> str:
    if not isinstance(error, ValidationError):
        return str(error)
    lines = []
    for item in error.errors()[:4]:
        where = ".".join(str(part) for part in item["loc"]) or "arguments"
        lines.append(f"{where}: {item['msg']}, got {repr(item['input'])[:120]}")
    return "; ".join(lines)


def _usage(tool: Tool[Any]) -> str:
    schema = tool.arguments.model_json_schema()
    required = set(schema.get("required", ()))
    fields = []
    for name, entry in schema.get("properties", {}).items():
        kind = entry.get("type", "value")
        fields.append(f'"{name}": {kind}' + ("" if name in required else f" (default {entry.get('default')!r})"))
    return "{" + ", ".join(fields) + "}"


def _refused(message: str) -> ToolResult:
    return ToolResult(output=message, failed=True, data={"refused": True})
