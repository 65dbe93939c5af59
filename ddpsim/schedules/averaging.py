"""Schemes that average parameters every so many steps instead of gradients in each: replicas differ in between.

Parameters lie one after the other in a buffer a bucket and are averaged where they lie, after the optimizer's step and
under the next forward, which waits for each bucket when it needs it.

Sources: `torch/distributed/algorithms/model_averaging/averagers.py` and `ddp_comm_hooks/post_localSGD_hook.py`, torch
2.13; SlowMo (Wang et al., "SlowMo: Improving Communication-Efficient Distributed SGD with Slow Momentum", 2020).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ddpsim.common.errors import PlanError
from ddpsim.common.operation import Operation
from ddpsim.common.suboptions import count, value
from ddpsim.schedules.message import WORLD, Message
from ddpsim.schedules.outer import OuterStep
from ddpsim.schedules.points import BACKWARD_END, PointKind, points
from ddpsim.schedules.schedule import Schedule, Sharding
from ddpsim.schedules.setup import SchemeInputs, sums

NODE = "node"
"""Name of the group of consecutive ranks among which gradients are averaged in each step."""

OUTER_PASSES = 6.5
"""Passes of a copy's size that SlowMo's outer step makes over the parameters, in the operations that torch has for it.

The momentum is scaled (2 times a parameter's bytes), the last average added to it and this one taken off (3 each), the
parameters made of the last average and the momentum (3), and kept (2): 13 times, of which a copy moves two.
"""


@dataclass(frozen=True, slots=True)
class LocalSgd:
    """What `local-sgd` may be asked beside its steps.

    Attributes:
        ranks: that average gradients in each step; None is those of a node, as torch's `new_subgroups` makes them.
    """

    ranks: int | None = value(count)


def averaging(setup: SchemeInputs, steps: int) -> Schedule:
    """Average the parameters of all ranks after every `steps` steps; nothing is sent in between."""
    return Schedule(
        scheme=f"averaging:{steps}",
        messages=tuple(_averages(setup, steps)),
        sharding=Sharding(staging_bytes=0),
        broadcasts_buffers=False,
    )


def slowmo(setup: SchemeInputs, steps: int, outer: OuterStep) -> Schedule:
    """Average the parameters of all ranks after every `steps` steps, and take an outer step with momentum then."""
    kept_bytes = 2 * setup.size_bytes(range(len(setup.parameters)))
    schedule = averaging(setup, steps)
    messages = tuple(replace(message, passes=OUTER_PASSES) for message in schedule)
    sharding = replace(schedule.sharding, kept_bytes=kept_bytes)
    return replace(schedule, scheme=f"slowmo:{steps}", messages=messages, sharding=sharding, outer=outer)


def local_sgd(setup: SchemeInputs, steps: int, options: LocalSgd) -> Schedule:
    """Average gradients in a node in each step, and parameters over all ranks after every `steps`: PostLocalSGD.

    Raises:
        PlanError: where the ranks of a group do not divide all.
    """
    ranks = options.ranks or setup.ranks_per_node
    if setup.world_size % ranks:
        what = f"groups of {ranks} ranks do not divide a world of {setup.world_size}"
        raise PlanError(what, place="scheme local-sgd", remedy=f"write local-sgd:{steps},ranks=R, R a divisor")
    group, groups = (WORLD, {}) if ranks == setup.world_size else (NODE, {NODE: ranks})
    summed = [replace(each, blocks=(BACKWARD_END,), group=group) for each in sums(setup, setup.buckets) if ranks > 1]
    sharding = Sharding() if summed else Sharding(staging_bytes=0)
    return Schedule(
        scheme=f"local-sgd:{steps}",
        messages=(*summed, *(replace(message, stream="averages") for message in _averages(setup, steps))),
        sharding=sharding,
        groups=groups,
    )


def _averages(setup: SchemeInputs, steps: int) -> list[Message]:
    return [
        Message(
            id=f"average {place}",
            op=Operation.ALLREDUCE,
            size_bytes=setup.size_bytes(setup.buckets[place]),
            parameters=setup.buckets[place],
            after=points(PointKind.UPDATED, setup.buckets[place]),
            blocks=points(PointKind.FORWARD, setup.buckets[place]),
            every=setup.accumulate * steps,
            in_place=True,
        )
        for place in setup.in_forward_order(setup.buckets)
    ]
