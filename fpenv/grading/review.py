"""What a task's evidence checks are written with: `from review import Case, Finding, Quote`.

A task's `evidence.py` has one function per criterion, named as it (hyphens become underscores):

    def calibration_before_use(case: Case) -> Finding:
        found = case.paper.find(r"calibrat\\w+")
        return Finding(2 if found else 0, "the paper reports the calibration", [found])

This file runs inside a read-only sandbox, alone: standard library, and pypdf for the paper. Deliverables
are data, never imported. The paper is read in a process of its own with limits on time, memory, pages and
text; one that cannot be read is an empty paper whose `problem` says why, and that is the author's doing,
not the check's. A check that raises, or takes longer than its time, leaves the review ungraded.

Text that a reader cannot see is left out of the paper and counted in `hidden_characters`: invisible or
clipping render modes, white or nearly white or transparent fill, glyphs smaller than 2 points; white text on a dark
ground is taken for hidden too. Not noticed: text behind something, or beyond the page's edge.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import re
import signal
import subprocess
import sys
import traceback
import unicodedata
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from types import ModuleType
from typing import Any, NoReturn

MAX_PAGES = 80
MAX_PAGE_CHARACTERS = 20_000
MAX_PAPER_BYTES = 64 << 20
PAPER_TIME_S = 30
PAPER_MEMORY_BYTES = 1536 << 20
SMALLEST_POINTS = 2.0
PALEST = 0.1  # text with less ink than this is not read: 0 is white, or transparent
QUOTE_MARGIN = 90


# ------------------------------------------------------------------------------------------ what checks give
@dataclass(frozen=True)
class Quote:
    """A quotation and where it stands: `paper.pdf p. 3`, `result.md line 4`, `step 12`, `instrument call 7`."""

    source: str
    quote: str


@dataclass(frozen=True)
class Finding:
    """A criterion's score (blocker 0 or 1, non-blocker 0, 1 or 2), the reason, and quotes (None is dropped)."""

    score: int
    reason: str
    quotes: list[Quote | None] = field(default_factory=list)


# ------------------------------------------------------------------------------------------ what checks read
@dataclass(frozen=True)
class Value:
    """One named value of result.md. `number` is the first number in `text`, or None."""

    name: str
    text: str
    line: int
    number: float | None
    quote: Quote


@dataclass(frozen=True)
class Command:
    """What an agent ran or wrote: `text` is the shell command, or a file's path and its content."""

    step_id: int
    tool: str
    text: str


@dataclass(frozen=True)
class Paper:
    """The paper's visible text. `pages` has folded whitespace; `lines` keeps the pages' lines.

    Minus signs and hyphens are '-', ligatures and mathematical letters are plain ones, words broken at a
    line's end are joined. `problem` says why there is no text, or not all of it; `page_count` counts all pages.
    """

    name: str = "paper.pdf"
    lines: tuple[tuple[str, ...], ...] = ()
    page_count: int = 0
    image_count: int = 0
    hidden_characters: int = 0
    problem: str = ""

    @cached_property
    def pages(self) -> tuple[str, ...]:
        return tuple(_fold(page, join=True) for page in self.lines)

    @cached_property
    def text(self) -> str:
        return "\n".join(self.pages)

    def find(self, pattern: str, flags: int = re.IGNORECASE) -> Quote | None:
        """The first match with its surroundings, or None. A word broken by a hyphen matches joined or with it."""
        return next(iter(self.find_all(pattern, flags, limit=1)), None)

    def find_all(self, pattern: str, flags: int = re.IGNORECASE, limit: int = 20) -> list[Quote]:
        """Matches in the order of the text, at most `limit`."""
        for pages in (self.pages, self._hyphenated):
            text = "\n".join(pages)
            found = [self._quote(pages, text, m) for m in islice(re.finditer(pattern, text, flags), limit)]
            if found:
                return found
        return []

    def section(self, title: str) -> str | None:
        """Text of the section headed by the pattern `title`, or None; the heading may be numbered or go on with "and".

        It ends at the next heading of its level: the next number, or a usual title.
        """
        lines = [line for page in self.lines for line in page if line]
        head = re.compile(rf"({_NUMBER})?(?:{title})(?: (?:and|&) [\w -]{{1,40}})?{_RUN_IN}", re.IGNORECASE)
        for start, line in enumerate(lines):
            match = head.fullmatch(line)
            if match:
                rest = [text for text in match.groups()[-3:] if text]
                after = range(start + 1, len(lines))
                end = next((n for n in after if _ends(lines[n], match[1])), len(lines))
                return _fold(rest + lines[start + 1 : end], join=True)
        return None

    @cached_property
    def references_section(self) -> str:
        """Text of the list of references, or empty."""
        return self.section(r"references(?: cited)?|bibliography|literature(?: cited)?|works cited") or ""

    @cached_property
    def _hyphenated(self) -> tuple[str, ...]:
        return tuple(_fold(page, join=False) for page in self.lines)

    def _quote(self, pages: Sequence[str], text: str, match: re.Match[str]) -> Quote:
        starts = [0]
        for page in pages:
            starts.append(starts[-1] + len(page) + 1)
        number = bisect_right(starts, match.start())
        first, last = starts[number - 1], max(starts[number] - 1, match.end())
        return Quote(f"{self.name} p. {number}", _around(text[first:last], match.start() - first, match.end() - first))


