"""Tables: nothing is cut off in a narrow terminal, and every form holds the same numbers."""

from __future__ import annotations

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from coterie.results.tables import Cell, Sheet, as_csv, as_latex, as_markdown, as_page, simple

WIDE = Sheet(
    "wide",
    ["method", *(f"protocol_{number}" for number in range(6))],
    [[f"two-stream-l2 mu=0.0{number}", *(Cell("48.45% ± 5.98", values=(0.4845, 0.0598)) for _ in range(6))] for number in range(2)],
    "a note",
)


def drawn(sheet: Sheet, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(sheet)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_table_that_is_too_wide_comes_in_parts_and_names_and_numbers_stay_whole() -> None:
    text = drawn(WIDE)
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    assert text.count("48.45% ± 5.98") == 12
    assert all(f"protocol_{number}" in text for number in range(6))
    assert text.count("two-stream-l2 mu=0.00") == 2


def test_a_table_that_fits_is_in_one_part() -> None:
    assert drawn(WIDE, 160).count("two-stream-l2 mu=0.00") == 1


@given(width=st.integers(20, 120), words=st.lists(st.text("abc-_", min_size=1, max_size=30), min_size=2, max_size=6))
def test_no_letter_is_lost_at_any_width(width, words) -> None:
    text = drawn(Sheet("", words, [words, words]), width)
    assert max(map(len, text.splitlines())) <= width
    letters = sorted(letter for letter in text if letter in "abc-_")
    assert all(letters.count(letter) >= 3 * "".join(words).count(letter) for letter in "abc-_")


def test_sentences_are_broken_between_words() -> None:
    text = drawn(simple("methods", ["name", "what"], [("fedavg", "a sentence of several words that goes on " * 4)]), 60)
    assert max(map(len, text.splitlines())) <= 60
    assert "sentence" in text


def test_markup_is_no_markup() -> None:
    assert "[bold]x[/bold] [0]" in drawn(simple("[red]t", ["a"], [("[bold]x[/bold] [0]",)]))


def test_the_forms_hold_the_same_numbers() -> None:
    sheet = Sheet(
        "ours_1", ("method", "last"), [("a_b", Cell("94.33% ± 3.21", best=True, values=(0.9433, 0.0321)))], "n", [["m"], ["x", "sd"]]
    )
    assert "| a_b | **94.33% ± 3.21** |" in as_markdown([sheet])
    assert r"a\_b & \textbf{94.33\% $\pm$ 3.21}" in as_latex([sheet])
    page = as_page(sheet)
    assert page["rows"] == [["a_b", ["94.33% ± 3.21", 1]]]
    assert page["numeric"] == [False, True]
    assert list(csv.DictReader(io.StringIO(page["csv"]))) == [{"m": "a_b", "x": "0.9433", "sd": "0.0321"}]


def test_a_table_without_rows_has_its_headings() -> None:
    assert as_page(Sheet("", ["a", "b"], []))["csv"] == "a,b\n"
    assert "a" in drawn(Sheet("", ["a", "b"], []))


def test_rows_of_different_keys() -> None:
    assert as_csv([{"a": 1}, {"b": 0.5}]) == "a,b\n1,\n,0.5\n"


@pytest.mark.parametrize("value", [True, "x"])
def test_what_is_no_number_is_not_set_to_the_right(value) -> None:
    assert not Sheet("", ["a"], [[value]]).numeric(0)
