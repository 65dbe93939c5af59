"""A table of results: its columns and cells, and the four ways to write them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from textwrap import wrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ddpsim.common.markup import Markup

Record = Mapping[str, object]
"""A row as a document has it: values by keys that end in their unit."""

Cells = tuple[str | None, ...]

WIDEST = 100
"""Characters of a line of a table, beyond which cells take several; chosen by hand, for half a wide screen."""
_HIDDEN = {ord(each): 0xE000 + ord(each) for each in "\t\n\v\f\r"}
"""White space but the space, mapped to characters of private use, at which `wrap` breaks no line."""
_UNHIDDEN = {hidden: each for each, hidden in _HIDDEN.items()}
_NARROWEST = 10
"""Characters that a column of words keeps at least; chosen by hand."""


@dataclass(frozen=True, slots=True)
class ResultTable:
    """Cells under their headings.

    Attributes:
        words: numbers of the columns that hold words.
    """

    header: tuple[str, ...]
    rows: tuple[Cells, ...]
    words: frozenset[int] = frozenset({0})

    def _pick(self, columns: Sequence[int]) -> ResultTable:
        rows = tuple(tuple(row[n] for n in columns) for row in self.rows)
        words = frozenset(place for place, n in enumerate(columns) if n in self.words)
        return ResultTable(tuple(self.header[n] for n in columns), rows, words)

    def first(self, most: int) -> ResultTable:
        """Return the table of the first `most` rows."""
        return ResultTable(self.header, self.rows[:most], self.words)

    def text(self, indent: str = "") -> str:
        """Return aligned lines, each after `indent`; a cell of nothing is a hyphen.

        Where lines would be longer than `WIDEST`, cells of words and headings take several, then numbers with bands.
        """
        cells = [self.header, *self._mark_cells("-")]
        widths = self._widths(cells, WIDEST - len(indent))
        lines = [line for row in cells for line in _broken(row, widths)]
        return "\n".join(
            indent
            + "  ".join(
                cell.ljust(width) if number in self.words else cell.rjust(width)
                for number, (cell, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in lines
        )

    def parts(self, places: Sequence[int] = ()) -> str:
        """Return the text of the table, in several parts below each other where it is wider than `WIDEST`.

        Args:
            places: numbers of the columns that identify a row: the first of them that fit half a line stand in each
                part.
        """
        while places and _longest(self._pick(places).text()) > WIDEST / 2:
            places = places[:-1]
        rest = [number for number in range(len(self.header)) if number not in places]
        parts = [self.text()]
        for count in range(2, len(rest) + 1):
            if max(map(_longest, parts)) <= WIDEST:
                break
            each = math.ceil(len(rest) / count)
            picks = ({*places, *rest[at : at + each]} for at in range(0, len(rest), each))
            parts = [self._pick(sorted(pick)).text() for pick in picks]
        return "\n\n".join(parts)

    def markdown(self) -> str:
        """Return the lines of a Markdown table; a cell of nothing is a hyphen."""
        ends = ("---" if number in self.words else "--:" for number in range(len(self.header)))
        lines = (self.header, *self._mark_cells("-"))
        head, *body = (f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)
        return "\n".join([head, f"|{'|'.join(ends)}|", *body])

    def html(self, most: int | None = None) -> Markup:
        """Return an HTML table of `most` rows, below them how many more there are; a cell of nothing is a dash."""
        from ddpsim.common.markup import table

        return table(self.header, self._mark_cells("–"), words=self.words, most=most)

    def document(self) -> dict[str, object]:
        """Return the headings and cells as JSON values."""
        return {"header": list(self.header), "rows": [list(row) for row in self._mark_cells("–")]}

    def _widths(self, cells: Sequence[Sequence[str]], widest: int) -> list[int]:
        """Return the widths of columns so that lines are at most `widest`, as far as that goes.

        In three steps, each only where the line is still too wide: columns of words shrink together, none below its
        longest word or `_NARROWEST`; headings wrap, to the width of the cells below; bands move under their numbers.
        """
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        words = [number for number in sorted(self.words) if number < len(widths)]
        whole = {number: max(len(word) for row in cells for word in row[number].split(" ")) for number in words}
        most = max((widths[number] for number in words), default=0)
        while most > _NARROWEST and _line(widths) > widest:
            most -= 1
            widths = [min(w, max(most, whole[n])) if n in whole else w for n, w in enumerate(widths)]
        if _line(widths) <= widest or len(cells) == 1:
            return widths
        headings = [max(map(len, heading.split() or [""])) for heading in cells[0]]
        below = [max(len(row[number]) for row in cells[1:]) for number in range(len(widths))]
        widths = [min(width, max(each)) for width, *each in zip(widths, headings, below, strict=True)]
        if _line(widths) <= widest:
            return widths
        banded = [max(len(part) for row in cells[1:] for part in _split_band(row[n])) for n in range(len(widths))]
        return [w if n in whole else min(w, max(headings[n], banded[n])) for n, w in enumerate(widths)]

    def _mark_cells(self, nothing: str) -> list[tuple[str, ...]]:
        return [tuple(nothing if cell is None else cell for cell in row) for row in self.rows]


def _longest(text: str) -> int:
    return max(map(len, text.splitlines()))


def _line(widths: Sequence[int]) -> int:
    """Return how long a line of columns of these widths is."""
    return sum(widths) + 2 * (len(widths) - 1)


def _broken(row: Sequence[str], widths: Sequence[int]) -> list[tuple[str, ...]]:
    """Return the lines of a row, whose cells are as wide as their columns; a longer word stays whole."""
    parts = [_lines_of(cell, width) for cell, width in zip(row, widths, strict=True)]
    return list(zip_longest(*parts, fillvalue=""))


def _lines_of(cell: str, width: int) -> list[str]:
    if len(cell) <= width:
        return [cell]
    number, *band = _split_band(cell)
    if band and number.lstrip("+-")[:1].isdigit():
        return [number, *band]
    # A name may hold tabs and line ends: they stay, for the guarded stream to show them escaped.
    words = cell.translate(_HIDDEN)
    lines = wrap(words, width, break_long_words=False, break_on_hyphens=False)
    return [line.translate(_UNHIDDEN) for line in lines]


def _split_band(cell: str) -> list[str]:
    """Return a number and its band, `1.2` and `(1.1 to 1.4)`; what has none is whole."""
    return cell.replace(" (", "\n(", 1).split("\n")
