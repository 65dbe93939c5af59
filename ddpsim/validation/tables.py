"""A validation as tables: the step, trivial predictors, terms and buckets, predicted beside measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ddpsim.tables import Column, ResultTable
from ddpsim.tables.cells import mib, ms, percent

if TYPE_CHECKING:
    from ddpsim.validation.result import BucketError, ComparedQuantity, ErrorTerm, Validation

COMPARED, FIRST, TRIVIAL, TERMS, BUCKETS = (
    "Predicted and measured",
    "The first iterations",
    "Trivial predictors",
    "Terms",
    "Errors of buckets",
)
"""Titles, in order."""


def validation_tables(found: Validation) -> dict[str, ResultTable]:
    """Return the tables by their titles; the first iterations and buckets only where both sides have them."""
    alone = "measured with the run" if found.local_source == "run" else "as predicted"
    pairs = {"step": found.iterations, f"overhead over one process ({alone})": found.overhead}
    tables = {COMPARED: _compared("", pairs)}
    if found.first:
        tables[FIRST] = _compared("first", found.first)
    tables |= {TRIVIAL: _trivial(found), TERMS: ResultTable.of(_TERMS, found.terms)}
    if found.buckets:
        tables[BUCKETS] = _buckets(found)
    return tables


def _compared(heading: str, pairs: Mapping[str, ComparedQuantity]) -> ResultTable:
    columns: tuple[Column[tuple[str, ComparedQuantity]], ...] = (
        Column(heading, lambda row: row[0], words=True),
        Column("measured ms", lambda row: ms(row[1].measured_s)),
        Column("predicted ms", lambda row: ms(row[1].predicted_s)),
        Column("error", lambda row: percent(row[1].error, signed=True)),
    )
    return ResultTable.of(columns, list(pairs.items()))


def _trivial(found: Validation) -> ResultTable:
    columns: tuple[Column[tuple[str, Mapping[str, float | None]]], ...] = (
        Column("trivial predictor", lambda row: row[0].replace("_", " "), words=True),
        Column("predicted ms", lambda row: ms(row[1]["predicted_s"])),
        Column("step error", lambda row: percent(row[1]["error"], signed=True)),
        Column("overhead error", lambda row: percent(row[1]["overhead_error"], signed=True)),
    )
    return ResultTable.of(columns, list(found.baselines.items()))


_TERMS: tuple[Column[ErrorTerm], ...] = (
    Column("term", lambda term: term.name.replace("_", " "), words=True),
    Column("measured ms", lambda term: ms(term.measured_s)),
    Column("predicted ms", lambda term: ms(term.predicted_s)),
    Column("of the step", lambda term: percent(term.share_of_step, signed=True)),
)


def _buckets(found: Validation) -> ResultTable:
    def error(name: str) -> Column[BucketError]:
        heading = f"{name.removesuffix('_s')} error"
        return Column(heading, lambda bucket: percent(bucket.errors[name], signed=True))

    columns: list[Column[BucketError]] = [
        Column("bucket", lambda bucket: bucket.index, words=True),
        Column("MiB", lambda bucket: mib(bucket.size_bytes)),
        *(error(name) for name in found.buckets[0].errors),
    ]
    return ResultTable.of(columns, found.buckets)
