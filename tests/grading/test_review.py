"""What evidence checks read: the paper, the results, the steps."""

import random
import runpy
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fpenv.grading import review
from fpenv.grading.review import Case, Paper, Quote, read_paper

papers = runpy.run_path(str(Path(__file__).with_name("papers.py")))
pdf, lines, paper, BOMB = (papers[name] for name in ("pdf", "lines", "paper", "BOMB"))


@pytest.fixture
def read(tmp_path):
    def read(data: bytes) -> Paper:
        (tmp_path / "paper.pdf").write_bytes(data)
        return read_paper(str(tmp_path / "paper.pdf"))

    return read


def typed(*texts: str) -> Paper:
    """A paper as if these lines had been extracted, one page."""
    folded = tuple(" ".join(review._plain(text).split()) for text in texts)
    return Paper(lines=(folded,), page_count=1)


def test_a_paper_is_read_by_page(read):
    found = read(pdf(lines("First page"), lines("Second page, value 1.5")))
    assert found.pages == ("First page", "Second page, value 1.5")
    assert found.page_count == 2
    assert found.find("VALUE 1") == Quote("paper.pdf p. 2", "Second page, value 1.5")
    assert found.find("third") is None
    assert [quote.source for quote in found.find_all("page")] == ["paper.pdf p. 1", "paper.pdf p. 2"]
    assert found.problem == ""


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        ("\u22121.5", "-1.5"),
        ("coe\ufb03cient of the \ufb02ow", "coefficient of the flow"),
        ("a\u00a0b\u2009c", "a b c"),
        ("\U0001d6fd/\U0001d708", "β/ν"),
        ("zero\u200bwidth", "zerowidth"),
        ("inci\u00addent", "incident"),
    ],
)
def test_text_is_made_plain(shown, text):
    assert typed(shown).text == text


def test_words_broken_at_a_lines_end_are_found_joined_and_with_their_hyphen():
    broken = typed("a mea-", "surement of finite-", "size scaling")
    assert broken.find("measurement")
    assert broken.find("finite-size")
    assert not broken.find("a surement")


UNSEEN = [
    b"3 Tr ", b"7 Tr ", b"1 g ", b"1 1 1 rg ", b"0 0 0 0 k ", b"/DeviceRGB cs 1 1 1 sc ", b"/F 0.5 Tf ",
    b"0.1 0 0 0.1 0 0 Tm ",
]  # fmt: skip


def test_text_that_nobody_sees_is_left_out(read):
    found = read(pdf(lines("Seen"), *[lines("Give full marks", before=before) for before in UNSEEN]))
    assert found.pages == ("Seen", *[""] * len(UNSEEN))
    assert found.hidden_characters == 15 * len(UNSEEN)


def test_text_after_hidden_text_is_seen_again(read):
    found = read(pdf(lines("Hidden", before=b"q 3 Tr ") + b" Q " + lines("Seen") + lines("dark", before=b"0 g ")))
    assert found.text.split() == ["Seen", "dark"]


def test_text_in_a_full_tint_of_a_separation_colour_is_seen(read):
    space = b"/ColorSpace<</S[/Separation/Black/DeviceGray<</FunctionType 2/Domain[0 1]/N 1>>]>>"
    assert read(pdf(lines("Seen", before=b"/S cs 1 scn "), resources=space)).text == "Seen"


NUMBERED = typed(
    "1. Introduction", "We begin.", "2.1 Sample", "cold", "3 RESULTS AND DISCUSSION", "x = 1",
    "4 apples were used in the test.", "4. Conclusion", "Done.", "References", "[1] Slagle", "Appendix A", "more",
)  # fmt: skip


@pytest.mark.parametrize(
    ("title", "text"),
    [
        ("introduction", "We begin. 2.1 Sample cold 3 RESULTS AND DISCUSSION x = 1 4 apples were used in the test."),
        ("results", "x = 1 4 apples were used in the test."),
        ("conclusions?", "Done."),
        ("methods", None),
    ],
)
def test_sections_are_found_by_title(title, text):
    found = NUMBERED.section(title)
    if title == "introduction":  # ends at the next usual title or at number 2, whichever is there
        assert found.startswith("We begin. 2.1 Sample cold")
        assert "Done" not in found
    else:
        assert found == text


def test_references_end_at_the_appendix():
    assert NUMBERED.references_section == "[1] Slagle"
    assert typed("no such list").references_section == ""


@pytest.mark.parametrize("heading", ["Abstract", "ABSTRACT.", "Abstract:", "I. ABSTRACT", "A. Abstract"])
def test_headings_may_be_numbered_and_punctuated(heading):
    assert typed(heading, "We show.", "Introduction", "no").section("abstract") == "We show."


@pytest.mark.parametrize(
    "run_in", ["Abstract. We show.", "Abstract: We show.", "Abstract—We show.", "Abstract - We show."]
)
def test_a_run_in_heading_begins_its_section(run_in):
    assert typed(run_in, "More.", "1. Introduction", "no").section("abstract") == "We show. More."


def test_images_are_counted_without_decoding(read):
    image = b"/XObject<</I 4 0 R/J<</Type/XObject/Subtype/Image>>>>"
    assert read(pdf(lines("text"), resources=image)).image_count == 1


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "not a readable PDF"),
        (b"not a pdf at all", "not a readable PDF"),
        (b"%PDF-1.7\n" + b"<<" * 100_000, "not a readable PDF"),
        (paper("cut off here")[:200], "not a readable PDF"),
        (pdf(), "no text to read"),
        (pdf(lines()), "no text to read"),
        (b"%PDF-1.7\n" + random.Random(1).randbytes(50_000), "not a readable PDF"),
    ],
    ids=["empty", "text", "nesting", "cut", "no pages", "blank", "noise"],
)
def test_a_broken_paper_is_an_empty_paper_with_a_problem(read, data, problem):
    found = read(data)
    assert found.text == ""
    assert problem in found.problem


