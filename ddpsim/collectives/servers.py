"""Servers, each of which holds an equal part of a message: where they are, and who sends them what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ddpsim.collectives.schedules import Builder, TransferSchedule
from ddpsim.common.errors import InputError, PlanError, TopologyError
from ddpsim.common.strict import parse_whole_number
from ddpsim.common.suboptions import count, parse_options, value
from ddpsim.common.units import format_count


def parameter_server(ranks: int, hosts: Sequence[int], workers: int | None = None) -> TransferSchedule:
    """Return push and pull of the first `workers` ranks, or of all, against servers that each hold one part.

    With rank 0 as the only host it is the naive pattern: all send it the whole message, and it sends the sum back.

    Args:
        hosts: the rank at which each server is; what it has in common with that rank is not sent.
    """
    builder = Builder(ranks, len(hosts))
    for reduce in (True, False):
        for part, server in enumerate(hosts):
            for worker in range(ranks if workers is None else workers):
                if worker != server:
                    source, target = (worker, server) if reduce else (server, worker)
                    builder.send(source, target, part, part + 1, reduce=reduce)
    return builder.build()


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
        named = [name for name in ("servers", "nodes", "beside") if getattr(self, name) is not None]
        if len(named) > 1:
            what = f"`{named[0]}` and `{named[1]}` are both given"
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

    def check(self, world_size: int, per_node: int, place: str) -> None:
        """Refuse servers that leave no rank to train, or more on a node than it has ranks.

        Args:
            place: what names them in errors.

        Raises:
            PlanError: it says how many there may be.
        """
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
            check_servers(self.servers or 1, world_size, place)

    def text(self) -> str:
        """Return it as an algorithm has it: `2`, `nodes=2,each=4`, `beside=1`."""
        if self.in_the_last_ranks:
            return str(self.servers or 1)
        return f"beside={self.beside}" if self.nodes is None else f"nodes={self.nodes},each={self.each or 1}"


def check_servers(servers: int, world_size: int, place: str) -> None:
    """Refuse `servers` that leave no rank to train.

    Raises:
        PlanError: it says how many there may be.
    """
    if servers >= world_size:
        what = f"{servers} of {world_size} ranks are servers, which leaves them without clients"
        remedy = f"give servers={max(1, world_size - 1)} at most"
        raise PlanError(what, place=place, remedy=remedy)


def places_named(algorithm: str) -> ServerPlaces | None:
    """Return where `parameter-server:2`, or `parameter-server:nodes=1`, has its servers; None of any other algorithm.

    Raises:
        InputError: places that contradict each other.
    """
    name, _, places = algorithm.partition(":")
    if name != "parameter-server" or not places:
        return None
    if "=" in places:
        return parse_options(ServerPlaces, places, "algorithm parameter-server")
    number = parse_whole_number(places)
    return None if number is None else ServerPlaces(servers=number)


def push_and_pull(ranks: int, per_node: int, places: ServerPlaces) -> TransferSchedule:
    """Return push and pull of all ranks that train, so many of them a node, against the servers at some places.

    Raises:
        TopologyError, PlanError: servers that leave no rank to train, or more on a node than it has ranks.
    """
    if places.servers is not None and not 0 < places.servers < ranks:
        what, remedy = f"{places.servers} servers of {ranks} ranks", "leave a rank that is no server"
        raise TopologyError(what, place="algorithm", remedy=remedy)
    places.check(ranks, per_node, "scheme 'parameter-server'")
    return parameter_server(ranks, places.hosts(ranks, per_node), places.trainers(ranks, per_node))