@dataclass(frozen=True)
class Case:
    """One episode as the reviewer sees it. Everything here was made by the agent, except `references`.

    steps: dicts as `fpenv.records.Step` writes them. instrument_calls: those of all steps in order, each with
    `step_id` and `call_number` from 1. searches: likewise, with `search_number`. inputs, deliverables: path
    relative to /root -> bytes. refused: path of a deliverable that could not be taken -> reason.
    """

    steps: list[dict[str, Any]] = field(default_factory=list)
    references: dict[str, Any] = field(default_factory=dict)
    inputs: dict[str, bytes] = field(default_factory=dict)
    deliverables: dict[str, bytes] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    paper: Paper = field(default_factory=lambda: Paper(problem="paper.pdf was not handed in"))

    @cached_property
    def instrument_calls(self) -> list[dict[str, Any]]:
        return self._flat("instrument_calls", "call_number")

    @cached_property
    def searches(self) -> list[dict[str, Any]]:
        return self._flat("searches", "search_number")

    @cached_property
    def result_text(self) -> str:
        """result.md as text; empty where none was handed in."""
        return _plain(self._file("result.md").decode("utf-8", "replace"))

    @cached_property
    def results(self) -> dict[str, Value]:
        """Named values of result.md: lines `name: value`, `name = value` or `| name | value |`. The first counts."""
        found: dict[str, Value] = {}
        for value in self.all_results:
            found.setdefault(value.name, value)
        return found

    @cached_property
    def all_results(self) -> list[Value]:
        """Every named value, so that a name given twice can be seen."""
        values = (_value(line, number) for number, line in enumerate(self.result_text.splitlines(), 1))
        return [value for value in values if value]

    @cached_property
    def commands(self) -> list[Command]:
        """What was run with bash and written with write_file, in order."""
        return [
            Command(step["step_id"], step["tool"], _command(step))
            for step in self.steps
            if step["tool"] in ("bash", "write_file")
        ]

    def find_command(self, pattern: str, flags: int = re.IGNORECASE) -> Quote | None:
        """The first command or written file that matches."""
        for command in self.commands:
            match = re.search(pattern, command.text, flags)
            if match:
                return Quote(f"step {command.step_id}", _around(command.text, match.start(), match.end()))
        return None

    def find_output(self, pattern: str, flags: int = re.IGNORECASE) -> Quote | None:
        """The first tool output that matches."""
        for step in self.steps:
            output = step["result"]["output"]
            match = re.search(pattern, output, flags)
            if match:
                return Quote(f"step {step['step_id']}", _around(output, match.start(), match.end()))
        return None

    def find_result(self, pattern: str, flags: int = re.IGNORECASE) -> Quote | None:
        """The first line of result.md that matches."""
        for number, line in enumerate(self.result_text.splitlines(), 1):
            if re.search(pattern, line, flags):
                return Quote(f"result.md line {number}", line.strip())
        return None

    def quote_step(self, step_id: int, limit: int = 200) -> Quote:
        """A step's tool and arguments as evidence. Raises KeyError for an unknown step."""
        for step in self.steps:
            if step["step_id"] == step_id:
                return Quote(f"step {step_id}", f"{step['tool']} {step['arguments']}"[:limit])
        raise KeyError(f"no step {step_id}")

    def quote_call(self, call: dict[str, Any]) -> Quote:
        """One of `instrument_calls` as evidence."""
        answer = f"refused: {call['refusal']}" if call["refusal"] else json.dumps(call["result"], sort_keys=True)
        arguments = json.dumps(call["arguments"], sort_keys=True)
        text = f"{call['instrument']}.{call['operation']} {arguments} -> {answer}"
        return Quote(f"instrument call {call['call_number']}", text[:300])

    def quote_search(self, search: dict[str, Any]) -> Quote:
        """One of `searches` as evidence."""
        return Quote(f"step {search['step_id']}", f"search {search['query']!r}: {', '.join(search['hits'])}"[:300])

    def _flat(self, key: str, counter: str) -> list[dict[str, Any]]:
        flat = [{**item, "step_id": step["step_id"]} for step in self.steps for item in step[key]]
        return [{**item, counter: number} for number, item in enumerate(flat, 1)]

    def _file(self, name: str) -> bytes:
        return self.deliverables.get(name, b"")


