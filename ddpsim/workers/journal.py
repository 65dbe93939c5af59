"""The journal beside a file that is being made: the points that are done, a line each as soon as it is."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ddpsim.errors import InputError
from ddpsim.files import BoundedFile, is_regular, open_regular
from ddpsim.units import format_count

ENDING = ".partial"
"""What a journal's name adds to that of the file beside which it lies."""

_MOST_BYTES = 1 << 30
"""Bytes of a journal that are read; chosen by hand, a hundred thousand points."""

_START = re.compile(rb'\{"point": "([0-9a-f]+)", "crc32": (\d{1,10}), ')
_CLOSING = ord("}")
_PARTS = b', "document": '
"""Between notes and document; no text inside JSON's quotes has a bare quote, so that it stands there once."""


class JournalEntry:
    """What is kept of a point; that of a journal is decoded where it is first asked for.

    Args:
        document: its JSON, on one line.
        notes: what people are to be told of it.
    """

    __slots__ = ("_body", "_document", "_notes")

    def __init__(self, document: str, notes: tuple[str, ...] = ()) -> None:
        self._document, self._notes = document, notes
        self._body: memoryview | None = None

    @classmethod
    def of(cls, body: memoryview) -> JournalEntry:
        """Return the entry of the rest of a line, behind its sum."""
        entry = cls("")
        entry._body = body
        return entry

    @property
    def document(self) -> str:
        """Its JSON, on one line."""
        self._decode()
        return self._document

    @property
    def notes(self) -> tuple[str, ...]:
        """What people are to be told of it."""
        self._decode()
        return self._notes

    def __eq__(self, other: object) -> bool:
        return isinstance(other, JournalEntry) and (self.document, self.notes) == (other.document, other.notes)

    def __repr__(self) -> str:
        return f"<Entry: {self.document[:40]!r}, {format_count(len(self.notes), 'note')}>"

    def _decode(self) -> None:
        if self._body is not None:
            notes, _, document = bytes(self._body).partition(_PARTS)
            self._document = document.decode()
            self._notes = tuple(json.loads(notes.removeprefix(b'"notes": ')))
            self._body = None


class Journal:
    """Entries by key, read when it is opened and appended one by one; a line that is torn or damaged does not count.

    Args:
        path: of the journal itself.

    Raises:
        InputError: where it cannot be read or written, or another process writes it.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.entries = path, dict[str, JournalEntry]()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open_regular(path, os.O_RDWR | os.O_APPEND)
            self._lock()
            content = self._content()
        except OSError as error:
            raise self._make_write_error(error) from error
        self.entries |= _read(content)
        self._torn = not content.endswith(b"\n") and content != b""

    def add(self, key: str, entry: JournalEntry) -> None:
        """Append an entry, which is on its way to the disk when this returns."""
        body = f'"notes": {json.dumps(entry.notes)}, "document": {entry.document}'.encode()
        start = "\n" if self._torn else ""
        line = f'{start}{{"point": "{key}", "crc32": {zlib.crc32(body)}, '.encode() + body + b"}\n"
        try:
            while line:
                self._torn = True
                line = line[os.write(self._file, line) :]
        except OSError as error:
            raise self._make_write_error(error) from error
        self._torn = False
        self.entries[key] = entry

    def close(self, *, done: bool) -> None:
        """Close the file, and remove it where all is `done` or nothing is in it."""
        if done or not self.entries:
            self.path.unlink(missing_ok=True)
        os.close(self._file)

    def _content(self) -> bytes:
        """Return what is in the file that was opened, whatever stands at its path by now."""
        raw = os.fdopen(os.dup(self._file), "rb", buffering=0)
        with BoundedFile(raw, str(self.path), InputError, "name another file, or remove this one", _MOST_BYTES) as file:
            return file.read()

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._file)
            what, remedy = "another process is writing it", "let that one end, or name another file"
            raise InputError(what, place=str(self.path), remedy=remedy) from error
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP):
                raise

    def _make_write_error(self, error: OSError) -> InputError:
        remedy = "name a file in a folder you may write to, with room for it"
        return InputError(f"cannot be written: {error.strerror}", place=str(self.path), remedy=remedy)


@contextmanager
def journal_beside(path: str | Path | None) -> Iterator[Journal | None]:
    """Yield the journal beside a file; None without a file, or for a device, a pipe or standard output.

    It is removed where the block ends well, and stays where it does not.
    """
    if path is None or str(path) == "-" or not is_regular(path):
        yield None
        return
    journal = Journal(Path(os.path.realpath(path) + ENDING))
    try:
        yield journal
    except BaseException:
        journal.close(done=False)
        raise
    journal.close(done=True)


def _read(content: bytes) -> Iterator[tuple[str, JournalEntry]]:
    whole, start = memoryview(content), 0
    while start < len(content):
        found_end = content.find(b"\n", start)
        end = len(content) if found_end < 0 else found_end
        found = _START.match(content, start, end)
        if found is not None and content[end - 1] == _CLOSING:
            body = whole[found.end() : end - 1]
            if zlib.crc32(body) == int(found[2]):
                yield found[1].decode(), JournalEntry.of(body)
        start = end + 1
