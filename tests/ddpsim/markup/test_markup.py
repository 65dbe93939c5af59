from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ddpsim.markup import SvgShape, summary_card, svg, table
from tests import pages

TEXT = st.text(st.characters(exclude_categories=["Cs", "Cc"]))


@given(TEXT, TEXT)
def test_text_and_attributes_come_back_as_they_were_given(text: str, told: str) -> None:
    [made] = pages.parse(svg([SvgShape("text", {"data-said": told}, text, told)], told)).all("text")
    assert (made.text, made.attributes["data-said"]) == (told + text, told)


def test_numbers_are_short_and_none_is_no_attribute() -> None:
    drawn = svg([SvgShape("rect", {"x": 0, "y": 0.1 + 0.2, "fill": None})], "a", height=23)
    assert drawn == '<svg height="23" role="img" aria-label="a"><rect x="0" y="0.3"></rect></svg>'


def test_a_table_names_its_columns_and_rows() -> None:
    made = pages.parse(table(("machine", "ms"), [("<dgx>", "1.5"), ("x" * 60, "2")], words=(0,)))
    assert pages.table(made) == [{"machine": "<dgx>", "ms": "1.5"}, {"machine": "x" * 60, "ms": "2"}]
    assert [cell.attributes["scope"] for cell in made.all("th")] == ["col", "col", "row", "row"]
    assert made.all("th", class_="words long")[0].text == "x" * 60


def test_a_card_escapes_what_it_shows() -> None:
    card = pages.parse(summary_card("<job>", {"step": "1 < 2 ms"}))
    assert "<job>" in card.text
    assert "1 < 2 ms" in card.text
