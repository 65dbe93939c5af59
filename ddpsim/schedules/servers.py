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

from ddpsim.errors import InputError, PlanError
from ddpsim.operations import Operation
from ddpsim.options.asked import count, flag, value
from ddpsim.schedules.points import BACKWARD_END, PointKind, points
from ddpsim.schedules.schedule import Schedule, Sharding
from ddpsim.schedules.setup import SchemeInputs
from ddpsim.schedules.sums import sums
from ddpsim.units import format_count

SERVERS = "servers"
"""Name of the group of training ranks and servers together."""

STEPS_AT_ONCE = "servers step as soon as gradients are pushed"
"""Why a step has one push: servers do not know how many are to come."""


@dataclass(frozen=True, slots=True)
class ServerPlaces:
    """Where servers are: one of `servers`, `nodes` and `beside`, else the last rank is one.

    Attributes:
        servers: so many of the last ranks, which do not train.
        nodes: so many of the last nodes, of which no rank trains;
        each: servers on each of those, one at first.
        beside: servers on every node beside its trainers, which all train: at its first ranks' places.

    Raises:
        InputError: two of them, or `each` without `nodes`.
    """

    servers: int | None = value(count)
    nodes: int | None = value(count)
    each: int | None = value(count)
    beside: int | None = value(count)

    def __post_init__(self) -> None:
        given = [name for name in ("servers", "nodes", "beside") if getattr(self, name) is not None]
        if len(given) > 1:
            what = f"`{given[0]}` and `{given[1]}` are both given"
            raise InputError(what, place="scheme 'parameter-server'", remedy="say once where they are")
        if self.each is not None and self.nodes is None:
            what, remedy = "`each` says nothing without `nodes`", "write e.g. nodes=2,each=4"
            raise InputError(what, place="scheme 'parameter-server'", remedy=remedy)

    @property
    def in_the_last_ranks(self) -> bool:
        """Whether servers are the last ranks and no rank idles."""
        return self.nodes is None and self.beside is None

    def hosts(self, world_size: int, per_node: int) -> tuple[int, ...]:
        """Return the ranks that are servers, or whose places servers share."""
        if self.nodes is not None:
            firsts = range(world_size - self.nodes * per_node, world_size, per_node)
            return tuple(first + place for first in firsts for place in range(self.each or 1))
        if self.beside is not None:
            return tuple(first + place for first in range(0, world_size, per_node) for place in range(self.beside))
        return tuple(range(world_size - (self.servers or 1), world_size))

    def trainers(self, world_size: int, per_node: int) -> int:
        """Return how many ranks train, the first ones."""
        if self.beside is not None:
            return world_size
        return world_size - (self.servers or 1 if self.nodes is None else self.nodes * per_node)

    def check(self, world_size: int, per_node: int, scheme: str) -> None:
        """Refuse servers that leave no rank to train, or more on a node than it has ranks.

        Raises:
            PlanError: it says how many there may be.
        """
        place = f"scheme {scheme!r}"
        if self.nodes is not None and self.nodes * per_node >= world_size:
            nodes = world_size // per_node
            what = f"{self.nodes} of {nodes} nodes are servers', which leaves them without clients"
            remedy = (
                f"give nodes={nodes - 1} at most" if nodes > 1 else "take more nodes, or give servers=N or beside=K"
            )
            raise PlanError(what, place=place, remedy=remedy)
        if (on_one := self.each or self.beside or 0) > per_node:
            name = "each" if self.each else "beside"
            what = f"{on_one} servers on a node of {format_count(per_node, 'rank')}"
            raise PlanError(what, place=place, remedy=f"give {name}={per_node} at most")
        if self.in_the_last_ranks:
            check_servers(self.servers or 1, world_size, scheme)

    def text(self) -> str:
        """Return it as an algorithm has it: `2`, `nodes=2,each=4`, `beside=1`."""
        if self.in_the_last_ranks:
            return str(self.servers or 1)
        return f"beside={self.beside}" if self.nodes is None else f"nodes={self.nodes},each={self.each or 1}"


@dataclass(frozen=True, slots=True)
class Servers(ServerPlaces):
    """What `parameter-server` may be asked.

    Attributes:
        asynchronous: whether each training rank goes on without the others.
        tictac: whether parameters are pulled in the order in which forward needs them; else in that of the pushes.
    """

    asynchronous: bool = flag("async")
    tictac: bool = flag("tictac")


def parameter_server(setup: SchemeInputs, given: Servers) -> Schedule:
    """Push each bucket's gradients when they are there, and pull its parameters after backward, before forward.

    Raises:
        PlanError: where servers leave no rank to train or do not fit on their nodes, or micro-batches that send each
            their gradients.
    """
    world, per_node = setup.world_size, setup.ranks_per_node
    given.check(world, per_node, "parameter-server")
    hosts = given.hosts(world, per_node)
    setup.check_sums_are_steps("parameter-server", STEPS_AT_ONCE)
    pushes = [
        replace(message, group=SERVERS, stream="push")
        for message in sums(setup, setup.buckets, "push", Operation.REDUCE)
    ]
    places = setup.in_forward_order(setup.buckets) if given.tictac else range(len(pushes))
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
        sharding=Sharding(servers=world - given.trainers(world, per_node), hosts=hosts),
        groups={SERVERS: world},
        patterns={SERVERS: f"parameter-server:{given.text()}"},
        broadcasts_buffers=False,
        asynchronous=given.asynchronous,
    )


def check_servers(servers: int, world_size: int, scheme: str) -> None:
    """Refuse `servers` that leave no rank to train.

    Raises:
        PlanError: it says how many there may be.
    """
    if servers >= world_size:
        what = f"{servers} of {world_size} ranks are servers, which leaves them without clients"
        remedy = f"give servers={max(1, world_size - 1)} at most"
        raise PlanError(what, place=f"scheme {scheme!r}", remedy=remedy)


def count_sendable(order: Sequence[int]) -> list[int]:
    """Return how many pulls, in their order, may leave once each push, in theirs, has been updated by.

    >>> count_sendable([0, 1, 2]), count_sendable([2, 1, 0])
    ([1, 2, 3], [0, 0, 3])
    """
    latest = list(itertools.accumulate(order, max))
    return [sum(needed <= place for needed in latest) for place in range(len(order))]
