"""Bytes of a file after decompression, up to a bound: what every reader of files reads through."""

from __future__ import annotations

import gzip
import io
import os
import stat
import zlib
from types import TracebackType
from typing import Any, BinaryIO

from ddpsim.errors import InputError

MOST_BYTES = 1 << 26
"""Bytes of a document, a machine or a table, after decompression; chosen by hand, a hundred times the largest made."""

MOST_TRACE_BYTES = 1 << 33
"""Bytes of a trace, which is read piece by piece; chosen by hand: hours of a profiler."""

_GZIP = b"\x1f\x8b"
_MOST_RATIO = 50
"""Bytes that a byte of gzip stands for, beyond the first `MOST_BYTES`; traces have 10 to 30, repeated zeros 1,030."""


class BoundedFile:
    """A file open for reading, unzipped where it is gzipped.

    Args:
        path: the file, or a stream of bytes that is open.
        place: names it in errors.
        error: what to raise where it cannot be read, is damaged, or holds more than `most` bytes.
        remedy: what to do then, for the message.
        most: bytes after decompression.
    """

    def __init__(
        self, path: str | os.PathLike[str] | BinaryIO, place: str, error: type[InputError], remedy: str, most: int
    ) -> None:
        self._place, self._error, self._remedy, self._most, self._read = place, error, remedy, most, 0
        try:
            # Closed by __exit__.
            raw: Any = open(path, "rb") if isinstance(path, str | os.PathLike) else io.BufferedReader(path)  # noqa: SIM115
            self.zipped = raw.peek(2)[:2] == _GZIP
        except OSError as cause:
            raise self._refused(f"cannot be read: {cause.strerror}") from cause
        self._raw, self._file = raw, gzip.GzipFile(fileobj=raw) if self.zipped else raw
        if self.zipped:
            self._most = min(most, MOST_BYTES + _MOST_RATIO * _size(raw))

    def __enter__(self) -> BoundedFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._raw.close()

    def read(self, size: int = -1) -> bytes:
        """Return `size` bytes, fewer at the end; all that are left where it is negative.

        Raises:
            InputError: as `error`, with the bound in it where there are more bytes than may be.
        """
        left = self._most - self._read
        try:
            piece: bytes = self._file.read(left + 1 if size < 0 else min(size, left + 1))
        except gzip.BadGzipFile as cause:
            raise self._refused("cannot be read: truncated or damaged gzip") from cause
        except (EOFError, zlib.error) as cause:
            raise self._refused(f"the gzip file is truncated or damaged: {cause}") from cause
        except OSError as cause:
            raise self._refused(f"cannot be read: {cause.strerror}") from cause
        self._read += len(piece)
        if self._read > self._most:
            unzipped = " after decompression" if self.zipped else ""
            raise self._refused(f"more than {self._most:,} bytes{unzipped}, the most that is read")
        return piece

    def _refused(self, what: str) -> InputError:
        return self._error(what, place=self._place, remedy=self._remedy)


def _size(raw: Any) -> int:
    """Return the bytes of an open file; 0 of a pipe, whose size nobody knows."""
    try:
        found = os.fstat(raw.fileno())
    except OSError:
        return 0
    return found.st_size if stat.S_ISREG(found.st_mode) else 0
