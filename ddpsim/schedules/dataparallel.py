"""Torch's `DataParallel` as a schedule: one process, whose first GPU keeps the model, and replicas on all of them.

Each iteration copies the parameters to every GPU, computes forward and backward on each with its share of the batch,
and sums the gradients on the first GPU, where the optimizer updates the only copy that lasts. Nothing is sent under
backward: all copies of the parameters are one node of the graph, whose backward has all gradients as its input.

What the replicas return is gathered on the first GPU, where the loss is, and the loss's gradients go back as they came.

Source: torch `nn/parallel/replicate.py`, `_functions.py` (`Broadcast`, `ReduceAddCoalesced`, `Gather`, `Scatter`),
`comm.py` (1.0 to 2.13).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ddpsim.bucketing import Parameter
from ddpsim.common.operation import Operation
from ddpsim.common.suboptions import some_bytes, value
from ddpsim.schedules.message import Message
from ddpsim.schedules.points import BACKWARD_END, Point, PointKind, points
from ddpsim.schedules.schedule import Schedule, Sharding
from ddpsim.schedules.setup import SchemeInputs

BUFFER_BYTES = 10_485_760
"""Most bytes that are sent at once, but for a tensor that is larger: `buffer_size` of torch's `comm.py`."""


@dataclass(frozen=True, slots=True)
class DataParallelOptions:
    """What `dataparallel` may be asked.

    Attributes:
        output: bytes that the module returns on each GPU; None leaves their way to the first GPU and back out.
    """

    output: int | None = value(some_bytes)


def dataparallel(setup: SchemeInputs, options: DataParallelOptions | None = None) -> Schedule:
    """Parameters broadcast before forward, gradients summed on the first GPU after backward, both 10 MiB at once."""
    # Frozen parameters are replicated as all others, and every replica waits for all of them: `replicate` returns when
    # the last chunk has been copied.
    everything = tuple(range(len(setup.all_parameters)))
    broadcasts = [
        Message(
            id=f"replicate {place}",
            op=Operation.BROADCAST,
            size_bytes=setup.size_bytes(chunk),
            parameters=chunk,
            blocks=points(PointKind.FORWARD, everything),
        )
        for place, chunk in enumerate(_chunks(setup, setup.all_parameters))
    ]
    # One node of autograd has all gradients as its input, so that none is sent before backward ends.
    sums = [
        Message(
            id=f"reduce {place}",
            op=Operation.REDUCE,
            size_bytes=setup.size_bytes(chunk),
            parameters=chunk,
            after=(*points(PointKind.GRADIENT, chunk), BACKWARD_END),
            blocks=points(PointKind.OPTIMIZER, chunk),
        )
        for place, chunk in enumerate(_chunks(setup, setup.parameters))
    ]
    gathered = Sharding(staging_bytes=setup.size_bytes(everything))
    if setup.world_size == 1:
        # A lone GPU is handed the module itself.
        sums = [replace(each, op=Operation.REDUCE, size_bytes=0) for each in sums]
        broadcasts = []
    outputs = [] if options is None or options.output is None else list(_outputs(setup, options.output))
    messages = (*broadcasts, *outputs, *sums)
    return Schedule(scheme="dataparallel", messages=messages, sharding=gathered, one_process=True)


def _outputs(setup: SchemeInputs, size_bytes: int) -> Iterator[Message]:
    """Yield the way of the outputs to the first GPU and of their gradients back, between forward and backward.

    The first GPU's link carries those of all others, as it does a reduce and a broadcast of so many bytes. They begin
    when forward needs its last parameter, or where that is not known when backward begins.
    """
    others = (setup.world_size - 1) * size_bytes
    if not others:
        return
    first, *later = setup.arrivals()
    begins = Point(PointKind.BACKWARD, first)
    waits = points(PointKind.BACKWARD, tuple(later)) or points(PointKind.OPTIMIZER, (first,))
    if setup.use_s:
        begins = Point(PointKind.FORWARD, max(setup.use_s, key=lambda index: setup.use_s[index]))
        waits = points(PointKind.BACKWARD, (first, *later))
    yield Message(id="gather", op=Operation.REDUCE, size_bytes=others, after=(begins,))
    yield Message(id="scatter", op=Operation.BROADCAST, size_bytes=others, after_messages=("gather",), blocks=waits)


def _chunks(setup: SchemeInputs, parameters: Sequence[Parameter]) -> Iterator[tuple[int, ...]]:
    """Yield those of `parameters` that go together, by dtype: a tensor that would not fit begins the next."""
    open_chunks: dict[str, list[int]] = {}
    for index, parameter in enumerate(parameters):
        chunk = open_chunks.setdefault(parameter.dtype, [])
        if chunk and setup.size_bytes(chunk) + parameter.size_bytes > BUFFER_BYTES:
            yield tuple(chunk)
            chunk.clear()
        chunk.append(index)
    for chunk in open_chunks.values():
        if chunk:
            yield tuple(chunk)
