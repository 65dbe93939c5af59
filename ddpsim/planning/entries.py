"""What is kept of an answer: its document on one line, and what people are to be told of its prediction."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter

from ddpsim.errors import InputError
from ddpsim.prediction.prediction import Prediction
from ddpsim.workers.journal import JournalEntry


def entry_of(document: Mapping[str, object], noted: Prediction | None, place: str) -> JournalEntry:
    """Return the entry of `document`, with the notes of the prediction that is to be noted.

    Raises:
        InputError: a figure that JSON lacks; `place` names the point.
    """
    try:
        line = json.dumps(document, allow_nan=False)
    except ValueError as error:
        remedy = "take options and figures nearer to those of real machines"
        raise InputError("has a number that is not finite", place=place, remedy=remedy) from error
    return JournalEntry(line, () if noted is None else noted.notes)


def check_entry(kind: Any, entry: JournalEntry) -> None:
    """Refuse an entry whose document is not of the dataclass `kind`, item by item: any file may hold anything.

    Raises:
        ValueError: pydantic's own; whoever reads a journal computes such a point anew.
    """
    _adapter(kind).validate_json(entry.document, strict=True)


@functools.cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)
