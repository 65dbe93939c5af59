"""What is kept of an answer, one line of JSON: written and read by the dataclass that says what it holds."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any, TypeVar

from pydantic import TypeAdapter

from ddpsim.errors import InputError
from ddpsim.prediction.prediction import Prediction
from ddpsim.workers.journal import JournalEntry

Kept = TypeVar("Kept")


def entry_of(kept: Any, noted: Prediction | None, place: str) -> JournalEntry:
    """Return the entry of a dataclass, or of JSON values, with the notes of the prediction that is to be noted.

    Raises:
        InputError: a figure that JSON lacks; `place` names the point.
    """
    kind: Callable[..., Any] = type(kept)
    try:
        line = json.dumps(_adapter(kind).dump_python(kept), allow_nan=False)
    except ValueError as error:
        remedy = "take options and figures nearer to those of real machines"
        raise InputError("has a number that is not finite", place=place, remedy=remedy) from error
    return JournalEntry(line, () if noted is None else noted.notes)


def read_entry(kind: Callable[..., Kept], entry: JournalEntry) -> Kept:
    """Return what was kept, item by item of its kind: any file may hold anything.

    Raises:
        ValueError: pydantic's own; whoever reads a journal computes such a point anew.
        InputError: values that contradict each other.
    """
    found: Kept = _adapter(kind).validate_json(entry.document, strict=True)
    return found


@functools.cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)
