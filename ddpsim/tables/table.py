"""A table of results: its columns and cells, and the four ways to write them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from textwrap import wrap
from typing import Generic, TypeVar

from ddpsim.markup import Markup
from ddpsim.markup import table as html_table

Row = TypeVar("Row")
Record = Mapping[str, object]
"""A row as a document has it: values by keys that end in their unit."""

Cells = tuple[str | None, ...]

WIDEST = 132
"""Characters of a line of text, from which on words are broken; what wide terminals have."""
_NARROWEST = 16
"""Characters that a column of words keeps at least; chosen by hand."""


@dataclass(frozen=True, slots=True)
class Column(Generic[Row]):
    """What stands in a column.

    Attributes:
        heading: with the unit of its cells.
        cell: the cell of a row; None, or a text that is empty, where there is nothing to say.
        words: whether its cells are words, which begin at the left; numbers end at the right.
    """

    heading: str
    cell: Callable[[Row], object]
    words: bool = False


@dataclass(frozen=True, slots=True)
class ResultTable:
    """Cells under their headings.

    Attributes:
        words: numbers of the columns that hold words.
    """

    header: tuple[str, ...]
    rows: tuple[Cells, ...]
    words: frozenset[int] = frozenset({0})

    @classmethod
    def of(cls, columns: Sequence[Column[Row]], rows: Sequence[Row]) -> ResultTable:
        """Return the table of `rows`."""
        cells = (tuple(_text(column.cell(row)) for column in columns) for row in rows)
        words = frozenset(number for number, column in enumerate(columns) if column.words)
        return cls(tuple(column.heading for column in columns), tuple(cells), words)

    def known(self) -> ResultTable:
        """Return the table without columns of which nothing is known."""
        kept = [n for n in range(len(self.header)) if any(row[n] is not None for row in self.rows)]
        rows = tuple(tuple(row[n] for n in kept) for row in self.rows)
        words = frozenset(place for place, n in enumerate(kept) if n in self.words)
        return ResultTable(tuple(self.header[n] for n in kept), rows, words)

    def first(self, most: int) -> ResultTable:
        """Return the table of the first `most` rows."""
        return ResultTable(self.header, self.rows[:most], self.words)

    def text(self, indent: str = "") -> str:
        """Return aligned lines, each after `indent`; a cell of nothing is a hyphen.

        Where lines would be longer than `WIDEST`, cells of words take several.
        """
        cells = [self.header, *self._mark_cells("-")]
        widths = self._narrowed([max(map(len, column)) for column in zip(*cells, strict=True)])
        lines = [line for row in cells for line in _broken(row, widths)]
        return "\n".join(
            indent
            + "  ".join(
                cell.ljust(width) if number in self.words else cell.rjust(width)
                for number, (cell, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in lines
        )

    def markdown(self) -> str:
        """Return the lines of a Markdown table; a cell of nothing is a hyphen."""
        ends = ("---" if number in self.words else "--:" for number in range(len(self.header)))
        lines = (self.header, *self._mark_cells("-"))
        head, *body = (f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)
        return "\n".join([head, f"|{'|'.join(ends)}|", *body])

    def html(self, most: int | None = None) -> Markup:
        """Return an HTML table of `most` rows, below them how many more there are; a cell of nothing is a dash."""
        return html_table(self.header, self._mark_cells("–"), words=self.words, most=most)

    def document(self) -> dict[str, object]:
        """Return the headings and cells as JSON values."""
        return {"header": list(self.header), "rows": [list(row) for row in self._mark_cells("–")]}

    def _narrowed(self, widths: list[int]) -> list[int]:
        """Return the widths of columns in which the widest of words are as narrow as they must be."""
        left = WIDEST - 2 * (len(widths) - 1) - sum(width for n, width in enumerate(widths) if n not in self.words)
        words = [widths[n] for n in sorted(self.words) if n < len(widths)]
        most = max(words, default=0)
        while most > _NARROWEST and sum(min(width, most) for width in words) > left:
            most -= 1
        return [min(width, most) if n in self.words else width for n, width in enumerate(widths)]

    def _mark_cells(self, nothing: str) -> list[tuple[str, ...]]:
        return [tuple(nothing if cell is None else cell for cell in row) for row in self.rows]


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _broken(row: Sequence[str], widths: Sequence[int]) -> list[tuple[str, ...]]:
    """Return the lines of a row, whose cells are as wide as their columns; a longer word stays whole."""
    parts = [
        wrap(cell, width, break_long_words=False, break_on_hyphens=False) if len(cell) > width else [cell]
        for cell, width in zip(row, widths, strict=True)
    ]
    return list(zip_longest(*parts, fillvalue=""))
