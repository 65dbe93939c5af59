"""Parallax: sparse gradients go to servers, which sum rows and update them; dense ones are allreduced by who trains.

Of a sparse gradient a rank sends the rows that its batch touched, with their indices, and the servers answer with the
rows that any rank's touched. An allreduce would gather the rows of all ranks on each.

Source: Kim et al., "Parallax: Sparsity-aware Data Parallel Training of Deep Neural Networks" (2019). There each machine
runs a server beside its workers and cuts a variable into parts; here the last ranks serve, each an equal part.
"""

from __future__ import annotations

from dataclasses import dataclass

from ddpsim.collectives.servers import check_servers
from ddpsim.common.errors import PlanError
from ddpsim.common.operation import Operation
from ddpsim.common.suboptions import count, value
from ddpsim.schedules.chunks import parse_share
from ddpsim.schedules.message import Message
from ddpsim.schedules.points import BACKWARD_END, PointKind, points
from ddpsim.schedules.schedule import TRAINERS, Schedule, Sharding
from ddpsim.schedules.servers import SERVERS, STEPS_AT_ONCE
from ddpsim.schedules.setup import SchemeInputs

INDEX_BYTES = 8
"""Of the index of a row, as torch has it in a sparse tensor."""


@dataclass(frozen=True, slots=True)
class Parallax:
    """What `parallax` may be asked.

    Attributes:
        servers: the last ranks, which do not train.
        density: share of a sparse parameter's rows that a rank's batch touches; what runs sends what it touches. The
            default is chosen by hand.
        sparse: beginning of the names of parameters that are sparse beside those that the model says.
    """

    servers: int = value(count, 1)
    density: float = value(parse_share, 0.1)
    sparse: str | None = value(lambda text, place: text)


def parallax(setup: SchemeInputs, options: Parallax) -> Schedule:
    """Push and pull the rows of each sparse parameter, and allreduce the dense rest of each bucket among who trains.

    Ranks are taken to touch rows independently of each other, so that of w ranks 1 - (1 - density)^w are touched.

    Raises:
        PlanError: servers that leave no rank to train, no sparse parameter, or micro-batches that send each their
            gradients.
    """
    check_servers(options.servers, setup.world_size, "scheme 'parallax'")
    setup.check_sums_are_steps("parallax", STEPS_AT_ONCE)
    sparse = [index for index in range(len(setup.parameters)) if _is_sparse(setup, index, options)]
    if not sparse:
        what, remedy = "no parameter has a sparse gradient", "name one by `sparse=NAME`, or use `ddp`, which it is then"
        raise PlanError(what, place="scheme 'parallax'", remedy=remedy)
    workers = setup.world_size - options.servers
    # Sums of dense parts are DDP's buckets without the sparse ones, among trainers alone; then pushes as gradients come
    # and pulls as forward needs them.
    messages = []
    for number, bucket in enumerate(setup.buckets):
        dense = tuple(index for index in bucket if index not in sparse)
        if dense:
            messages.append(_make_sum(setup, number, dense))
    order = [index for index in setup.arrivals() if index in sparse]
    messages += [_make_push(setup, index, options) for index in order]
    places = setup.in_forward_order([(index,) for index in order])
    messages += [_make_pull(setup, order[place], options, workers) for place in places]
    return Schedule(
        scheme="parallax",
        messages=tuple(messages),
        sharding=Sharding(servers=options.servers, hosts=tuple(range(workers, setup.world_size))),
        groups={SERVERS: setup.world_size, TRAINERS: workers},
        patterns={SERVERS: f"parameter-server:{options.servers}"},
        broadcasts_buffers=False,
    )


def _is_sparse(setup: SchemeInputs, index: int, options: Parallax) -> bool:
    parameter = setup.parameters[index]
    return parameter.sparse or (options.sparse is not None and parameter.name.startswith(options.sparse))


def _rows_bytes(setup: SchemeInputs, index: int, share: float) -> int:
    """Return the bytes of a share of a parameter's rows, with their indices."""
    parameter = setup.parameters[index]
    rows = parameter.shape[0] if parameter.shape else 1
    return round(share * (parameter.size_bytes + rows * INDEX_BYTES))


def _make_sum(setup: SchemeInputs, number: int, dense: tuple[int, ...]) -> Message:
    return Message(
        id=f"bucket {number}",
        op=Operation.ALLREDUCE,
        size_bytes=setup.size_bytes(dense),
        parameters=dense,
        after=points(PointKind.GRADIENT, dense),
        blocks=(BACKWARD_END,),
        group=TRAINERS,
        every=setup.every,
    )


def _make_push(setup: SchemeInputs, index: int, options: Parallax) -> Message:
    return Message(
        id=f"push {index}",
        op=Operation.REDUCE,
        size_bytes=_rows_bytes(setup, index, options.density),
        parameters=(index,),
        after=points(PointKind.GRADIENT, (index,)),
        group=SERVERS,
        stream="push",
        every=setup.every,
        sparse=True,
    )


def _make_pull(setup: SchemeInputs, index: int, options: Parallax, workers: int) -> Message:
    touched = 1 - (1 - options.density) ** workers
    whole = setup.size_bytes(range(len(setup.parameters)))
    updated = touched * setup.size_bytes((index,)) / options.servers
    return Message(
        id=f"pull {index}",
        op=Operation.BROADCAST,
        size_bytes=_rows_bytes(setup, index, touched),
        parameters=(index,),
        after=(BACKWARD_END,),
        after_messages=(f"push {index}",),
        blocks=points(PointKind.FORWARD, (index,)),
        group=SERVERS,
        stream="pull",
        delay_s=setup.update_s * updated / whole if whole else 0.0,
        every=setup.every,
        sparse=True,
    )
