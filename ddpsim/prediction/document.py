"""The `predict` document as a file: read, and checked for what validation takes from it."""

from __future__ import annotations

from pathlib import Path

from ddpsim.errors import InputError
from ddpsim.files import named, read_json
from ddpsim.trace.metrics import PARTS

BUCKET_TIMES = ("ready_s", "launched_s", "started_s", "finished_s")
_REMEDY = "give a file made with `ddpsim predict --json`"
_NUMBERS = ("iteration_s", "local_s", *PARTS)
_BAND = ("iteration_low_s", "iteration_high_s")
_ROUNDING_S = 1e-9
_LARGEST = 1e18
"""No time in seconds or size in bytes is larger."""


def load_prediction(path: str | Path) -> dict[str, object]:
    """Return the predict document in `path`.

    Raises:
        InputError: not JSON, or a key missing or of the wrong kind.
    """
    return check_prediction(read_json(path, InputError, _REMEDY), named(path))


def check_prediction(document: object, place: str) -> dict[str, object]:
    """Return `document` where it is a predict document.

    Raises:
        InputError: a key missing or of the wrong kind, a negative time (the host may launch a bucket before the
            device's forward, and DDP's overhead is a remainder: these two alone may be); `place` and the key are named.
    """
    if not isinstance(document, dict):
        raise InputError("not a prediction", place=place, remedy=_REMEDY)
    bands = [key for key in _BAND if key in document]
    for key in (*_NUMBERS, *bands):
        signed = key == "ddp_overhead_s"
        if not (_is_number(document.get(key)) if signed else _is_amount(document.get(key))):
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
        value = bucket.get(key)
        if not (_is_number(value) if key == "launched_s" else _is_amount(value)):
            raise InputError(f"{value!r} is not a number from 0 on", place=f"{place}.{key}", remedy=_REMEDY)
    begun, ended = bucket["started_s"], bucket["finished_s"]
    if ended < begun - _ROUNDING_S:
        what = f"its collective ends at {ended!r} s, before it starts at {begun!r} s"
        raise InputError(what, place=f"{place}.finished_s", remedy=_REMEDY)


def _is_amount(value: object) -> bool:
    """Whether `value` is a number of seconds or bytes from 0 on, but for rounding."""
    return _is_number(value) and value >= -_ROUNDING_S  # type: ignore[operator]


def _is_number(value: object) -> bool:
    """Whether `value` is a number of seconds or bytes that arithmetic keeps finite: no NaN, no infinity."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _LARGEST