# ------------------------------------------------------------------------------------------ text
_NUMBER = r"(?:appendix\s+)?(?:\d+(?:\.\d+)*|[IVXL]+|[A-H])(?:[.):]\s*|\s+)"
_RUN_IN = r"(?:\s*[:—–]+\s*(.*)|\s*\.\s+(.*)|\s*\.|\s+-+\s+(.*))?"
_TITLES = (
    r"abstract|summary|introduction|motivation|background|related work|theory|model|methods?|methodology|"
    r"experiments?|experimental (?:setup|methods?)|calibration|results?(?: and discussion)?|discussion|"
    r"error (?:analysis|budget)|uncertaint(?:y|ies)|outlook|conclusions?|limitations|acknowledge?ments?|"
    r"references(?: cited)?|bibliography|literature(?: cited)?|works cited|appendi(?:x|ces)|appendix [A-Z0-9].*|"
    r"supplementa(?:ry|l).*|data availability|code availability|author contributions"
)
_KNOWN = re.compile(rf"(?:{_NUMBER})?(?:{_TITLES})\s*[.:]?", re.IGNORECASE)
_NUMBERED = re.compile(rf"({_NUMBER})([A-Z].{{0,90}}[^.,;])")
_PLAIN: dict[int, str | None] = {
    0xFB00 + i: text for i, text in enumerate(("ff", "fi", "fl", "ffi", "ffl", "st", "st"))
}
_PLAIN |= dict.fromkeys((8208, 8209, 8722, 65123, 65293), "-")
_PLAIN |= dict.fromkeys((160, 5760, *range(8192, 8203), 8239, 8287, 12288), " ")
_PLAIN |= dict.fromkeys((8203, 8204, 8205, 8288, 65279, *range(8234, 8239), *range(8294, 8298)))
_PLAIN |= {c: unicodedata.normalize("NFKC", chr(c)) for c in range(0x1D400, 0x1D800)}


def _plain(text: str) -> str:
    return text.translate(_PLAIN)


def _fold(lines: Iterable[str], join: bool) -> str:
    """One line of text: soft hyphens gone, words broken at a line's end joined if `join`."""
    text = re.sub("\u00ad\\s*\n?\\s*", "", "\n".join(lines))
    text = re.sub(r"(?<=[a-z])-\n(?=[a-z])", "" if join else "-", text)
    return " ".join(text.split())


def _around(text: str, start: int, end: int) -> str:
    left = max(text.rfind(" ", 0, max(start - QUOTE_MARGIN, 0)) + 1, start - 2 * QUOTE_MARGIN, 0)
    stop = min(end, start + 300)
    right = text.find(" ", min(stop + QUOTE_MARGIN, len(text)))
    right = min(right if right >= 0 else len(text), stop + 2 * QUOTE_MARGIN)
    return " ".join(text[left:right].split())


def _ends(line: str, number: str | None) -> bool:
    """Whether a line is the heading of another section, given how the present one is numbered."""
    if _KNOWN.fullmatch(line):
        return True
    match = _NUMBERED.fullmatch(line) if number else None
    if not match:
        return False
    here, there = (re.sub(r"[^0-9A-Z.]", "", n).strip(".") for n in (number or "", match[1]))
    return _successor(here) == there


