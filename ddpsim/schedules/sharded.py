"""Schemes that shard parameters over ranks and gather them unit by unit, as torch's `fully_shard` does.

Read `fully_shard`, then `_Units`, which makes each unit's messages.

Source: `torch/distributed/fsdp/_fully_shard/{_fsdp_state,_fsdp_param_group,_fsdp_collectives}.py`, torch 2.13:

- All-gathers and reduce-scatters have a CUDA stream each, but one communicator, in which they run in the order of their
  launch (`set_separate_reduce_scatter_group` is there to part them): one stream here.
- A unit's all-gather in forward waits for the copy-out of the unit before the last (`wait_for_unshard`), so that two
  units at most are under way: the implicit prefetch.
- The root is not resharded after forward, but where `reshard_after_forward=True` is given for it too (`_lazy_init`).
  Backward begins with it and gathers the last block at once; entering a unit's backward, the one behind it is gathered
  (`_backward_prefetch`).
- A unit's gradients are reduced when its last one is there. The next unit's are copied in after that has ended
  (`reduce_scatter_max_input_buffers` is 1), so that a unit's reduction holds up the backward of the second behind it.
- `set_modules_to_forward_prefetch` and `set_modules_to_backward_prefetch` with the next K units launch their gathers on
  entering a unit; with one it is as without, on NCCL.
- The optimizer's end of backward waits for all (`finalize_backward`), and the next forward's gathers for the optimizer.
- With `CPUOffloadPolicy` shards are copied to the GPU before each gather and sums of gradients to the host
  (`ddpsim.schedules.offload`); that a unit's reduction holds up the backward of another is taken to last to the end of
  its copy.
- Between replicas (HSDP), a unit's shard is allreduced on a stream and a communicator of its own.
- A frozen parameter is gathered with its unit and reduced with none. A unit that is frozen as a whole is entered in
  backward only where something before it in forward takes a gradient; the first behind the last that is entered is
  gathered all the same, for a backward that does not come (`_backward_prefetch` says so).
- All of them are launched with `async_op=False`. On NCCL a stream then waits, and the host runs ahead; on gloo the host
  does, until each has ended: a unit is gathered where forward comes to it, and nothing is hidden
  (`SchemeInputs.blocking`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ddpsim.common.errors import PlanError
from ddpsim.common.operation import Operation
from ddpsim.common.options.exclusions import refuse_excluded
from ddpsim.common.suboptions import count, flag, value
from ddpsim.common.units import parse_time
from ddpsim.schedules.mesh import REPLICA, SHARD
from ddpsim.schedules.message import WORLD, Message
from ddpsim.schedules.offload import HostOffload
from ddpsim.schedules.points import BACKWARD_END, Point, PointKind, points
from ddpsim.schedules.precision import Precision, dtype_named
from ddpsim.schedules.schedule import Schedule, Sharding
from ddpsim.schedules.setup import SchemeInputs
from ddpsim.schedules.units import Wrapped, blocks_of, list_below, units_of

Unit = tuple[int, ...]


Reshard = Literal["blocks", "all", "nothing"]
"""What is given up after its forward and gathered again for its backward: `reshard_after_forward` left alone, given as
True for the root too, or as False."""


def fully_shard(setup: SchemeInputs, options: FullyShard) -> Schedule:
    """`fully_shard` on every block and on the root: gathered before use, gradients reduce-scattered.

    Over all ranks (FSDP2), or on a mesh of two dimensions (HSDP): a copy of the model on every `given.shards` ranks,
    summed over copies.

    Raises:
        PlanError: where the shards do not divide the ranks.
    """
    world = setup.world_size
    name, shards = ("fsdp2", world) if options.shards is None else (f"hsdp:{options.shards}", options.shards)
    if shards < 1 or world % shards:
        remedy = "give a divisor of the number of ranks"
        raise PlanError(f"{shards} shards do not divide a world of {world}", place=f"scheme {name!r}", remedy=remedy)
    options.check_offload(setup, shards, name)
    setup.check_parameters(name)
    units = _Units(setup, shards, options)
    messages = [] if shards == 1 else units.unshard_forward()
    messages += units.list_backward()
    return Schedule(
        scheme=name,
        messages=tuple(messages),
        sharding=Sharding(
            shards,
            shards,
            shards,
            units.find_most_gathered() if shards > 1 else 0,
            staging_bytes=0,
            offload=HostOffload(options.host_update) if options.offload else None,
        ),
        broadcasts_buffers=False,
        groups={} if shards in (1, world) else {SHARD: shards, REPLICA: world // shards},
    )


def modules_named(text: str, place: str) -> Wrapped:
    """Return the names of modules that `text` lists: `encoder.layer.*+pooler`."""
    return tuple(text.split("+"))


@dataclass(frozen=True, slots=True, kw_only=True)
class FullyShard:
    """What is asked of a scheme that `fully_shard` carries out.

    Attributes:
        noreshard: what forward gathered is kept for backward.
        reshard_root: the root unit is given up after forward too.
        gather, reduce: dtypes of what is sent.
        forward_prefetch, backward_prefetch: units whose gathers are launched on entering one; None is torch's own way,
            which is one in backward, and as one in forward where the host runs ahead.
        wrap: the modules that it is called on beside the root, as `ddpsim.schedules.units.Wrapped`; None is all blocks.
        offload: shards and the optimizer are on the host, as by `CPUOffloadPolicy`;
        host_update: what the optimizer takes there, in predictions; None goes by its elements.
        shards: ranks that share a copy of the model; None is all of them.

    Raises:
        InputError: `host_update` without `offload`.
    """

    noreshard: bool = flag("noreshard")
    reshard_root: bool = flag("reshard_root")
    gather: str | None = value(dtype_named)
    reduce: str | None = value(dtype_named)
    forward_prefetch: int | None = value(count)
    backward_prefetch: int | None = value(count)
    wrap: tuple[str, ...] | None = value(modules_named)
    offload: bool = flag("offload")
    host_update: float | None = value(parse_time)
    shards: int | None = None

    def __post_init__(self) -> None:
        refuse_excluded(self, "fully_shard")

    def check_offload(self, setup: SchemeInputs, shards: int, name: str) -> None:
        """Refuse to offload what is not sharded, or gradients that the host would have to add.

        Raises:
            PlanError: it says which.
        """
        if not self.offload:
            return
        if shards == 1:
            what, remedy = "`offload` of one shard: no message gathers it", "take 2 ranks to a copy, or leave it out"
            raise PlanError(what, place=f"scheme {name!r}", remedy=remedy)
        setup.check_sums_are_steps(name, "`offload`: the host would add gradients")

    @property
    def reshard(self) -> Reshard:
        """What is given up after forward."""
        return "nothing" if self.noreshard else "all" if self.reshard_root else "blocks"

    @property
    def precision(self) -> Precision:
        """The dtypes of what is sent."""
        return Precision(gather=self.gather, reduce=self.reduce)


class _Units:
    """The units of a job, and the messages of each.

    Attributes:
        root: the unit of what lies in no block; empty where nothing does.
        forward, backward: units in the order in which each enters them. The root comes first in both: its parameters
            are gathered before everything, and its output is where backward begins. Backward enters the first
            `entered` of its own alone: the others are frozen, and nothing before them takes a gradient.
    """

    def __init__(self, setup: SchemeInputs, shards: int, options: FullyShard) -> None:
        self._setup, self._shards, self._precision = setup, shards, options.precision
        self._offloaded = options.offload
        self._reshard: Reshard = "nothing" if shards == 1 else options.reshard
        self._forward_ahead, self._backward_ahead = options.forward_prefetch, options.backward_prefetch or 1
        self._all = setup.all_parameters
        self._order = sorted(range(len(self._all)), key=lambda index: (setup.first_use((index,)), index))
        self._uses = self._trained(tuple(self._order))
        self.root, blocks = units_of(self._all, options.wrap)
        names = [] if options.wrap is None else list(blocks_of(self._all, options.wrap))
        self._below = {unit: list_below(self._all, unit, names) for unit in blocks}
        first = [self.root] if self.root else []
        self.forward = first + sorted(blocks, key=lambda unit: setup.first_use(self._below[unit]))
        self._came = {index: place for place, index in enumerate(setup.arrivals())}
        whole = {below: unit for unit, below in self._below.items()}
        self.backward = first + [whole[below] for below in setup.in_backward_order(list(whole))]
        self.entered = len(self.backward) - sum(
            self._is_frozen(unit) and setup.last_before(self._below[unit]) is None for unit in blocks
        )

    def unshard_forward(self) -> list[Message]:
        """Return the all-gathers of forward: of the two first units as it begins, or one by one where a host waits."""
        return [
            self._gather(f"gather {place}", unit, self._find_point_before(place))
            for place, unit in enumerate(self.forward)
        ]

    def unshard_backward(self, place: int) -> list[Message]:
        """Return the all-gathers launched on entering backward's unit `place`: of those ahead, and of the very first.

        That of the very first may begin once forward has copied out its last block: the host, which runs ahead of the
        device, launches it as backward begins, and with it those of what is ahead of a root that was kept.
        """
        if self._reshard == "nothing":
            return []
        last = place + self._backward_ahead
        numbers = range(self._starts if place == 0 else max(last, self._starts + 1), last + 1)
        return [self._gather_again(number) for number in numbers if number < len(self.backward)]

    def list_backward(self) -> list[Message]:
        """Return the messages of backward, in the order of their launch.

        A unit's sums are launched when its module's backward is over: of a module inside another before the outer's.
        The root's are when all is, and behind them those of the unit whose module has the batch itself as its input,
        for torch hears of the end of a module's backward by the gradient of its input.
        """
        steps: list[tuple[tuple[int, int], list[Message]]] = []
        last = [self.root] if self.root else []
        for place, unit in enumerate(self.backward[: self.entered]):
            entered = -1 if place == 0 else self._find_entered(self._entry(unit))
            steps.append(((entered, 0), self.unshard_backward(place)))
            if unit != self.root and self._uses[0] in unit:
                last.append(unit)
            elif unit != self.root and self._trained(unit):
                over = max(map(self._find_entered, self._trained(self._below[unit])))
                held_up = self.backward[: self.entered][place + 2 : place + 3]
                steps.append(((over, 1), self.reduce_unit(unit, held_up)))
        if any(self._below[unit] != unit for unit in self._below):
            steps.sort(key=lambda step: step[0])
        launched = [message for _, messages in steps for message in messages]
        return launched + [message for unit in last if self._trained(unit) for message in self.reduce_unit(unit, ())]

    def reduce_unit(self, unit: Unit, held_up: Sequence[Unit]) -> list[Message]:
        """Return what sums the gradients of `unit`; reduce-scattering them holds up the backward of `held_up`."""
        setup, copies, name = self._setup, self._setup.world_size // self._shards, self._name(unit)
        own, below = self._trained(unit), self._trained(self._below.get(unit, unit))
        size = sum(self._precision.reduced_bytes(setup.parameters[index], self._shards) for index in own)
        scatter = Message(
            id=f"scatter {name}", op=Operation.REDUCE_SCATTER, size_bytes=size, parameters=own,
            after=points(PointKind.GRADIENT, below), group=self._group, every=setup.every,
            blocks=(BACKWARD_END, *(point for held in held_up for point in self._entry_points(held))),
            blocking=setup.blocking,
        )  # fmt: skip
        if self._shards == 1:
            return [replace(scatter, id=f"sum {name}", op=Operation.ALLREDUCE, group=WORLD, blocks=(BACKWARD_END,))]
        on_host = self._host_bytes(own)
        if copies == 1:
            return [replace(scatter, to_host_bytes=on_host)]
        summed = replace(
            scatter, id=f"sum {name}", op=Operation.ALLREDUCE, size_bytes=size // self._shards, to_host_bytes=on_host,
            after_messages=(scatter.id,), blocks=(BACKWARD_END,), group=REPLICA, stream="replicate",
        )  # fmt: skip
        return [scatter, summed]

    def find_most_gathered(self) -> int:
        """Return the bytes that are gathered as backward begins, when a rank holds most.

        Of a unit that is under way, there is what the all-gather writes (`all_gather_output`), and from its copy-out on
        the parameters themselves: with resharding those of the root, the last block's both, and the output of each that
        is gathered ahead.
        """
        sizes = [self._gathered_bytes(unit) for unit in self.backward]
        root, blocks = (sizes[0], sizes[1:]) if self.root else (0, sizes)
        largest = max(blocks, default=0)
        if self._reshard == "nothing" or len(blocks) < 2:
            return sum(sizes) + max(sizes)
        return root + (2 + self._backward_ahead) * largest

    @property
    def _group(self) -> str:
        return WORLD if self._shards == self._setup.world_size else SHARD

    def _name(self, unit: Unit) -> int:
        return self.forward.index(unit)

    def _trained(self, unit: Unit) -> Unit:
        return tuple(index for index in unit if index < len(self._setup.parameters))

    def _entry(self, unit: Unit) -> int:
        """Return the parameter whose gradient is ready first where backward enters `unit`: of all for the root.

        Of a unit that is frozen as a whole it is the last one before.
        """
        if trained := self._uses if unit == self.root else self._trained(self._below[unit]):
            return min(trained, key=self._find_entered)
        last = self._setup.last_before(self._below[unit])
        return self._uses[0] if last is None else last

    def _is_frozen(self, unit: Unit) -> bool:
        return unit != self.root and not self._trained(self._below[unit])

    def _entry_points(self, unit: Unit) -> tuple[Point, ...]:
        """Return where backward waits for `unit`.

        There are no points between units that are frozen as a whole: of several it waits for the first as it enters all
        of them, for the others as it leaves.
        """
        if not self._is_frozen(unit):
            return points(PointKind.BACKWARD, self._trained(unit) or (self._entry(unit),))
        if self._is_frozen(self.backward[max(0, self.backward.index(unit) - 1)]):
            return (Point(PointKind.BACKWARD, self._setup.next_behind(self._below[unit])),)
        return (Point(PointKind.BACKWARD, self._entry(unit)),)

    def _find_entered(self, index: int) -> int:
        return self._came.get(index, len(self._came))

    def _gathered_bytes(self, unit: Unit) -> int:
        return sum(self._precision.gathered_bytes(self._all[index], self._shards) for index in unit)

    @property
    def _starts(self) -> int:
        """Which unit of backward is the first to be gathered again: the root is still there, unless it was given up."""
        return 1 if self.root and self._reshard == "blocks" else 0

    def _find_point_before(self, place: int) -> Point | None:
        """Return the point of forward behind which its unit `place` is gathered; None is as it begins.

        A host that runs ahead is held up by the copy-out of the unit before the last, or where units are prefetched
        launches it on entering one before; one that waits for each collective comes to a unit when forward has used all
        before it.
        """
        if self._setup.blocking:
            place = max(0, place - (self._forward_ahead or 0))
            unit = self.forward[place]
            entry = min(map(self._order.index, self._below.get(unit, unit)))
            return Point(PointKind.FORWARD, self._order[entry - 1]) if place and entry else None
        behind = place - 1 - (self._forward_ahead or 1)
        return self._find_first_use(self.forward[behind]) if behind >= 0 else None

    def _gather(self, name: str, unit: Unit, behind: Point | None) -> Message:
        return Message(
            id=name,
            op=Operation.ALL_GATHER,
            size_bytes=self._gathered_bytes(unit),
            parameters=unit,
            after=() if behind is None else (behind,),
            blocks=points(PointKind.FORWARD, unit),
            group=self._group,
            blocking=self._setup.blocking,
            from_host_bytes=self._host_bytes(unit),
        )

    def _host_bytes(self, unit: Unit) -> int:
        """Return the bytes of a rank's shard of `unit` on the host: in its own dtype, whatever is sent."""
        if not self._offloaded:
            return 0
        own = Precision()
        return sum(own.gathered_bytes(self._all[i], self._shards) for i in unit) // self._shards

    def _gather_again(self, number: int) -> Message:
        unit, before = self.backward[number], self.backward[max(0, number - self._backward_ahead)]
        kept_root = self._starts == 1 and number <= self._backward_ahead
        ahead = (number == self._starts or kept_root) and not (self._setup.blocking and number)
        blocks = self._entry_points(unit) if number < self.entered else (BACKWARD_END,)
        # What waits where another unit is entered, as a frozen one may, is launched before that.
        earlier = reversed(self.backward[: self.backward.index(before) + 1])
        entries = (Point(PointKind.BACKWARD, self._entry(each)) for each in earlier)
        apart = next((point for point in entries if point not in blocks or not self._setup.frozen), None)
        after = self._find_first_use(self.forward[-1]) if ahead or apart is None else apart
        again = self._gather(f"gather {self._name(unit)} again", unit, after)
        return replace(again, blocks=blocks)

    def _find_first_use(self, unit: Unit) -> Point:
        inside = self._below.get(unit, unit)
        return Point(PointKind.FORWARD, min(inside, key=lambda index: self._setup.first_use((index,))))
