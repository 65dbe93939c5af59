"""Schemes that put gradients together as they come: Horovod's fusion buffer and cycle, TensorFlow's packs.

Sources:

- Horovod (Sergeev and Del Balso, 2018), `docs/tensor-fusion.rst` and `horovod/common/{operations,controller}.cc`: a
  thread wakes once a cycle, takes the tensors that are ready then, and reduces them in buffers of at most so many
  bytes, of one type each. 128 MiB and 1 ms are the defaults since 0.21.0; 64 MiB and 5 ms before. Before each cycle's
  work, whether anything is ready or not, ranks agree on what is ready on all: `response_cache.cc` and
  `{mpi,gloo}_controller.cc` combine a bit a known tensor and three of state, in 64-bit words, by an allreduce of hosts.
- TensorFlow's MultiWorkerMirroredStrategy: `tensorflow/python/distribute/{cross_device_ops,cross_device_utils}.py`,
  `group_by_size`: gradients, the last parameter's first, are put together in packs that end with the tensor by which
  they pass the bytes of one; 0 bytes, the default, is one pack.

`gradientflow` is the schedule of GradientFlow (`chunks.py`): norms of a bucket's chunks, then the largest chunks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ddpsim.common.errors import PlanError
from ddpsim.common.operation import Operation
from ddpsim.common.suboptions import some_bytes, value
from ddpsim.common.units import parse_time
from ddpsim.schedules.chunks import MOMENTUM_PASSES, NORM_BYTES, SUMMING_PASSES, Chunks, GradientFlow
from ddpsim.schedules.message import Message
from ddpsim.schedules.points import BACKWARD_END, PointKind, points
from ddpsim.schedules.schedule import Schedule, Sharding
from ddpsim.schedules.setup import SchemeInputs, sums


def gradientflow(setup: SchemeInputs, options: GradientFlow) -> Schedule:
    """Sum the norms of each bucket's chunks when its gradients are there, then its chosen chunks; backward's end waits.

    Raises:
        PlanError: micro-batches that send each their gradients, which are left over from one another.
    """
    setup.check_sums_are_steps("gradientflow", "what one sum leaves out the next would send")
    # Norms have a stream of their own: they are small, and behind another bucket's values they would hold up their own.
    norms, values = [], []
    passes = SUMMING_PASSES + (MOMENTUM_PASSES if options.momentum else 0.0)
    for place, bucket in enumerate(setup.buckets):
        size, elements = setup.size_bytes(bucket), sum(setup.parameters[index].numel for index in bucket)
        chosen = options.count_chosen(elements)
        norms.append(
            Message(
                id=f"norms {place}",
                op=Operation.ALLREDUCE,
                size_bytes=NORM_BYTES * options.chunks(elements),
                parameters=bucket,
                after=points(PointKind.GRADIENT, bucket),
                stream="norms",
                every=setup.every,
                chunks=Chunks(options.chunk, chosen, "norms", options.momentum),
                launch_passes=passes,
            )
        )
        item = size // elements if elements else 0
        values.append(
            Message(
                id=f"chunks {place}",
                op=Operation.ALLREDUCE,
                size_bytes=min(chosen * options.chunk, elements) * item,
                parameters=bucket,
                after=points(PointKind.GRADIENT, bucket),
                after_messages=(norms[-1].id,),
                blocks=(BACKWARD_END,),
                every=setup.every,
                chunks=Chunks(options.chunk, chosen, "values", options.momentum),
                passes=1.0,
            )
        )
    whole = setup.size_bytes(range(len(setup.parameters)))
    kept_bytes = 2 * whole if options.momentum else whole
    return Schedule(scheme="gradientflow", messages=(*norms, *values), sharding=Sharding(kept_bytes=kept_bytes))


CONTROLLERS = ("mpi", "gloo")
"""Horovod's controllers (`HOROVOD_CONTROLLER`): the libraries by which hosts agree."""

STATE_BITS, WORD_BITS = 3, 64
"""Bits of an agreement beside one for each tensor, and of the words in which they go: `CacheCoordinator::sync`."""


def agreement_bytes(tensors: int) -> int:
    """Return the bytes of the allreduce by which ranks agree which of so many known tensors are ready.

    >>> agreement_bytes(61), agreement_bytes(62)
    (8, 16)
    """
    return math.ceil((tensors + STATE_BITS) / WORD_BITS) * WORD_BITS // 8


@dataclass(frozen=True, slots=True)
class Horovod:
    """What `horovod` may be asked.

    Attributes:
        fusion: bytes of its buffer.
        cycle: seconds from one look for ready gradients to the next.
        agree: by which of Horovod's controllers ranks agree in each cycle on what is ready, or the seconds that takes;
            None leaves it out, as this project's executor does, whose ranks know the schedule.
    """

    fusion: int = value(some_bytes, 128 << 20)
    cycle: float = value(parse_time, 1e-3)
    agree: str | float | None = value(lambda text, place: text if text in CONTROLLERS else parse_time(text, place))

    def agreement_s(self, setup: SchemeInputs) -> float:
        """Return what ranks take to agree in each cycle.

        Raises:
            PlanError: a controller whose time nobody knows, as where the schedule is carried out.
        """
        if not isinstance(self.agree, str):
            return self.agree or 0.0
        if setup.control_s is None:
            what = f"ranks that know the schedule do not agree on it by {self.agree}"
            raise PlanError(what, place="scheme 'horovod'", remedy="leave `agree` out, or predict with it")
        return setup.control_s(self.agree, agreement_bytes(len(setup.parameters)))


