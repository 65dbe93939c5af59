"""Files written whole or not at all, and read up to a bound of bytes, with errors that name the file.

Reading: `read_json`, `read_text` and `read_bytes` go through `BoundedFile`, which unzips; `-` is standard input.
Writing: `write_whole` goes by a temporary file and a rename, so that a reader or a crash never sees half a file.
"""

from __future__ import annotations

import errno
import gzip
import io
import json
import os
import re
import shutil
import stat
import sys
import tempfile
import zlib
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from ddpsim.common import strict as misfits
from ddpsim.common.errors import InputError

MOST_BYTES = 1 << 26
"""Bytes of a document, a machine or a table, after decompression; chosen by hand, a hundred times the largest made."""

MOST_TRACE_BYTES = 1 << 33
"""Bytes of a trace, which is read piece by piece; chosen by hand: hours of a profiler."""

_GZIP = b"\x1f\x8b"
_MOST_RATIO = 50
"""Most bytes out of one byte of gzip, beyond the first `MOST_BYTES`; traces have 10 to 30, repeated zeros 1,030."""


class BoundedFile:
    """A file open for reading, unzipped where it is gzipped.

    Args:
        path: the file, or a stream of bytes that is open.
        place: the file's name in errors.
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
            raise self._make_error(f"cannot be read: {cause.strerror}") from cause
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
            raise self._make_error("cannot be read: truncated or damaged gzip") from cause
        except (EOFError, zlib.error) as cause:
            raise self._make_error(f"the gzip file is truncated or damaged: {cause}") from cause
        except OSError as cause:
            raise self._make_error(f"cannot be read: {cause.strerror}") from cause
        self._read += len(piece)
        if self._read > self._most:
            unzipped = " after decompression" if self.zipped else ""
            raise self._make_error(f"more than {self._most:,} bytes{unzipped}, the most that is read")
        return piece

    def _make_error(self, what: str) -> InputError:
        return self._error(what, place=self._place, remedy=self._remedy)


def _size(raw: Any) -> int:
    """Return the bytes of an open file; 0 of a pipe, whose size is unknown."""
    try:
        status = os.fstat(raw.fileno())
    except OSError:
        return 0
    return status.st_size if stat.S_ISREG(status.st_mode) else 0


STANDARD_STREAM = "-"
"""The name that stands for standard input where a file is read."""


_LINKS = 40
"""Symbolic links that a system follows at most."""

_SHOWN = 50
"""Characters of a file's name in that of its temporary: a name as long as the system takes has room for no more."""


def write_whole(path: str | Path, content: str | bytes) -> None:
    """Write `content` to `path` under a temporary name, then rename; missing folders are made.

    A symbolic link stays, and what it leads to is replaced. Devices, pipes and open descriptors (`/dev/stdout`) are
    written to as they are.

    Raises:
        InputError: where the file cannot be written.
    """
    data = content.encode() if isinstance(content, str) else content
    try:
        if is_regular(path):
            _replace(Path(os.path.realpath(path)), data)
        else:
            descriptor = _descriptor(path)
            with open(path if descriptor is None else descriptor, "wb", closefd=descriptor is None) as file:
                file.write(data)
    except OSError as error:
        raise _make_write_error(path, error) from error


def replace(path: str | Path, content: str | bytes) -> None:
    """Write `content` to `path` under a temporary name, then rename: what stands there, a link too, is replaced.

    For files whose names people do not choose, as `open_regular`.

    Raises:
        InputError: where the file cannot be written.
    """
    try:
        _replace(Path(path), content.encode() if isinstance(content, str) else content)
    except OSError as error:
        raise _make_write_error(path, error) from error


def check_writable(path: str | Path) -> None:
    """Refuse a `path` that `write_whole` cannot write, before the work whose result is to go there.

    Nothing is left behind; a missing folder is not made.

    Raises:
        InputError: where the file could not be written.
    """
    try:
        if Path(path).is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if is_regular(path):
            target = Path(os.path.realpath(path))
            with tempfile.TemporaryFile(dir=find_existing_folder(target.parent)):
                pass
        elif not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise _make_write_error(path, error) from error


def check_writable_folder(path: str | Path) -> None:
    """Refuse a folder in which `write_whole` cannot write, or that cannot be made; nothing is left behind.

    Raises:
        InputError: where no file could be written in it.
    """
    try:
        with tempfile.TemporaryFile(dir=find_existing_folder(Path(path))):
            pass
    except OSError as error:
        raise _make_write_error(path, error) from error


def find_existing_folder(path: Path) -> Path:
    """Return `path`, or the nearest above it that exists."""
    while not os.path.lexists(path) and path != path.parent:
        path = path.parent
    return path


