"""Parameter servers take gradients, update parameters, and hand them out: ranks that do not train, or beside trainers.

Each bucket is cut into one equal part a server. In the synchronous form a server waits for the gradients of all
training ranks, and sends what it has updated to all; in the asynchronous one it updates with each rank's as they come
and answers that rank alone, so that a gradient is of parameters that others have moved on meanwhile.

Sources: Li et al., "Scaling Distributed Machine Learning with the Parameter Server" (2014); TensorFlow's
ParameterServerStrategy; the order of pulls, TicTac (Hashemi et al., 2019), where an unordered one is the reverse here.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ddpsim.collectives.servers import ServerPlaces
from ddpsim.common.operation import Operation
from ddpsim.common.suboptions import flag
from ddpsim.schedules.points import BACKWARD_END, PointKind, points
from ddpsim.schedules.schedule import Schedule, Sharding
from ddpsim.schedules.setup import SchemeInputs, sums

SERVERS = "servers"
"""Name of the group of training ranks and servers together."""

STEPS_AT_ONCE = "servers step as soon as gradients are pushed"
"""Why a step has one push: servers do not know how many are to come."""


@dataclass(frozen=True, slots=True)
class Servers(ServerPlaces):
    """What `parameter-server` may be asked.

    Attributes:
        asynchronous: whether each training rank goes on without the others.
        tictac: whether parameters are pulled in the order in which forward needs them; else in that of the pushes.
    """

    asynchronous: bool = flag("async")
    tictac: bool = flag("tictac")


def parameter_server(setup: SchemeInputs, options: Servers) -> Schedule:
    """Push each bucket's gradients when they are there, and pull its parameters after backward, before forward.

    Raises:
        PlanError: where servers leave no rank to train or do not fit on their nodes, or micro-batches that send each
            their gradients.
    """
    world, per_node = setup.world_size, setup.ranks_per_node
    options.check(world, per_node, "scheme 'parameter-server'")
    hosts = options.hosts(world, per_node)
    setup.check_sums_are_steps("parameter-server", STEPS_AT_ONCE)
    pushes = [
        replace(message, group=SERVERS, stream="push")
        for message in sums(setup, setup.buckets, "push", Operation.REDUCE)
    ]
    # A pull waits for its bucket's update, which takes the bucket's share of the optimizer's time by bytes, over the
    # servers: each updates an equal part of it.
    places = setup.in_forward_order(setup.buckets) if options.tictac else range(len(pushes))
    whole = setup.size_bytes(range(len(setup.parameters)))
    pulls = [
        replace(
            pushes[place],
            id=f"pull {place}",
            op=Operation.BROADCAST,
            after=(BACKWARD_END,),
            after_messages=(pushes[place].id,),
            blocks=points(PointKind.FORWARD, setup.buckets[place]),
            stream="pull",
            delay_s=setup.update_s * pushes[place].size_bytes / whole / len(hosts) if whole else 0.0,
        )
        for place in places
    ]
    return Schedule(
        scheme="parameter-server",
        messages=(*pushes, *pulls),
        update="elsewhere",
        sharding=Sharding(servers=world - options.trainers(world, per_node), hosts=hosts),
        groups={SERVERS: world},
        patterns={SERVERS: f"parameter-server:{options.text()}"},
        broadcasts_buffers=False,
        ranks_meet=not options.asynchronous,
    )


def count_sendable(order: Sequence[int]) -> list[int]:
    """Return how many pulls, in their order, may leave once each push, in theirs, has been updated by.

    >>> count_sendable([0, 1, 2]), count_sendable([2, 1, 0])
    ([1, 2, 3], [0, 0, 3])
    """
    latest = list(itertools.accumulate(order, max))
    return [sum(needed <= place for needed in latest) for place in range(len(order))]
