"""Files written whole or not at all, and read with errors that name them."""

from __future__ import annotations

import gzip
import json
import os
import zlib
from contextlib import suppress
from pathlib import Path

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


def read_json(path: str | Path, error: type[InputError], remedy: str) -> object:
    """Return the JSON document in `path`, unzipped where the name ends in `.gz`.

    Args:
        path: the file.
        error: what to raise where it is missing, truncated or not JSON.
        remedy: what to do then, for the message.
    """
    try:
        raw = Path(path).read_bytes()
        text = gzip.decompress(raw) if str(path).endswith(".gz") else raw
    except OSError as cause:
        what = "truncated or damaged gzip" if isinstance(cause, gzip.BadGzipFile) else cause.strerror or "truncated"
        raise error(f"cannot be read: {what}", place=str(path), remedy=remedy) from cause
    except (EOFError, zlib.error) as cause:
        raise error(f"the gzip file is truncated: {cause}", place=str(path), remedy=remedy) from cause
    return parse_json(text, str(path), error, remedy)


def parse_json(text: str | bytes, place: str, error: type[InputError], remedy: str) -> object:
    """Return the JSON document that `text` is.

    Args:
        text: as it was read.
        place: names it in errors.
        error: what to raise where it is not JSON, or nested or numbered as no document is.
        remedy: what to do then, for the message.
    """
    try:
        document: object = json.loads(text)
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
