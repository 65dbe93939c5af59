"""Files written whole or not at all, and read with errors that name them."""

from __future__ import annotations

import gzip
import json
import os
import zlib
from contextlib import suppress
from pathlib import Path

from ddpsim import misfits
from ddpsim.errors import InputError


def write_whole(path: str | Path, content: str | bytes) -> None:
    """Write `content` to `path` under a temporary name, then rename; missing folders are made.

    Raises:
        InputError: where the file cannot be written.
    """
    target = Path(path)
    temporary = target.parent / f".{target.name}.{os.getpid()}.tmp"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)
        temporary.replace(target)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        remedy = "name a file in a folder you may write to"
        raise InputError(f"cannot be written: {error.strerror}", place=str(path), remedy=remedy) from error


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


def read_text(path: str | Path, error: type[InputError], remedy: str) -> str:
    """Return the text of `path`.

    Args:
        path: the file.
        error: what to raise where it is missing, a folder, or no text.
        remedy: what to do then, for the message.
    """
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as cause:
        raise error(f"cannot be read: {cause.strerror}", place=str(path), remedy=remedy) from cause
    except UnicodeDecodeError as cause:
        raise error(f"not text: {cause.reason} at byte {cause.start}", place=str(path), remedy=remedy) from cause


def read_json(path: str | Path, error: type[InputError], remedy: str, *, finite: bool = True) -> object:
    """Return the JSON document in `path`, unzipped where the name ends in `.gz`.

    Args:
        path: the file.
        error: what to raise where it is missing, truncated or not JSON.
        remedy: what to do then, for the message.
        finite: as in `parse_json`.
    """
    try:
        raw = Path(path).read_bytes()
        text = gzip.decompress(raw) if str(path).endswith(".gz") else raw
    except OSError as cause:
        what = "truncated or damaged gzip" if isinstance(cause, gzip.BadGzipFile) else cause.strerror or "truncated"
        raise error(f"cannot be read: {what}", place=str(path), remedy=remedy) from cause
    except (EOFError, zlib.error) as cause:
        raise error(f"the gzip file is truncated: {cause}", place=str(path), remedy=remedy) from cause
    return parse_json(text, str(path), error, remedy, finite=finite)


def parse_json(text: str | bytes, place: str, error: type[InputError], remedy: str, *, finite: bool = True) -> object:
    """Return the JSON document that `text` is.

    Args:
        text: as it was read.
        place: names it in errors.
        error: what to raise where it is not JSON, or nested or numbered as no document is.
        remedy: what to do then, for the message.
        finite: refuse NaN and infinities, which no file of this project has; a profiler's may.
    """
    try:
        decoded = text if isinstance(text, str) else text.decode(json.detect_encoding(text))
        document: object = misfits.load_json(decoded, place, error, remedy, finite=finite)
    except UnicodeDecodeError as cause:
        raise error(f"not text: {cause.reason} at byte {cause.start}", place=place, remedy=remedy) from cause
    except json.JSONDecodeError as cause:
        what = f"not JSON: {cause.msg} at line {cause.lineno}, column {cause.colno}"
        raise error(what, place=place, remedy=remedy) from cause
    except RecursionError as cause:
        raise error("its JSON is nested too deep", place=place, remedy=remedy) from cause
    except ValueError as cause:
        raise error("its JSON has a number with too many digits", place=place, remedy=remedy) from cause
    return document
