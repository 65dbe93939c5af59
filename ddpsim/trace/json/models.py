"""What a trace's files hold beside events, as pydantic models: `run.json`, the head of a rank file, iterations."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, model_validator

from ddpsim.documents import MOST_ITEMS, Document, document_error, read_as
from ddpsim.errors import InputError
from ddpsim.operations import Operation
from ddpsim.trace.records import BucketTimes, CollectiveTimes, Gradient, Iteration, PartTimes

_MOST = 1 << 63
"""No time, count or size is as large."""

Whole = Annotated[int, Field(gt=-_MOST, lt=_MOST)]
Parameter = Annotated[int, Field(ge=0, lt=MOST_ITEMS)]
"""A registration index."""
Seconds = Annotated[float, Field(gt=-_MOST, lt=_MOST)]


class RunFile(Document):
    """`run.json`: how the run came about."""

    provenance: dict[str, Any]


class DistributedInfo(Document):
    """Whose file it is, as Kineto says it."""

    rank: Whole
    world_size: Whole
    backend: str


class RankFile(Document):
    """A rank's file; its events are of many kinds, some of them other tools', and are read one by one."""

    distributedInfo: DistributedInfo  # noqa: N815
    traceEvents: list[Any]  # noqa: N815


class BucketRecord(Document):
    """`BucketTimes` as it was written."""

    index: Whole
    size_bytes: Whole
    parameters: list[Parameter]
    ready_s: Seconds
    launched_s: Seconds
    started_s: Seconds
    wire_s: Seconds | None
    finished_s: Seconds
    written_s: Seconds
    operation: Annotated[Operation, Field(strict=False)] = Operation.ALLREDUCE
    device: Annotated[int, Field(ge=0, lt=MOST_ITEMS)] = 0

    def times(self) -> BucketTimes:
        """Return the bucket."""
        return BucketTimes(**{**dict(self), "parameters": tuple(self.parameters)})


class LayerRecord(Document):
    """A message of a layer as it was written: a collective that is no bucket."""

    operation: Annotated[Operation, Field(strict=False)]
    size_bytes: Whole
    started_s: Seconds
    finished_s: Seconds


class PartRecord(Document):
    """`PartTimes` as it was written."""

    device: Annotated[int, Field(ge=0, lt=MOST_ITEMS)]
    name: str
    started_s: Seconds
    finished_s: Seconds


class IterationRecord(Document):
    """An `Iteration` as it was written; gradients are `[parameter, hook_s, ready_s]`."""

    rank: Whole
    index: Whole
    start_s: Seconds
    end_s: Seconds
    forward_s: Seconds
    backward_compute_s: Seconds
    exposed_comm_s: Seconds
    buffer_broadcast_s: Seconds
    optimizer_s: Seconds
    held_up_s: Seconds = 0.0
    input_s: Seconds | None = None
    synced: bool = True
    stepped: bool | None = None
    buckets: list[BucketRecord]
    gradients: list[Annotated[tuple[Parameter, Seconds, Seconds], Field(strict=False)]]
    layer_comm_s: Seconds | None = None
    layers: list[LayerRecord] = Field(default_factory=list)
    parts: list[PartRecord] = Field(default_factory=list)

    @model_validator(mode="after")
    def _check_order(self) -> IterationRecord:
        if self.end_s < self.start_s:
            raise document_error(f"it ends at {self.end_s!r} s, before it starts at {self.start_s!r} s", "end_s")
        return self


def iteration_from(record: object, place: str, error: type[InputError], remedy: str) -> Iteration:
    """Return the iteration that `iteration_document` made a record of.

    Raises:
        InputError: as `error`, at `place`: a key missing or of the wrong kind, an iteration that ends before it starts.
    """
    read = read_as(IterationRecord, record, place, error, remedy)
    buckets = tuple(bucket.times() for bucket in read.buckets)
    gradients = tuple(Gradient(parameter=p, hook_s=hook, ready_s=ready) for p, hook, ready in read.gradients)
    others = tuple(
        CollectiveTimes.of_layer(index, each.operation, each.size_bytes, each.started_s, each.finished_s)
        for index, each in enumerate(read.layers, len(buckets))
    )
    parts = tuple(PartTimes(**dict(each)) for each in read.parts)
    stepped = read.synced if read.stepped is None else read.stepped
    taken = {name: value for name, value in read if name != "layers"}
    found = {"stepped": stepped, "buckets": buckets, "gradients": gradients, "others": others, "parts": parts}
    return Iteration(**{**taken, **found})