@dataclass(frozen=True, slots=True)
class MultiWorkerOptions:
    """What `multiworker-mirrored` may be asked.

    Attributes:
        pack: bytes that a pack is not much larger than; None is one pack of all.
    """

    pack: int | None = value(some_bytes)


def horovod(setup: SchemeInputs, options: Horovod) -> Schedule:
    """Reduce what is ready at each cycle in fusion buffers; the optimizer waits for all.

    Cycles are counted from the start of backward. Where operations block the thread, as they do over gloo, the next
    cycle begins when those of the one before have ended, and takes what came meanwhile. Where nobody knows when
    gradients come, buffers are filled in their order and sent at once. Where ranks agree, a cycle's buffers leave when
    they have, and no cycle is shorter.

    Raises:
        PlanError: as `Horovod.agreement_s`.
    """
    blocks, cycles = points(PointKind.OPTIMIZER, tuple(range(len(setup.parameters)))), _cycles(setup, options)
    alone = setup.world_size == 1  # no hooks are registered then: `horovod/torch/optimizer.py`
    messages = [
        replace(message, blocks=blocks, delay_s=0.0 if alone else delay_s)
        for message, (_, delay_s) in zip(sums(setup, (group for group, _ in cycles), "fused"), cycles, strict=True)
    ]
    return Schedule(scheme="horovod", messages=tuple(messages))


def multiworker_mirrored(setup: SchemeInputs, options: MultiWorkerOptions) -> Schedule:
    """Reduce packs of gradients, each when its last is there; the optimizer waits for all."""
    order = tuple(range(len(setup.parameters)))[::-1]
    packs = [order] if options.pack is None else pack_gradients(setup, order, options.pack)
    groups = (group for pack in packs for group in _group_by_dtype(setup, pack))
    blocks = points(PointKind.OPTIMIZER, order[::-1])
    messages = [replace(message, blocks=blocks) for message in sums(setup, groups, "pack")]
    return Schedule(scheme="multiworker-mirrored", messages=tuple(messages))


def pack_gradients(setup: SchemeInputs, order: Sequence[int], pack_bytes: int) -> list[tuple[int, ...]]:
    """Return `order` in packs, each of which ends with the parameter that makes it larger than `pack_bytes`."""
    packs: list[list[int]] = []
    size = 0
    for index in order:
        if not packs or size > pack_bytes:
            packs.append([])
            size = 0
        packs[-1].append(index)
        size += setup.parameters[index].size_bytes
    return [tuple(pack) for pack in packs]


def fuse_gradients(setup: SchemeInputs, ready: Sequence[int], fusion_bytes: int) -> list[tuple[int, ...]]:
    """Return gradients that are ready in buffers: in their order, each of one type and of what fits.

    One that is larger than a buffer goes alone.
    """
    buffers: list[list[int]] = []
    for group in _group_by_dtype(setup, ready):
        size = fusion_bytes + 1
        for index in group:
            if size + setup.parameters[index].size_bytes > fusion_bytes:
                buffers.append([])
                size = 0
            buffers[-1].append(index)
            size += setup.parameters[index].size_bytes
    return [tuple(buffer) for buffer in buffers]


def _cycles(setup: SchemeInputs, options: Horovod) -> list[tuple[tuple[int, ...], float]]:
    """Return the buffers in the order in which they are reduced, each with the seconds for which it waits."""
    left, agree_s = setup.arrivals(), options.agreement_s(setup)
    missing = sorted(set(range(len(setup.parameters))).difference(left))
    if not setup.ready_s:
        return [(buffer, agree_s) for buffer in fuse_gradients(setup, [*left, *missing], options.fusion)]
    cycles: list[tuple[tuple[int, ...], float]] = []
    now_s, left = 0.0, [*missing, *left]
    while left:
        ready = [index for index in left if setup.ready_s.get(index, 0.0) <= now_s]
        begin_s, agreed_s = now_s, now_s + agree_s
        now_s = agreed_s
        for buffer in fuse_gradients(setup, ready, options.fusion):
            cycles.append((buffer, max(0.0, agreed_s - setup.last_ready(buffer))))
            if setup.blocking and setup.time_s is not None:
                now_s += setup.time_s(Operation.ALLREDUCE, setup.size_bytes(buffer))
        taken = set(ready)
        left = [index for index in left if index not in taken]
        cycle_s = max(options.cycle, agree_s)
        now_s = _find_next_cycle(begin_s, now_s, cycle_s, min((setup.ready_s.get(i, 0.0) for i in left), default=0.0))
    return cycles


def _find_next_cycle(begin_s: float, end_s: float, cycle_s: float, wanted_s: float) -> float:
    """Return when the next cycle begins that finds something: after whole cycles, or when the last one's work ends."""
    after_s = max(begin_s + cycle_s, end_s)
    if after_s >= wanted_s or cycle_s == 0:
        return max(after_s, wanted_s)
    return after_s + math.ceil((wanted_s - after_s) / cycle_s) * cycle_s


def _group_by_dtype(setup: SchemeInputs, order: Sequence[int]) -> list[tuple[int, ...]]:
    groups: dict[str, list[int]] = {}
    for index in order:
        groups.setdefault(setup.parameters[index].dtype, []).append(index)
    return [tuple(group) for group in groups.values()]
