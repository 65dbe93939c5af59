"""A trace's JSON read piece by piece: its header as values, its events one at a time, whatever the file's size."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from ddpsim.common.errors import InputError
from ddpsim.common.files import MOST_BYTES, MOST_TRACE_BYTES, STANDARD_STREAM, BoundedFile, display_name, standard_input

EVENTS = "traceEvents"
"""The key whose list is read event by event."""

PIECE = 1 << 22
"""Bytes read at a time: far more than an event has, far less than a file; chosen by hand."""
_TAIL = 1 << 22
"""Characters from the end of what was read within which an error may be the end's, of a value that goes on."""
_LONGEST = MOST_BYTES
"""Characters of one value, and of the header's together, at most: its list of modules is long, an event is not."""
_SPACE = " \t\n\r"
_DECODE = json.JSONDecoder().raw_decode


class StreamedTrace:
    """A trace's file, open for one pass over its events.

    Attributes:
        header: what stands beside the events; what stands behind them is there when they have been read.

    Args:
        path: the file, gzipped where it begins as gzip does; `-` is standard input.
        error: what to raise where it is unreadable, truncated or not JSON.
        remedy: what to do then, for the message.
    """

    def __init__(self, path: str | Path, error: type[InputError], remedy: str) -> None:
        self.header: dict[str, Any] = {}
        self._place, self._error, self._remedy = display_name(path), error, remedy
        self._text, self._at, self._line, self._ended = "", 0, 1, False
        self._pieces = _pieces(path, error, remedy)
        self._in_header = 0

    def events(self) -> Iterator[object]:
        """Yield the events one by one, as `batches` does."""
        return chain.from_iterable(self.batches())

    def batches(self) -> Iterator[list[Any]]:
        """Yield the events, many at a time, of a bare list of events too; none of a document without any.

        Raises:
            InputError: as `error`, with line and column where it is not JSON.
        """
        first = self._peek()
        if first == "[":
            self._at += 1
            yield from self._items()
        elif first == "{":
            self._at += 1
            yield from self._members()
        else:
            self._refuse("Expecting a trace: an object or a list")
        if self._peek():
            self._refuse("Extra data")

    def _members(self) -> Iterator[list[Any]]:
        if self._peek() == "}":
            self._at += 1
            return
        while True:
            if self._peek() != '"':
                self._refuse("Expecting property name enclosed in double quotes")
            key = self._value()
            if self._peek() != ":":
                self._refuse("Expecting ':' delimiter")
            self._at += 1
            if key == EVENTS and self._peek() == "[":
                self._at += 1
                self.header[EVENTS] = []
                yield from self._items()
            else:
                self._peek()
                self.header[str(key)] = self._value(in_header=True)
            if self._take_end("}"):
                return

    def _items(self) -> Iterator[list[Any]]:
        if self._peek() == "]":
            self._at += 1
            return
        # Events are decoded in batches, from one to the last boundary in the text at hand: a call a batch rather than
        # an event is what makes reading fast. `between` is what stands between two events of this writer, learnt from
        # the first ones; text that looks like it inside an event makes a batch that does not decode, which is then
        # read event by event up to `refused`.
        between, refused = "", 0
        while True:
            begin = self._at
            if between and begin >= refused and (cut := self._text.rfind(between, begin)) > begin:
                if (batch := _decode(self._text[begin : cut + 1])) is not None:
                    self._at = cut + len(between) - 1
                    yield batch
                    continue
                refused = cut
            yield [self._value()]
            end = self._at
            if self._take_end("]"):
                return
            self._peek()
            gap = self._text[end - 1 : self._at + 1]
            if gap[:1] == "}" and gap[-1] == "{" and gap[1:-1].strip(_SPACE) == ",":
                between = gap

    def _take_end(self, end: str) -> bool:
        mark = self._peek()
        if mark not in (",", end):
            self._refuse("Expecting ',' delimiter")
        self._at += 1
        return mark == end

    def _value(self, *, in_header: bool = False) -> object:
        """Return the value that begins here; the text is read on, twice as far each time, until it is whole."""
        wanted = 0
        while True:
            try:
                value, end = _DECODE(self._text, self._at)
            except json.JSONDecodeError as cause:
                if cause.pos < len(self._text) - _TAIL or not self._read_more():
                    self._refuse(cause.msg, cause.pos)
                wanted = max(PIECE, 2 * wanted)
                while len(self._text) - self._at < wanted and self._read_more():
                    pass
                continue
            except (RecursionError, ValueError) as cause:
                raise self._error(
                    f"its JSON cannot be read: {cause}", place=self._place, remedy=self._remedy
                ) from cause
            if self._is_whole(end) or not self._read_more():
                if in_header:
                    self._in_header += end - self._at
                    self._check_length(self._in_header, "a header")
                self._at = end
                return value

    def _check_length(self, characters: int, what: str) -> None:
        if characters > _LONGEST:
            what = f"{what} of more than {_LONGEST:,} characters"
            raise self._error(what, place=self._place, remedy=self._remedy)

    def _is_whole(self, end: int) -> bool:
        """Whether the value that ends there goes on in no later piece, as a number would: `1` of `1.5` or `1e+5`."""
        left = len(self._text) - end
        return left > 2 or (left > 0 and self._text[end] not in ".eE")

    def _peek(self) -> str:
        """Return the next character that is no space, without taking it; empty at the end of the file."""
        while True:
            text, at = self._text, self._at
            while at < len(text) and text[at] in _SPACE:
                at += 1
            self._at = at
            if at < len(text):
                return text[at]
            if not self._read_more():
                return ""

    def _read_more(self) -> bool:
        """Read a piece more, and forget what was taken; return whether there was one."""
        if self._ended:
            return False
        self._check_length(len(self._text) - self._at, "a value")
        try:
            piece = next(self._pieces, None)
        except UnicodeDecodeError as cause:
            raise self._error(f"not text: {cause.reason}", place=self._place, remedy=self._remedy) from cause
        if piece is None:
            self._ended = True
            return False
        self._line += self._text.count("\n", 0, self._at)
        self._text = self._text[self._at :] + piece
        self._at = 0
        return True

    def _refuse(self, what: str, at: int | None = None) -> None:
        at = self._at if at is None else at
        line = self._line + self._text.count("\n", 0, at)
        column = at - self._text.rfind("\n", 0, at)
        if self._ended and not self._text.strip() and line == 1:
            raise self._error("the file is empty", place=self._place, remedy=self._remedy)
        cut = self._ended and (at >= len(self._text.rstrip()) or what.startswith("Unterminated"))
        ended = "; the file ends before its JSON does, it is truncated" if cut else ""
        raise self._error(
            f"not JSON: {what} at line {line}, column {column}{ended}", place=self._place, remedy=self._remedy
        )


def _decode(events: str) -> list[Any] | None:
    """Return events with commas between them; None where they are none, or odd, and are to be read one by one.

    What parses as a list ends where one of its objects does: a cut inside an event leaves a brace or a text open.
    """
    try:
        batch: list[Any] = from_json(f"[{events}]", cache_strings="all")
    except ValueError:
        return None
    return batch


def _pieces(path: str | Path, error: type[InputError], remedy: str) -> Iterator[str]:
    source = standard_input() if str(path) == STANDARD_STREAM else path
    with BoundedFile(source, display_name(path), error, remedy, MOST_TRACE_BYTES) as file:
        decoder = codecs.getincrementaldecoder("utf-8-sig")()
        while piece := file.read(PIECE):
            yield decoder.decode(piece)
        if rest := decoder.decode(b"", final=True):
            yield rest
