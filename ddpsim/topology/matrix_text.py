"""The text of a matrix of devices, as drivers' tools print one: a header of names, a row of words for each."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ddpsim.common.errors import TopologyError

_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


def plain_lines(text: str) -> list[str]:
    """Return the lines of a terminal's output without its colours."""
    return [_ESCAPE.sub("", line) for line in text.splitlines()]


@dataclass(frozen=True, slots=True)
class MatrixVocabulary:
    """The words that a matrix may have.

    Attributes:
        pattern: of one word.
        known: how errors list them.
    """

    pattern: re.Pattern[str]
    known: str

    def read(
        self, lines: Sequence[str], start: int, devices: Sequence[str], place: str
    ) -> tuple[dict[tuple[str, str], str], dict[str, list[str]]]:
        """Return the word of each two devices, and of each device the cells beyond its words.

        Args:
            start: the header's line, whose next ones are the rows, up to a line that is no device's second row.

        Raises:
            TopologyError: a word that is none, a row that is too short; with its line.
        """
        words: dict[tuple[str, str], str] = {}
        rest: dict[str, list[str]] = {}
        for number, line in enumerate(lines[start + 1 :], start + 2):
            cells = line.split()
            if not cells or cells[0] not in devices:
                continue
            if cells[0] in rest:
                break
            row = cells[1 : len(devices) + 1]
            self._check_row(cells[0], row, devices, f"{place}: line {number}")
            pairs = zip(devices, row, strict=True)
            words |= {(cells[0], other): word for other, word in pairs if other != cells[0]}
            rest[cells[0]] = cells[len(devices) + 1 :]
        return words, rest

    def _check_row(self, device: str, row: Sequence[str], devices: Sequence[str], where: str) -> None:
        for other, word in zip(devices, row, strict=False):
            if not self.pattern.fullmatch(word):
                raise TopologyError(
                    f"{word!r} between {device} and {other}", place=where, remedy=f"known: {self.known}"
                )
        if len(row) < len(devices):
            raise TopologyError(
                f"the row of {device} has {len(row)} of {len(devices)} columns",
                place=where,
                remedy="give the whole line",
            )


def check_rows(devices: Sequence[str], words: dict[tuple[str, str], str], rows: Sequence[str], place: str) -> None:
    """Refuse a matrix without a row for each of `devices`, or whose two halves differ.

    Raises:
        TopologyError: it names the devices.
    """
    for device, times in Counter(devices).items():
        if times > 1:
            raise TopologyError(f"{device} is named {times} times", place=place, remedy="give the matrix as printed")
        if device not in rows:
            raise TopologyError(f"no row for {device}", place=place, remedy="give the whole matrix")
    for first in devices:
        for second in devices:
            if first < second and words[first, second] != words[second, first]:
                raise TopologyError(
                    f"{first} to {second} is {words[first, second]}, the other way {words[second, first]}",
                    place=place,
                    remedy="give the matrix as printed",
                )
