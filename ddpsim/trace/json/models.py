"""What a trace's files hold besides events: `run.json`, the head of a rank's file, and an iteration's record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ddpsim.common.documents.records import read_as
from ddpsim.common.errors import InputError
from ddpsim.common.operation import Operation
from ddpsim.trace.records import CollectiveTimes, Iteration, Moment, Whole


@dataclass(frozen=True, slots=True)
class RunFile:
    """`run.json`: how the run came about."""

    provenance: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class DistributedInfo:
    """Whose file it is, as Kineto says it."""

    rank: Whole
    world_size: Whole
    backend: str


@dataclass(frozen=True, slots=True)
class RankFile:
    """A rank's file; its events are of many kinds, some of them other tools', and are read one by one."""

    distributedInfo: DistributedInfo  # noqa: N815
    traceEvents: tuple[Any, ...]  # noqa: N815


@dataclass(frozen=True, slots=True)
class LayerRecord:
    """A message of a layer as it is written: of a collective that is no bucket, what its spans do not say."""

    operation: Operation
    size_bytes: Whole
    started_s: Moment
    finished_s: Moment


@dataclass(frozen=True, slots=True)
class _OfOlder:
    """Of an iteration's record, what older files lack or write otherwise."""

    stepped: bool | None = None
    layers: tuple[LayerRecord, ...] = ()


def iteration_from(record: object, place: str, error: type[InputError], remedy: str) -> Iteration:
    """Return the iteration that `iteration_document` made a record of.

    Raises:
        InputError: as `error`, at `place`: a key missing or of the wrong kind, an iteration that ends before it starts.
    """
    read = read_as(Iteration, record, place, error, remedy)
    if read.end_s < read.start_s:
        what = f"it ends at {read.end_s!r} s, before it starts at {read.start_s!r} s"
        raise error(f"end_s: {what}", place=place, remedy=remedy)
    older = read_as(_OfOlder, record, place, error, remedy)
    others = tuple(
        CollectiveTimes.of_layer(index, each.operation, each.size_bytes, each.started_s, each.finished_s)
        for index, each in enumerate(older.layers, len(read.buckets))
    )
    # Files that do not say whether the optimizer stepped are of schemes in which it does where gradients are summed.
    return replace(read, others=others, stepped=read.synced if older.stepped is None else read.stepped)
