from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ddpsim.markup import Markup, element, summary_card, table
from tests import pages

TEXT = st.text(st.characters(exclude_categories=["Cs", "Cc"]))


@given(TEXT, TEXT)
def test_text_and_attributes_come_back_as_they_were_given(text: str, told: str) -> None:
    [made] = pages.parse(element("p", text, title=told)).all("p")
    assert (made.text, made.attributes["title"]) == (text, told)


def test_markup_is_taken_as_it_is_and_a_zero_is_an_attribute() -> None:
    assert element("p", element("b", "<"), "<") == "<p><b>&lt;</b>&lt;</p>"
    assert (
        element("option", value=0, selected=True, disabled=False, title=None) == '<option value="0" selected></option>'
    )
    assert isinstance(element("p"), Markup)


def test_a_table_names_its_columns_and_rows() -> None:
    made = pages.parse(table(("machine", "ms"), [("<dgx>", "1.5"), ("x" * 60, "2")], words=(0,)))
    assert pages.table(made) == [{"machine": "<dgx>", "ms": "1.5"}, {"machine": "x" * 60, "ms": "2"}]
    assert [cell.attributes["scope"] for cell in made.all("th")] == ["col", "col", "row", "row"]
    assert made.all("th", class_="words long")[0].text == "x" * 60


def test_a_card_escapes_what_it_shows() -> None:
    card = pages.parse(summary_card("<job>", {"step": "1 < 2 ms"}))
    assert "<job>" in card.text
    assert "1 < 2 ms" in card.text
