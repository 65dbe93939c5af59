"""One table, four writers: the same cells as text, Markdown, HTML and JSON."""

from __future__ import annotations

import pytest

from ddpsim.common.tables import ResultTable, break_line, cell_of, heading_of, table_of
from ddpsim.common.tables.lines import LONGEST
from ddpsim.common.tables.table import WIDEST
from tests import pages

RECORDS = [
    {"topology": "dgx-1v", "nodes": 1024, "local_s": 0.1, "local_low_s": 0.09, "local_high_s": 0.12},
    {"topology": "a|b", "nodes": 2, "local_s": 0.02, "gain": 0.031, "overlap_ratio": None},
]


def test_the_writers_say_the_same_cells() -> None:
    table = table_of("", RECORDS, ("topology", "nodes", "local_s", "gain"))
    assert table.header == ("machine", "nodes", "without DDP ms", "gain")
    assert table.rows == (("dgx-1v", "1024", "100.00 (90.00 to 120.00)", None), ("a|b", "2", "20.00", "3.1 %"))
    assert table.text().splitlines() == [
        "machine  nodes            without DDP ms   gain",
        "dgx-1v    1024  100.00 (90.00 to 120.00)      -",
        "a|b          2                     20.00  3.1 %",
    ]
    assert table.markdown().splitlines() == [
        "| machine | nodes | without DDP ms | gain |",
        "|---|--:|--:|--:|",
        "| dgx-1v | 1024 | 100.00 (90.00 to 120.00) | - |",
        "| a\\|b | 2 | 20.00 | 3.1 % |",
    ]
    shown = pages.table(pages.parse(table.html()))
    assert [list(row.values()) for row in shown] == table.document()["rows"]
    assert table.document()["rows"][0] == ["dgx-1v", "1024", "100.00 (90.00 to 120.00)", "–"]


def test_html_says_how_many_rows_are_left() -> None:
    assert "and 1 more" in pages.parse(table_of("", RECORDS, ("topology",)).html(1)).text


def test_without_keys_all_are_shown_and_the_ends_of_bands_stand_in_their_cells() -> None:
    assert table_of("", RECORDS).header == ("machine", "nodes", "without DDP ms", "gain")


@pytest.mark.parametrize(
    ("key", "value", "heading", "cell"),
    [
        ("exposed_comm_s", 0.0125, "exposed ms", "12.50"),
        ("deadline_s", 7200.0, "deadline h", "2"),
        ("samples_per_s", 1234.56, "samples/s", "1,235"),
        ("link_rate_Bps", 12.5e9, "link rate Gb/s", "100"),
        ("bucket_memory_bytes", 1 << 20, "bucket memory MiB", "1.0"),
        ("error", -0.031, "error", "-3.1 %"),
        ("error", 0.031, "error", "+3.1 %"),
        ("size_bytes", 26 << 20, "size MiB", "26.00"),
        ("size_bytes", 4096, "size MiB", "0.0039"),
        ("parameters", ["a", "b"], "parameters", "2"),
        ("worth_it", True, "worth it", "yes"),
        ("overlap_ratio", None, "hidden", None),
    ],
)
def test_the_end_of_a_key_is_its_unit(key: str, value: object, heading: str, cell: str | None) -> None:
    assert (heading_of(key), cell_of({key: value}, key)) == (heading, cell)


def test_a_column_may_leave_its_band_out() -> None:
    assert table_of("", RECORDS[:1], ("local_s",), bands=False).text() == "without DDP ms\n        100.00"


def test_a_command_may_show_shares_to_hundredths() -> None:
    rows = [{"configuration": "a", "error": 0.00123, "noise": 0.00042}]
    assert table_of("campaign", rows).rows == (("a", "0.04 %", "+0.12 %"),)
    assert table_of("", rows, ("error",)).rows == (("+0.1 %",),)


def test_a_column_of_which_nothing_is_known_is_none_and_rows_may_be_left_out() -> None:
    table = table_of("", [{"a": "x", "b": None, "c": "1 ?"}, {"a": "y", "b": None, "c": None}])
    assert (table.header, table.words) == (("a", "c"), frozenset({0, 1}))
    assert table.first(1).text("  ") == "  a  c\n  x  1 ?"


def test_numbers_end_at_the_right_and_words_begin_at_the_left() -> None:
    rows = [{"a": "x", "saves": "1.25 ms", "change": "+0.31", "of the step": "1,000.5 %", "count": 3, "buckets": 5}]
    assert table_of("", rows).words == frozenset({0, 1})
    assert table_of("", [{"buckets": "25 MiB (5)"}]).words == frozenset({0})


def test_a_line_is_broken_between_words_and_never_before_a_unit() -> None:
    assert break_line("short: 1 %") == "short: 1 %"
    for length in range(90, 121):
        lines = break_line(f"{'x' * length} 12.5 % of 3 GB/s and 4 nodes, {'y' * 60}").splitlines()
        assert all(len(line) <= LONGEST for line in lines)
        assert all(not line.lstrip().startswith(("%", "GB/s", "nodes")) for line in lines)
    assert break_line(f"{'x' * 200} y", "    ") == f"{'x' * 200}\n    y"


def test_a_line_is_broken_at_spaces_alone() -> None:
    name = "weight\r\tof " + "x" * 60
    text = ResultTable(("name", "where"), ((name, "y " * 40),), frozenset({0, 1})).text()
    assert "weight\r\tof" in text.split("\n")[1]


def test_headings_that_make_lines_too_long_take_several() -> None:
    header = ("machine", *(f"column number {n}" for n in range(9)))
    lines = ResultTable(header, (("a", *"123456789"),)).text().splitlines()
    assert max(map(len, lines)) <= WIDEST
    assert [line.split() for line in lines[1:3]] == [["number"] * 9, list("012345678")]
    assert lines[3].split() == ["a", *"123456789"]


def test_bands_that_make_lines_too_long_stand_under_their_numbers() -> None:
    header = ("machine", *(f"t{n}" for n in range(4)))
    lines = ResultTable(header, (("a", *("106.26 (93.69 to 122.37)" for _ in range(4))),)).text().splitlines()
    assert max(map(len, lines)) <= WIDEST
    assert lines[1].split() == ["a", *["106.26"] * 4]
    assert lines[2].strip().split("  ") == ["(93.69 to 122.37)"] * 4


def test_words_that_make_lines_too_long_take_several() -> None:
    source = " ".join(f"word{n:02}" for n in range(40))
    text = ResultTable(
        ("name", "value", "source"), (("a", "1", source), ("b", "22", "short")), frozenset({0, 2})
    ).text()
    assert max(map(len, text.splitlines())) <= WIDEST
    first, *more, last = text.splitlines()[1:]
    assert first.startswith("a         1  word00 word01")
    assert all(line.startswith(" " * 13 + "word") for line in more)
    assert " ".join([first[13:], *(line.strip() for line in more)]) == source
    assert last == "b        22  short"