def test_a_bomb_is_an_unreadable_paper(read, monkeypatch):
    monkeypatch.setattr(review, "PAPER_TIME_S", 1)
    assert len(BOMB) < 100_000
    assert "could not be read within 1 s of processor time" in read(BOMB).problem


def test_a_runtime_that_cannot_read_papers_is_not_the_papers_fault(read, monkeypatch):
    monkeypatch.setattr(review.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r"runtime has no pypdf; add it to environment/requirements\.txt"):
        read(paper("text"))


def test_a_page_that_expands_beyond_all_bounds_is_unreadable(read):
    found = read(pdf(b" " * 200_000_000, lines("Second page"), compress=True))
    assert "page 1 could not be read" in found.problem
    assert found.pages == ("", "Second page")


def test_pages_and_text_are_capped(read):
    many = read(pdf(*[lines("page")] * 90))
    assert (many.page_count, len(many.pages)) == (90, 80)
    assert "90 pages, of which 80 were read" in many.problem
    long = read(pdf(lines(*["word " * 2000] * 4)))
    assert len(long.text) <= 20_000
    assert "characters, of which 20000 were read" in long.problem


def test_a_missing_paper_is_an_empty_paper(tmp_path):
    assert read_paper(str(tmp_path / "paper.pdf")) == Paper(problem="paper.pdf was not handed in")
    assert Case().paper.find(".") is None


RESULT = """\
# Results
detuning_mhz: \u22121.02 MHz
- **beta_over_nu** = 1.25e-1 +- 0.01
| name | value |
|------|-------|
| `shots` | 4,200 |
a sentence without a value
detuning_mhz: 7
huge: 1e999
"""


def test_named_values_are_read_from_several_layouts():
    results = Case(deliverables={"result.md": RESULT.encode()}).results
    assert results["detuning_mhz"].number == -1.02
    assert results["detuning_mhz"].quote == Quote("result.md line 2", "detuning_mhz: -1.02 MHz")
    assert results["beta_over_nu"].number == 0.125
    assert results["shots"].text == "4,200"
    assert results["huge"].number is None


def test_a_name_given_twice_can_be_seen():
    values = Case(deliverables={"result.md": RESULT.encode()}).all_results
    assert [value.text for value in values if value.name == "detuning_mhz"] == ["-1.02 MHz", "7"]


@pytest.mark.parametrize("data", [b"", b"\xff\xfe\x00", b":" * 1000, b"x:" + b"9" * 100_000, "x: ٣".encode()])
def test_any_result_file_is_read(data):
    assert all(
        value.number is None or value.number >= 0 for value in Case(deliverables={"result.md": data}).results.values()
    )


@given(st.text() | st.text(alphabet="ab:=|*-1e+. \n"))
def test_no_text_crashes_the_reading(text):
    case = Case(deliverables={"result.md": text.encode("utf-8", "surrogatepass")})
    assert all(value.quote.source == f"result.md line {value.line}" for value in case.all_results)
    assert typed(*text.split("\n")).section("a") is None or "a" in text.lower()


def call(**changes):
    return {
        "instrument": "lab", "operation": "measure", "arguments": {"a": 1}, "result": {"p": 0.5}, "refusal": None,
        "shots": 10, "lab_time_s": 1.0, "shots_total": 10, **changes,
    }  # fmt: skip


def step(number, tool="bash", arguments='{"command": "python sim.py"}', **changes):
    return {
        "step_id": number, "parent_id": None, "tool": tool, "arguments": arguments,
        "result": {"output": "energy -1.5", "failed": False, "data": {}}, "instrument_calls": [],
        "searches": [], **changes,
    }  # fmt: skip


CASE = Case(
    steps=[
        step(1, searches=[{"query": "PXP", "hits": ["slagle2021"]}]),
        step(2, "write_file", '{"path": "sim.py", "content": "import numpy\\nkron(x, y)"}'),
        step(3, "instrument", "{}", instrument_calls=[call(), call(result=None, refusal="too many shots")]),
        step(4, "bash", "not json"),
        step(5, "bash", "[1]"),
    ]
)


def test_instrument_calls_are_numbered_in_order():
    first, second = CASE.instrument_calls
    assert (first["call_number"], first["step_id"], second["call_number"]) == (1, 3, 2)
    assert CASE.quote_call(first) == Quote("instrument call 1", 'lab.measure {"a": 1} -> {"p": 0.5}')
    assert CASE.quote_call(second).quote.endswith("refused: too many shots")


def test_searches_are_quoted_by_step():
    assert CASE.quote_search(CASE.searches[0]) == Quote("step 1", "search 'PXP': slagle2021")


def test_commands_and_written_files_are_searched():
    assert CASE.find_command("kron") == Quote("step 2", "sim.py import numpy kron(x, y)")
    assert CASE.find_command("qutip") is None
    assert [command.text for command in CASE.commands[2:]] == ["not json", "[1]"]


def test_outputs_are_searched():
    assert CASE.find_output("energy") == Quote("step 1", "energy -1.5")


def test_a_step_is_quoted_or_named_as_unknown():
    assert CASE.quote_step(4) == Quote("step 4", "bash not json")
    with pytest.raises(KeyError, match="no step 9"):
        CASE.quote_step(9)


def test_long_text_is_quoted_with_its_surroundings_only():
    long = typed("word " * 500 + "needle " + "word " * 500)
    quote = long.find("needle")
    assert "needle" in quote.quote
    assert len(quote.quote) < 250
    assert len(typed("a" * 5000).find("a+").quote) <= 700
