"""The schedule of GradientFlow: norms of a bucket's chunks, then the chunks that count."""

from __future__ import annotations

from ddpsim.common.operation import Operation
from ddpsim.schedules.chunks import MOMENTUM_PASSES, NORM_BYTES, SUMMING_PASSES, Chunks, GradientFlow
from ddpsim.schedules.message import Message
from ddpsim.schedules.points import BACKWARD_END, PointKind, points
from ddpsim.schedules.schedule import Schedule, Sharding
from ddpsim.schedules.setup import SchemeInputs


def gradientflow(setup: SchemeInputs, given: GradientFlow) -> Schedule:
    """Sum the norms of each bucket's chunks when its gradients are there, then its chosen chunks; backward's end waits.

    Raises:
        PlanError: micro-batches that send each their gradients, which are left over from one another.
    """
    setup.check_sums_are_steps("gradientflow", "what one sum leaves out the next would send")
    norms, values = [], []
    passes = SUMMING_PASSES + (MOMENTUM_PASSES if given.momentum else 0.0)
    for place, bucket in enumerate(setup.buckets):
        size, elements = setup.size_bytes(bucket), sum(setup.parameters[index].numel for index in bucket)
        chosen = given.count_chosen(elements)
        norms.append(
            Message(
                id=f"norms {place}",
                op=Operation.ALLREDUCE,
                size_bytes=NORM_BYTES * given.chunks(elements),
                parameters=bucket,
                after=points(PointKind.GRADIENT, bucket),
                stream="norms",
                every=setup.every,
                chunks=Chunks(given.chunk, chosen, "norms", given.momentum),
                launch_passes=passes,
            )
        )
        item = size // elements if elements else 0
        values.append(
            Message(
                id=f"chunks {place}",
                op=Operation.ALLREDUCE,
                size_bytes=min(chosen * given.chunk, elements) * item,
                parameters=bucket,
                after=points(PointKind.GRADIENT, bucket),
                after_messages=(norms[-1].id,),
                blocks=(BACKWARD_END,),
                every=setup.every,
                chunks=Chunks(given.chunk, chosen, "values", given.momentum),
                passes=1.0,
            )
        )
    whole = setup.size_bytes(range(len(setup.parameters)))
    kept = 2 * whole if given.momentum else whole
    return Schedule(scheme="gradientflow", messages=(*norms, *values), sharding=Sharding(kept_bytes=kept))
