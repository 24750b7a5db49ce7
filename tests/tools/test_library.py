import json
from pathlib import Path

import pytest

from fpenv.errors import TaskError
from fpenv.tools.library import Library, Work, load_library, show_works


def work(key: str, title: str, summary: str) -> Work:
    return Work(key=key, title=title, authors=("A. Author",), year=2004, venue="Phys. Rev. B", summary=summary)


LIBRARY = (
    work("chain", "Competing orders in a Rydberg chain", "Phase diagram of hard bosons."),
    work("gate", "A two-qubit gate", "Blockade of Rydberg atoms."),
    work("magnet", "Domain walls", "Nothing of interest."),
)


def test_a_title_counts_more_than_a_summary() -> None:
    assert [hit.key for hit in Library(LIBRARY).search("rydberg")] == ["chain", "gate"]


@pytest.mark.parametrize("query", ['"', "AND OR NOT", "a* NEAR(b)", "'; DROP TABLE works; --", "μ → ∞", "()"])
def test_a_query_is_words_and_never_syntax(query: str) -> None:
    assert len(Library(LIBRARY).search(query)) <= 3


def test_every_query_is_logged_with_its_hits_even_without_any() -> None:
    library = Library(LIBRARY)
    library.search("domain walls", 1)
    library.search("zzz")
    assert [(s.query, s.hits) for s in library.log] == [("domain walls", ("magnet",)), ("zzz", ())]


def test_what_an_agent_sees_does_not_say_which_works_matter() -> None:
    assert {"important", "distractor"}.isdisjoint(LIBRARY[0].public())
    assert "important" not in show_works(list(LIBRARY))


def test_a_malformed_literature_file_is_the_tasks_fault_and_names_the_key(tmp_path: Path) -> None:
    (tmp_path / "literature.json").write_text(json.dumps([{"key": "a"}]))
    with pytest.raises(TaskError, match=r"literature\.json: 0\.title"):
        load_library(tmp_path)
