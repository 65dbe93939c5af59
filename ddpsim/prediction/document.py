"""The `predict` document as a file: read, and checked for what validation takes from it."""

from __future__ import annotations

from pathlib import Path

from ddpsim.errors import InputError
from ddpsim.files import read_json
from ddpsim.trace.metrics import PARTS

BUCKET_TIMES = ("ready_s", "launched_s", "started_s", "finished_s")
_REMEDY = "give a file made with `ddpsim predict --json`"
_NUMBERS = ("iteration_s", "local_s", *PARTS)
_LARGEST = 1e18
"""No time in seconds or size in bytes is larger."""


def load_prediction(path: str | Path) -> dict[str, object]:
    """Return the predict document in `path`.

    Raises:
        InputError: not JSON, or a key missing or of the wrong kind.
    """
    return check_prediction(read_json(path, InputError, _REMEDY), str(path))


def check_prediction(document: object, place: str) -> dict[str, object]:
    """Return `document` where it is a predict document.

    Raises:
        InputError: a key missing or of the wrong kind; `place` and the key are named.
    """
    if not isinstance(document, dict):
        raise InputError("not a prediction", place=place, remedy=_REMEDY)
    for key in _NUMBERS:
        if not _is_number(document.get(key)):
            raise InputError(f"{document.get(key)!r} is not a time in seconds", place=f"{place}: {key}", remedy=_REMEDY)
    if not isinstance(document.get("world_size"), int) or not isinstance(document.get("buckets"), list):
        raise InputError("world_size or buckets is missing", place=place, remedy=_REMEDY)
    for number, bucket in enumerate(document["buckets"]):
        _check_bucket(bucket, f"{place}: buckets.{number}")
    return document


def _check_bucket(bucket: object, place: str) -> None:
    if not isinstance(bucket, dict):
        raise InputError(f"{bucket!r} is not a bucket", place=place, remedy=_REMEDY)
    optional = ("wire_s",) if bucket.get("wire_s") is not None else ()
    for key in ("index", "size_bytes", *BUCKET_TIMES, *optional):
        if not _is_number(bucket.get(key)):
            raise InputError(f"{bucket.get(key)!r} is not a number", place=f"{place}.{key}", remedy=_REMEDY)


def _is_number(value: object) -> bool:
    """Whether `value` is a number of seconds or bytes that arithmetic keeps finite: no NaN, no infinity."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _LARGEST
