"""Torch's `DataParallel` as a schedule: one process, whose first GPU keeps the model, and replicas on all of them.

Each iteration copies the parameters to every GPU, computes forward and backward on each with its share of the batch,
and sums the gradients on the first GPU, where the optimizer updates the only copy that lasts. Nothing is sent under
backward: all copies of the parameters are one node of the graph, whose backward has all gradients as its input.

Source: torch `nn/parallel/replicate.py`, `_functions.py` (`Broadcast`, `ReduceAddCoalesced`), `comm.py` (1.0 to 2.13).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ddpsim.operations import Operation
from ddpsim.schedules.message import Message
from ddpsim.schedules.points import BACKWARD_END, PointKind, points
from ddpsim.schedules.schedule import Schedule, Sharding
from ddpsim.schedules.setup import SchemeInputs

BUFFER_BYTES = 10_485_760
"""Most bytes that are sent at once, but for a tensor that is larger: `buffer_size` of torch's `comm.py`."""


def dataparallel(setup: SchemeInputs) -> Schedule:
    """Parameters broadcast before forward, gradients summed on the first GPU after backward, both 10 MiB at once."""
    everything = tuple(range(len(setup.parameters)))
    chunks = list(_chunks(setup))
    broadcasts = [
        Message(
            id=f"replicate {place}",
            op=Operation.BROADCAST,
            size_bytes=setup.size_bytes(chunk),
            parameters=chunk,
            blocks=points(PointKind.FORWARD, everything),
        )
        for place, chunk in enumerate(chunks)
    ]
    sums = [
        Message(
            id=f"reduce {place}",
            op=Operation.REDUCE,
            size_bytes=setup.size_bytes(chunk),
            parameters=chunk,
            after=(*points(PointKind.GRADIENT, chunk), BACKWARD_END),
            blocks=points(PointKind.OPTIMIZER, chunk),
        )
        for place, chunk in enumerate(chunks)
    ]
    gathered = Sharding(staging_bytes=setup.size_bytes(everything))
    if setup.world_size == 1:
        # A lone GPU is handed the module itself.
        sums = [replace(each, op=Operation.REDUCE, size_bytes=0) for each in sums]
        broadcasts = []
    return Schedule(scheme="dataparallel", messages=(*broadcasts, *sums), sharding=gathered, one_process=True)


def _chunks(setup: SchemeInputs) -> Iterator[tuple[int, ...]]:
    """Yield the parameters that go together, by dtype: a tensor that would not fit begins the next."""
    open_chunks: dict[str, list[int]] = {}
    for index, parameter in enumerate(setup.parameters):
        chunk = open_chunks.setdefault(parameter.dtype, [])
        if chunk and setup.size_bytes(chunk) + parameter.size_bytes > BUFFER_BYTES:
            yield tuple(chunk)
            chunk.clear()
        chunk.append(index)
    for chunk in open_chunks.values():
        if chunk:
            yield tuple(chunk)