def _successor(number: str) -> str:
    """The number of the section after this one at its own level: 3 -> 4, 2.1 -> 2.2, III -> IV, B -> C."""
    *parents, last = number.split(".")
    roman = ["I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX", "X", "XI", "XII", "XIII"]
    if last.isdecimal() and len(last) < 4:
        after = str(int(last) + 1)
    elif last in roman[:-1]:
        after = roman[roman.index(last) + 1]
    else:
        after = chr(ord(last[0]) + 1) if len(last) == 1 else ""
    return ".".join([*parents, after])


def _value(line: str, number: int) -> Value | None:
    """A named value from one line of result.md, or None."""
    bare = re.sub(r"[*`]", "", line).strip().lstrip("-+# ").strip()
    cells = [cell.strip() for cell in bare.strip("|").split("|")] if bare.startswith("|") else []
    if len(cells) >= 2:
        name, text = cells[0], cells[1]
    else:
        match = re.fullmatch(r"([A-Za-z_][\w./^() -]{0,80}?)\s*[:=]\s*(\S.*)", bare)
        if not match:
            return None
        name, text = match.groups()
    if not name or set(name + text) <= set("-: "):
        return None
    found = re.search(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?", text[:200], re.ASCII)
    value = float(found[0]) if found else math.nan
    quote = Quote(f"result.md line {number}", line.strip()[:300])
    return Value(name, text, number, value if math.isfinite(value) else None, quote)


def _command(step: dict[str, Any]) -> str:
    try:
        arguments = json.loads(step["arguments"])
    except (ValueError, RecursionError):
        return str(step["arguments"])
    if not isinstance(arguments, dict):
        return str(step["arguments"])
    keys = ("command",) if step["tool"] == "bash" else ("path", "content")
    return "\n".join(str(arguments[key]) for key in keys if key in arguments)


# ------------------------------------------------------------------------------------------ the paper
def read_paper(path: str, name: str = "paper.pdf") -> Paper:
    """Read a PDF in a process of its own. Raises only for what is not the file's doing."""
    if not os.path.isfile(path):
        return Paper(name, problem=f"{name} was not handed in")
    if os.path.getsize(path) > MAX_PAPER_BYTES:
        return Paper(name, problem=f"{name} is larger than {MAX_PAPER_BYTES >> 20} MiB")
    if importlib.util.find_spec("pypdf") is None:
        raise ModuleNotFoundError("the task's runtime has no pypdf; add it to environment/requirements.txt")
    here = os.path.dirname(os.path.abspath(__file__))
    code = "import sys; sys.path.insert(0, sys.argv[1]); import review; review.extract(sys.argv[2], int(sys.argv[3]))"
    command = [sys.executable, "-s", "-P", "-B", "-c", code, here, path, str(PAPER_TIME_S)]
    quiet = subprocess.DEVNULL
    try:
        # The processor time is what counts; the wall clock leaves room for a busy machine.
        done = subprocess.run(command, stdin=quiet, stdout=subprocess.PIPE, stderr=quiet, timeout=4 * PAPER_TIME_S)
        found = json.loads(done.stdout)
    except (subprocess.TimeoutExpired, ValueError, RecursionError):
        limits = f"{PAPER_TIME_S} s of processor time and {PAPER_MEMORY_BYTES >> 20} MiB of memory"
        return Paper(name, problem=f"{name} could not be read within {limits}")
    lines = tuple(tuple(page) for page in found.pop("lines"))
    return Paper(name, lines, **found)


def extract(path: str, time_s: int) -> None:
    """In the child: print a paper as JSON, whatever the file."""
    import logging
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (PAPER_MEMORY_BYTES, PAPER_MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (time_s, time_s))
    logging.disable(logging.CRITICAL)
    import pypdf

    try:
        found = _read_pages(pypdf.PdfReader(path, strict=False))
    except Exception as error:
        reason = f"paper is not a readable PDF: {type(error).__name__}: {str(error)[:200]}"
        found = {"lines": [], "page_count": 0, "image_count": 0, "hidden_characters": 0, "problem": reason}
    sys.stdout.write(json.dumps(found))


def _read_pages(reader: Any) -> dict[str, Any]:
    pages: list[list[str]] = []
    problem, images, hidden = "", 0, 0
    count = len(reader.pages)
    if count > MAX_PAGES:
        problem = f"the paper has {count} pages, of which {MAX_PAGES} were read"
    for number in range(min(count, MAX_PAGES)):
        try:
            page = reader.pages[number]
            ink = _Ink(_gray_spaces(page), _clear_states(page))
            text = page.extract_text(visitor_operand_before=ink.before, visitor_operand_after=ink.after)
            images += _count_images(page.get("/Resources"), depth=4)
            hidden += ink.hidden
        except MemoryError:
            raise
        except Exception as error:
            text = ""
            problem = problem or f"page {number + 1} could not be read: {type(error).__name__}"
        if len(text) > MAX_PAGE_CHARACTERS:
            problem = (
                problem or f"page {number + 1} has {len(text)} characters, of which {MAX_PAGE_CHARACTERS} were read"
            )
        text = _plain(text[:MAX_PAGE_CHARACTERS])
        pages.append([" ".join(line.split()) for line in text.split("\n")])
    lines = [[line.encode("utf-8", "replace").decode() for line in page if line] for page in pages]
    if not any(lines) and not problem:
        problem = "the paper has no text to read"
    return {
        "lines": lines, "page_count": count, "image_count": images, "hidden_characters": hidden, "problem": problem,
    }  # fmt: skip


def _count_images(resources: Any, depth: int) -> int:
    """Raster images of a page, those in its forms included; nothing is decoded."""
    resources = resources.get_object() if resources is not None else {}
    objects = resources.get("/XObject") if hasattr(resources, "get") else None
    objects = objects.get_object() if objects is not None else {}
    count = 0
    for key in list(objects)[:200]:
        item = objects[key].get_object()
        if item.get("/Subtype") == "/Image":
            count += 1
        elif depth and item.get("/Subtype") == "/Form":
            count += _count_images(item.get("/Resources"), depth - 1)
    return count


def _gray_spaces(page: Any) -> set[str]:
    """Names of the page's one-component additive colour spaces: in those, 1 is white."""
    gray = {"/DeviceGray", "/G"}
    resources = page.get("/Resources")
    spaces = resources.get_object().get("/ColorSpace") if resources is not None else None
    for name, space in spaces.get_object().items() if spaces is not None else ():
        space = space.get_object()
        family = space[0] if isinstance(space, list) and space else None
        if family == "/CalGray" or (family == "/ICCBased" and space[1].get_object().get("/N") == 1):
            gray.add(name)
    return gray


def _clear_states(page: Any) -> set[str]:
    """Names of the page's graphics states that make text transparent."""
    resources = page.get("/Resources")
    states = resources.get_object().get("/ExtGState") if resources is not None else None
    named = states.get_object().items() if states is not None else ()
    return {name for name, state in named if float(state.get_object().get("/ca", 1)) < PALEST}


@dataclass(frozen=True)
class _State:
    """The part of the graphics state that decides whether text is seen."""

    mode: int = 0
    white: bool = False
    size: float = 12.0
    gray: bool = True
    clear: bool = False


class _Ink:
    """Follows a page's drawing operators, and empties those that show text nobody can see."""

    SHOW = (b"Tj", b"TJ", b"'", b'"')

    def __init__(self, gray_spaces: set[str], clear_states: set[str]) -> None:
        self.gray_spaces = gray_spaces
        self.clear_states = clear_states
        self.state = _State()
        self.saved: list[_State] = []
        self.hidden = 0

    def before(self, operator: bytes, operands: list[Any], cm: list[float], tm: list[float]) -> None:
        if operator in (b"q", b"Do"):
            if len(self.saved) < 1000:
                self.saved.append(self.state)
        elif operator == b"Q":
            self._restore()
        elif operator in self.SHOW:
            if self._unseen(cm, tm):
                self._empty(operator, operands)
        else:
            self._follow(operator, operands)

    def after(self, operator: bytes, operands: list[Any], cm: list[float], tm: list[float]) -> None:
        if operator == b"Do":
            self._restore()

    def _restore(self) -> None:
        if self.saved:
            self.state = self.saved.pop()

    def _follow(self, operator: bytes, operands: list[Any]) -> None:
        numbers = [float(o) for o in operands if isinstance(o, int | float)]
        if operator == b"Tr" and numbers:
            self.state = replace(self.state, mode=int(numbers[0]))
        elif operator == b"Tf" and numbers:
            self.state = replace(self.state, size=numbers[-1])
        elif operator == b"gs" and operands:
            self.state = replace(self.state, clear=str(operands[0]) in self.clear_states)
        elif operator == b"cs":
            space = str(operands[0]) if operands else ""
            self.state = replace(self.state, white=False, gray=space in self.gray_spaces)
        elif operator in (b"g", b"rg", b"k", b"sc", b"scn"):
            self.state = replace(self.state, white=self._is_white(operator, numbers))

    def _is_white(self, operator: bytes, numbers: list[float]) -> bool:
        if len(numbers) == 4:
            return max(numbers) <= PALEST
        gray = operator == b"g" or self.state.gray
        return bool(numbers) and min(numbers) >= 1 - PALEST and (len(numbers) == 3 or (len(numbers) == 1 and gray))

    def _unseen(self, cm: list[float], tm: list[float]) -> bool:
        pale = self.state.white or self.state.clear
        if self.state.mode in (3, 7) or (pale and self.state.mode in (0, 4)):
            return True
        scale = math.sqrt(abs((cm[0] * cm[3] - cm[1] * cm[2]) * (tm[0] * tm[3] - tm[1] * tm[2])))
        return abs(self.state.size) * scale < SMALLEST_POINTS

    def _empty(self, operator: bytes, operands: list[Any]) -> None:
        shown = operands[0] if operator == b"TJ" and operands else operands[-1:]
        self.hidden += sum(len(part) for part in shown if isinstance(part, str | bytes))
        if operator == b"TJ":
            operands[:] = [type(operands[0])()] if operands else []
        elif operands:
            operands[-1] = type(operands[-1])()


# ------------------------------------------------------------------------------------------ the runner
class _OutOfTime(BaseException):
    """A check ran past its time; not an Exception, so that a check does not swallow it."""


def load_case(folder: str) -> tuple[Case, list[str], float]:
    """Read the case that the host laid into the sandbox."""
    with open(os.path.join(folder, "case.json"), encoding="utf-8") as file:
        raw = json.load(file)
    files = {
        kind: {name: _bytes(os.path.join(folder, kind, name)) for name in raw[kind]}
        for kind in ("inputs", "deliverables")
    }
    paper = read_paper(os.path.join(folder, "deliverables", "paper.pdf"))
    case = Case(raw["steps"], raw["references"], files["inputs"], files["deliverables"], raw["refused"], paper)
    return case, raw["criteria"], raw["check_time_s"]


def main(folder: str, out: str) -> None:
    """Apply every criterion's check and write the findings as JSON, each with a score or a crash."""
    try:
        case, criteria, limit_s = load_case(folder)
        checks = _load_checks(os.path.join(folder, "evidence.py"))
        findings = [_apply(checks, name, case, limit_s) for name in criteria]
        answer: dict[str, Any] = {"findings": findings}
    except BaseException as error:
        answer = {"crash": _where(error)}
    with open(out, "w", encoding="ascii") as file:
        json.dump(answer, file)


def _load_checks(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location("evidence", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["evidence"] = module
    spec.loader.exec_module(module)
    return module


def _apply(checks: ModuleType, name: str, case: Case, limit_s: float) -> dict[str, Any]:
    check = getattr(checks, name.replace("-", "_"), None)
    if not callable(check):
        return {"criterion": name, "crash": f"evidence.py has no function {name.replace('-', '_')}"}
    # Processor time, not the clock's: how busy a machine is must not change a grade.
    signal.signal(signal.SIGPROF, _out_of_time)
    signal.setitimer(signal.ITIMER_PROF, limit_s)
    try:
        finding = check(case)
        signal.setitimer(signal.ITIMER_PROF, 0)
        return {"criterion": name, **_written(finding)}
    except _OutOfTime:
        return {"criterion": name, "crash": f"took longer than {limit_s:g} s"}
    except BaseException as error:
        return {"criterion": name, "crash": _where(error)}
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _written(finding: object) -> dict[str, Any]:
    if not isinstance(finding, Finding):
        raise TypeError(f"expected a Finding, got {type(finding).__name__}")
    if not isinstance(finding.score, int):
        raise TypeError(f"expected a whole number as score, got {type(finding.score).__name__}")
    quotes = [{"source": str(q.source), "quote": str(q.quote)[:2000]} for q in finding.quotes if q is not None]
    return {"score": int(finding.score), "reason": str(finding.reason)[:8000], "quotes": quotes[:50]}


def _out_of_time(*_: object) -> NoReturn:
    raise _OutOfTime


def _where(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    line = next((f"evidence.py line {f.lineno}: " for f in reversed(frames) if f.filename.endswith("evidence.py")), "")
    return f"{line}{type(error).__name__}: {str(error)[:500]}"


def _bytes(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
