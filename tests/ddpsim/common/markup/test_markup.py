from __future__ import annotations

from ddpsim.common.markup import summary_card, table
from tests import pages


def test_a_table_names_its_columns_and_rows() -> None:
    made = pages.parse(table(("machine", "ms"), [("<dgx>", "1.5"), ("x" * 60, "2")], words=(0,)))
    assert pages.table(made) == [{"machine": "<dgx>", "ms": "1.5"}, {"machine": "x" * 60, "ms": "2"}]
    assert [cell.attributes["scope"] for cell in made.all("th")] == ["col", "col", "row", "row"]
    assert made.all("th", class_="words long")[0].text == "x" * 60


def test_a_card_escapes_what_it_shows() -> None:
    card = pages.parse(summary_card("<job>", {"step": "1 < 2 ms"}))
    assert "<job>" in card.text
    assert "1 < 2 ms" in card.text