def is_regular(path: str | Path) -> bool:
    """Return whether `path` is, or will be, a regular file that may be replaced by another."""
    try:
        return stat.S_ISREG(os.stat(path).st_mode) and _descriptor(path) is None
    except FileNotFoundError:
        return True


def open_regular(path: str | Path, flags: int) -> int:
    """Return the descriptor of a regular file, made where it is not there; what stands there instead is not followed.

    For files whose names people do not choose, a journal's say: a link or a pipe there was put by somebody else.

    Raises:
        OSError: a symbolic link, a pipe, a device, a folder; and as `os.open`.
    """
    if os.path.islink(path):
        raise OSError(errno.ELOOP, "it is a symbolic link, which is not followed")
    descriptor = os.open(path, flags | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no regular file")
    return descriptor


def _descriptor(path: str | Path) -> int | None:
    """Return the number of this process's open descriptor that `path` names, as `/dev/stdout` does; None for others."""
    for _ in range(_LINKS):
        folder, name = os.path.split(path)
        if name.isdecimal() and os.path.realpath(folder) == os.path.realpath("/dev/fd"):
            return int(name)
        if not os.path.islink(path):
            break
        path = os.path.join(folder, os.readlink(path))
    return None


def _replace(target: Path, data: bytes) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    # Of this process alone, so that two writers do not meet in one; hidden, for `trace_files` and people.
    temporary = target.parent / f".{target.name[:_SHOWN]}.{os.getpid()}.tmp"
    try:
        temporary.unlink(missing_ok=True)
        with open(temporary, "xb") as file:
            file.write(data)
        with suppress(FileNotFoundError):
            shutil.copymode(target, temporary)
        temporary.replace(target)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def _make_write_error(path: str | Path, error: OSError) -> InputError:
    remedy = "name a file in a folder you may write to"
    return InputError(f"cannot be written: {error.strerror}", place=str(path), remedy=remedy)


_LONGEST_NAME = 200
"""Bytes: file systems take 255, and what is written adds an ending or a temporary name's beginning."""


def file_name(text: object, place: str) -> str:
    """Return `text` where it names one file or folder in the folder it stands for, and nothing outside.

    Raises:
        InputError: no text, none at all, `.` or `..`, a separator or a control character in it, or too long.
    """
    remedy = "give a name without a path, e.g. letters, digits, -, _ and ."
    if not isinstance(text, str):
        raise InputError(f"{str(text)[:60]!r} is not a name", place=place, remedy=remedy)
    plain = text not in ("", ".", "..") and text.isprintable() and not {"/", "\\"} & set(text)
    if not plain or len(text.encode(errors="replace")) > _LONGEST_NAME:
        shown = text if len(text) <= 60 else f"{text[:57]}..."
        raise InputError(f"{shown!r} cannot name a file", place=place, remedy=remedy)
    return text


def remove(path: str | Path) -> None:
    """Remove `path` where it is there.

    Raises:
        InputError: where it cannot be removed.
    """
    try:
        Path(path).unlink(missing_ok=True)
    except OSError as error:
        remedy = "name a folder in which you may remove files"
        raise InputError(f"cannot be removed: {error.strerror}", place=str(path), remedy=remedy) from error


def json_text(document: object) -> str:
    """Return `document` as indented JSON, one trailing newline; numbers that JSON lacks (NaN) are an error."""
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def compress(text: str) -> bytes:
    """Return `text` gzipped without a time stamp or name, so that the same text gives the same bytes."""
    return gzip.compress(text.encode(), compresslevel=6, mtime=0)


def encode_text(text: str, path: str | Path) -> bytes:
    """Return `text` as a file of the name `path` holds it: gzipped where the name ends in `.gz`."""
    return compress(text) if str(path).endswith(".gz") else text.encode()


def read_bytes(
    path: str | Path, error: type[InputError], remedy: str, *, most: int = MOST_BYTES, zipped: bool = False
) -> bytes:
    """Return the bytes of `path`, unzipped where they are gzip; `-` is standard input, which can be read once.

    Args:
        path: the file.
        error: what to raise where it is missing, a folder, damaged or larger than `most`.
        remedy: what to do then, for the message.
        most: bytes at most, after decompression.
        zipped: refuse what is no gzip.
    """
    source = standard_input() if str(path) == STANDARD_STREAM else path
    with BoundedFile(source, display_name(path), error, remedy, most) as file:
        if zipped and not file.zipped:
            raise error("cannot be read: truncated or damaged gzip", place=display_name(path), remedy=remedy)
        return file.read()


def display_name(path: str | Path) -> str:
    """Return `path` as errors name it: `standard input` for `-`."""
    return "standard input" if str(path) == STANDARD_STREAM else str(path)


def read_text(path: str | Path, error: type[InputError], remedy: str) -> str:
    """Return the text of `path`; `-` is standard input.

    Args:
        path: the file.
        error: what to raise where it is missing, a folder, or no text.
        remedy: what to do then, for the message.
    """
    raw = read_bytes(path, error, remedy)
    try:
        return io.TextIOWrapper(io.BytesIO(raw), encoding="utf-8").read()
    except UnicodeDecodeError as cause:
        raise error(
            f"not text: {cause.reason} at byte {cause.start}", place=display_name(path), remedy=remedy
        ) from cause


def read_json(
    path: str | Path,
    error: type[InputError],
    remedy: str,
    *,
    finite: bool = True,
    most: int = MOST_BYTES,
    wanted: str = "",
) -> object:
    """Return the JSON document in `path`, unzipped where it is gzipped; `-` is standard input.

    Args:
        path: the file.
        error: what to raise where it is missing, truncated, too large or not JSON.
        remedy: what to do then, for the message.
        finite, wanted: as in `parse_json`.
        most: as in `read_bytes`.
    """
    text = read_bytes(path, error, remedy, most=most, zipped=str(path).endswith(".gz"))
    return parse_json(text, display_name(path), error, remedy, finite=finite, wanted=wanted)


def standard_input() -> BinaryIO:
    """Return standard input, which whoever reads it closes: read twice, it would be empty the second time."""
    if sys.stdin is None or sys.stdin.closed:
        what = "standard input was read already, or is closed"
        raise InputError(what, place=STANDARD_STREAM, remedy="read one file from it, and name the others")
    buffer: BinaryIO | None = getattr(sys.stdin, "buffer", None)
    if buffer is not None:
        return buffer
    with sys.stdin as text:
        return io.BytesIO(text.read().encode())


_KINDS = {
    r'"schema":\s*"ddpsim\.orders/': "an order trace",
    r'"schema":\s*"ddpsim\.([a-z]+)/': "",
    r"(?m)^(node|templates):": "a machine",
    r"(?m)^(memory_bandwidth|peaks):": "a GPU",
    r"(?m)^per_hour:": "a list of prices",
    r"(?m)^runs:": "a campaign",
    r'"traceEvents"': "a profiler's trace",
    r'"iteration_s":': "a prediction",
    r"^\s*(<!--[^>]*>\s*)?<system": "NCCL's XML of a machine",
    r"(?i)^\s*<(!doctype )?html": "a page",
}
"""Kinds of files by a pattern of their beginning; the empty one is named by the schema in it."""
_BEGINNING = 1 << 16
"""Characters of a file by which its kind is known."""


def refuse_other_kind(text: str | bytes, wanted: str, place: str, error: type[InputError], remedy: str) -> None:
    """Raise `error` for the text of a file that is plainly of another kind than `wanted`, `a machine` say."""
    start = text[:_BEGINNING]
    begin = start if isinstance(start, str) else start.decode(errors="replace")
    found = next(((match, kind) for known, kind in _KINDS.items() if (match := re.search(known, begin))), None)
    if found is not None and (kind := found[1] or f"a {found[0][1]}") != wanted:
        raise error(f"is {kind}, not {wanted}", place=place, remedy=remedy)


def parse_json(
    text: str | bytes, place: str, error: type[InputError], remedy: str, *, finite: bool = True, wanted: str = ""
) -> object:
    """Return the JSON document that `text` is.

    Args:
        text: as it was read.
        place: the file's name in errors.
        error: what to raise where it is not JSON, or nested or numbered as no document is.
        remedy: what to do then, for the message.
        finite: refuse NaN and infinities, which no file of this project has; a profiler's may.
        wanted: what it should be, `a plan`; a file of another kind is refused.
    """
    if wanted:
        refuse_other_kind(text, wanted, place, error, remedy)
    try:
        decoded = text if isinstance(text, str) else text.decode(json.detect_encoding(text))
        document: object = misfits.load_json(decoded, place, error, remedy, finite=finite)
    except UnicodeDecodeError as cause:
        raise error(f"not text: {cause.reason} at byte {cause.start}", place=place, remedy=remedy) from cause
    except json.JSONDecodeError as cause:
        what = f"not JSON: {cause.msg} at line {cause.lineno}, column {cause.colno}"
        raise error(what, place=place, remedy=remedy) from cause
    except RecursionError as cause:
        raise error(
            f"its JSON is nested too deep, {sys.getrecursionlimit():,} levels at most are read",
            place=place,
            remedy=remedy,
        ) from cause
    except ValueError as cause:
        raise error(
            f"its JSON has a number with too many digits, {sys.get_int_max_str_digits():,} at most are read",
            place=place,
            remedy=remedy,
        ) from cause
    return document
