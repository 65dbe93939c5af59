"""Training under torch's `fully_shard`, its collectives observed without changing them.

Units are those of `ddpsim.schedules.units`: each repeated block, then the root. torch alone decides what is sent and
when. It is observed by custom collectives that call torch's default ones (`set_custom_all_gather`,
`set_custom_reduce_scatter`), a process group of replicas that passes its allreduces on, and a hook on each gradient.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultAllGather, DefaultReduceScatter

from ddpexec.ddp.compiling import disable_compile
from ddpexec.ddp.parameters import ModelParameters, broadcast_state, collect, verify
from ddpexec.ddp.planner import check_agreement
from ddpexec.errors import OptionError
from ddpexec.groups.lost import name_lost_ranks
from ddpexec.groups.process_groups import Communicator, timeout_of
from ddpexec.groups.timeouts import wait_within
from ddpexec.timing.observe import Observer
from ddpsim.bucketing import BucketPlan
from ddpsim.bucketing.plan import custom_plan
from ddpsim.common.operation import Operation
from ddpsim.schedules.named import scheme_named
from ddpsim.schedules.precision import Precision
from ddpsim.schedules.schedule import Schedule
from ddpsim.schedules.setup import SchemeInputs
from ddpsim.schedules.sharded import FullyShard
from ddpsim.schedules.units import blocks_of, units_of

Unit = tuple[int, ...]


def make_stamp_hook(observer: Observer, index: int) -> Callable[[Tensor], None]:
    """Return a hook that stamps the gradient of parameter `index`."""

    @disable_compile
    def stamp(_: Tensor) -> None:
        begin = observer.now()
        observer.hooks[index] = begin, observer.now()

    return stamp


class CollectiveWatch:
    """Notes each collective, numbered in the order of their launches.

    On a CPU torch's `fully_shard` launches a collective and waits for it in one call. On a GPU its end is an event on
    the stream that torch launched it on; computation's wait for that is not told.
    """

    def __init__(self, observer: Observer | None) -> None:
        self.observer = observer

    @disable_compile
    def around(self, op: Operation, unit: Unit, tensor: Tensor, call: Callable[[], Any]) -> Any:
        """Make a collective of all of `tensor` by `call`, and note it."""
        observer = self.observer
        if observer is None or observer.note is None:
            return call()
        begin = observer.now()
        work = call()
        number = self.number(op, unit, len(observer.note.buckets))
        if work is not None:
            observer.note_launch(number, unit, tensor.nbytes, begin, work, op)
            return work
        end = observer.now()
        note = observer.note_collective(number, unit, tensor.nbytes, begin, end, op)
        if note is not None and tensor.device.type == "cpu":
            observer.note_message_wait(note, begin, end)
        return work

    def number(self, op: Operation, unit: Unit, before: int) -> int:
        """Return the number of a collective that `before` others were launched before."""
        return before


class ScheduleWatch(CollectiveWatch):
    """Notes each collective as the message of the schedule that it is: the n-th of its operation on its unit."""

    def __init__(self, schedule: Schedule, observer: Observer | None) -> None:
        super().__init__(observer)
        self._numbers: dict[tuple[Operation, Unit], list[int]] = {}
        for number, message in enumerate(schedule):
            self._numbers.setdefault((message.op, message.parameters), []).append(number)
        self._seen: Counter[tuple[Operation, Unit]] = Counter()
        self._more = len(schedule.messages)

    def begin(self) -> None:
        """Begin an iteration."""
        self._seen.clear()

    def number(self, op: Operation, unit: Unit, before: int) -> int:
        """Return the message's place in the schedule; one that is not in it comes behind all."""
        key = op, unit
        numbers, place = self._numbers.get(key, []), self._seen[key]
        self._seen[key] += 1
        return numbers[place] if place < len(numbers) else self._more


class WatchedCollective:
    """torch's all-gather or reduce-scatter of one unit, noted.

    Args:
        inner: what torch, or the user, has for it, which is called.
        watch: that notes it.
        op: which of the two.
        unit: whose parameters it carries.
    """

    def __init__(self, inner: Any, watch: CollectiveWatch, op: Operation, unit: Unit) -> None:
        self._inner, self._watch, self._op, self._unit = inner, watch, op, unit
        self.allocate = inner.allocate
        self._whole = "output_tensor" if op is Operation.ALL_GATHER else "input_tensor"

    @disable_compile
    def __call__(self, **arguments: Any) -> Any:
        """Gather or reduce, as torch does; torch names the arguments."""
        call = functools.partial(self._inner, **arguments)
        return self._watch.around(self._op, self._unit, arguments[self._whole], call)


class WatchedReplicas(dist.ProcessGroup):
    """Passes the allreduces of one unit between replicas on to `group`, waits for each as its caller does, notes it."""

    def __init__(self, group: dist.ProcessGroup, watch: CollectiveWatch, unit: Unit) -> None:
        super().__init__(group.rank(), group.size())  # type: ignore[call-arg]
        self._inner, self._watch, self._unit = group, watch, unit

    @disable_compile
    def allreduce(self, tensors: Any, options: Any = None) -> Any:  # type: ignore[override]
        """Pass an allreduce on."""
        works = []

        def call() -> None:
            works.append(self._inner.allreduce(tensors, options))
            wait_within(works[0], timeout_of(self._inner))

        self._watch.around(Operation.ALLREDUCE, self._unit, tensors[0], call)
        return works[0]

    @disable_compile
    def getBackendName(self) -> str:  # noqa: N802
        """Return the backend's name."""
        return str(dist.get_backend(self._inner))


RESHARD = {"blocks": None, "all": True, "nothing": False}
"""`reshard_after_forward` by what a scheme gives up after forward."""
SENT = ("float64", "float32", "bfloat16", "float16")
"""What parameters may be gathered and gradients reduced in."""


@runtime_checkable
class CallsUnits(Protocol):
    """A module whose forward calls the modules of its blocks only after `call_units`, as timed layers do."""

    def call_units(self) -> None:
        """Call the module of each block from now on, as often as forward needs its parameters."""


class FullySharded(nn.Module):
    """Train `module`, whose blocks and root it shards, by `fsdp2` or `hsdp:S`.

    `optimizer` holds the sharded parameters; step it after a backward outside `no_sync`.

    Args:
        module: on a CPU, its parameters of one dtype. Parameters and buffers of rank 0 are taken by all.
        scheme: its name, as `ddpsim.schedules.named.scheme_named` reads it.
        make_optimizer: makes an optimizer of the sharded parameters.
        process_group: torch's; the default group where None.
        observer: takes the moments of each iteration; None takes none.

    Raises:
        OptionError: a module that `fully_shard` cannot shard, or one that is not on a CPU.
        PlanError: shards that do not divide the ranks.
        ModelMismatchError: ranks with different parameters, or schemes.
    """

    def __init__(
        self,
        module: nn.Module,
        scheme: str,
        make_optimizer: Callable[[list[nn.Parameter]], Any],
        *,
        process_group: Any = None,
        observer: Observer | None = None,
    ) -> None:
        super().__init__()
        # First everything that may be refused, before the module is changed or another rank is waited for.
        self.module, self.observer = module, observer
        group = process_group or dist.group.WORLD
        if group is None:
            raise OptionError("no process group", remedy="call torch.distributed.init_process_group first")
        self.communicator = Communicator([group])
        model = collect(module)
        if not model.tensors:
            what, remedy = "the module has no parameter that needs a gradient", "give one that does"
            raise OptionError(what, place=f"scheme {scheme!r}", remedy=remedy)
        world = self.communicator.world_size
        named = scheme_named(scheme)
        options = named.fully_shard
        if options is None:
            raise OptionError(f"{scheme!r} is not sharded by units", place="scheme", remedy="use fsdp2 or hsdp:S")
        if options.wrap is not None and isinstance(module, CallsUnits):
            what = "timed layers call the modules of their blocks alone"
            raise OptionError(what, place=f"scheme {scheme!r}, wrap", remedy="leave `wrap` out, or train a model")
        root, blocks = units_of(model.all_policy, options.wrap)
        names = blocks_of(model.all_policy, options.wrap)
        if isinstance(module, CallsUnits) and not all(map(model.reduced, blocks)):
            what = "timed layers do not call the modules of blocks without a gradient"
            raise OptionError(what, place=f"scheme {scheme!r}", remedy="run the step itself, or simulate it")
        reduced = [unit for unit in map(model.reduced, [*reversed(blocks), root]) if unit]
        check_shardable(model, scheme, reduced)
        check_apart(module, names, scheme)
        self.plan: BucketPlan = custom_plan(model.policy, reduced)
        setup = SchemeInputs(
            parameters=model.policy, buckets=self.plan.groups(), world_size=world, blocking=True, frozen=model.frozen
        )
        self.schedule: Schedule = named.schedule(setup)
        # Collectives, in the same order on every rank: are parameters and schedules alike, then rank 0's values for
        # all.
        verify(model, self.communicator, model.tensors[0].device)
        check_agreement(self.schedule, self.communicator, model.tensors[0].device)
        broadcast_state(module, self.communicator, (), buffers=True)
        if isinstance(module, CallsUnits):
            module.call_units()
        with name_lost_ranks(self.communicator, "the construction of process groups"):
            mesh = mesh_of(self.communicator, options.shards or world)
        self._watch = ScheduleWatch(self.schedule, observer)
        modules = dict(module.named_modules())
        # Modules inside others first, as `fully_shard` wants it.
        inner = sorted(names, key=lambda name: -name.count("."))
        wrapped = [*((modules[name], names[name]) for name in inner), (module, root)]
        units = [self._shard(each, unit, model.reduced(unit), mesh, options) for each, unit in wrapped]
        _prefetch([*([module] if root else []), *(modules[name] for name in names)], options, rooted=bool(root))
        place = {parameter: index for index, parameter in enumerate(collect(module).tensors)}
        self._sharded = {
            place[each.sharded_param]: each for unit in units for each in unit if each.sharded_param in place
        }
        self._hooked = observer is None
        # The parameters that backward writes to exist only after a first forward: their hooks are put there
        # (`_hook_gradients`).
        self.optimizer = make_optimizer(list(module.parameters()))

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Call the module, whose units gather their parameters before they run."""
        observer = self.observer
        if observer is None:
            return self.module(*inputs, **kwargs)
        if torch.is_grad_enabled():
            observer.note_schedule()
            self._watch.begin()
        begin = observer.now()
        output = self.module(*inputs, **kwargs)
        observer.module(begin)
        if not self._hooked:
            self._hooked = True
            self._hook_gradients(observer)
        return output

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Reduce no gradients: those of all parameters add up on each rank; parameters are gathered all the same."""
        root: Any = self.module
        root.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            root.set_requires_gradient_sync(True)

    def _shard(self, module: nn.Module, unit: Unit, reduced: Unit, mesh: DeviceMesh, options: FullyShard) -> list[Any]:
        """Shard one unit, of whose parameters some take a gradient, and return torch's own of all."""
        reshard, precision = RESHARD[options.reshard], make_precision_policy(options.precision)
        # There is no accelerator to lock pages for.
        offload = CPUOffloadPolicy(pin_memory=False) if options.offload else OffloadPolicy()
        try:
            fully_shard(module, mesh=mesh, reshard_after_forward=reshard, mp_policy=precision, offload_policy=offload)
        except (ValueError, NotImplementedError, AssertionError) as error:
            what = f"torch's fully_shard refuses {type(module).__name__}: {error}"
            raise OptionError(what, place="scheme", remedy="use `scheme=zero2`, or another model") from error
        sharded: Any = module
        gather, scatter = Operation.ALL_GATHER, Operation.REDUCE_SCATTER
        sharded.set_custom_all_gather(WatchedCollective(DefaultAllGather(), self._watch, gather, unit))
        sharded.set_custom_reduce_scatter(WatchedCollective(DefaultReduceScatter(), self._watch, scatter, reduced))
        groups = sharded._get_fsdp_state()._fsdp_param_groups
        for group in groups:
            if mesh.ndim > 1:
                replicas = group.mesh_info.replicate_process_group
                group.mesh_info.replicate_process_group = WatchedReplicas(replicas, self._watch, reduced)
        return [each for group in groups for each in group.fsdp_params]

    def _hook_gradients(self, observer: Observer) -> None:
        """Stamp each gradient from now on; the parameters that backward writes to exist since the first forward."""
        for index, each in self._sharded.items():
            each._unsharded_param.register_post_accumulate_grad_hook(make_stamp_hook(observer, index))


def _prefetch(forward: Sequence[Any], options: FullyShard, *, rooted: bool) -> None:
    """Have each unit, in the order in which forward enters them, launch the gathers of so many behind it."""
    backward = [*forward[:1], *forward[:0:-1]] if rooted else list(forward[::-1])
    for order, ahead, name in (
        (forward, options.forward_prefetch, "set_modules_to_forward_prefetch"),
        (backward, options.backward_prefetch, "set_modules_to_backward_prefetch"),
    ):
        for place, unit in enumerate(order if ahead else ()):
            if behind := order[place + 1 : place + 1 + (ahead or 0)]:
                getattr(unit, name)(list(behind))


def check_shardable(model: ModelParameters, scheme: str, units: Sequence[Unit]) -> None:
    """Raise OptionError where torch's `fully_shard` cannot train a model on CPUs."""
    place = f"scheme {scheme!r}"
    for parameter, tensor in zip(model.all_policy, (*model.tensors, *model.frozen_tensors), strict=True):
        if tensor.device.type != "cpu":
            what = f"{parameter.name} is on {tensor.device}"
            raise OptionError(what, place=place, remedy="it is run on CPUs; give `device=cpu`, or simulate it")
        if tensor.numel() == 0:  # torch 2.13 fails in the first backward
            raise OptionError(f"{parameter.name} has no elements", place=place, remedy="use `scheme=zero2`")
        if parameter.sparse:
            raise OptionError(f"the gradient of {parameter.name} is sparse", place=place, remedy="use `scheme=ddp`")
    for first, *others in filter(None, units):
        other = next((index for index in others if model.policy[index].dtype != model.policy[first].dtype), None)
        if other is not None:
            pair = [f"{model.policy[index].name} is {model.policy[index].dtype}" for index in (first, other)]
            what = f"one unit has gradients of two types: {' and '.join(pair)}"
            raise OptionError(what, place=place, remedy="use `scheme=ddp`, or parameters of one")


def check_apart(module: nn.Module, blocks: Collection[str], scheme: str) -> None:
    """Raise OptionError where units share a parameter, which torch finds out in the first forward."""
    owners: dict[nn.Parameter, tuple[str, str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        unit = max((block for block in blocks if name.startswith(f"{block}.")), key=len, default="the root")
        first, owner = owners.setdefault(parameter, (name, unit))
        if owner != unit:
            what = f"{first} of {owner} and {name} of {unit} are one parameter, and two units"
            raise OptionError(what, place=f"scheme {scheme!r}", remedy="use `scheme=zero2`, or parameters of their own")


def mesh_of(communicator: Communicator, shards: int) -> DeviceMesh:
    """Return the mesh of `shards` ranks to a copy: of one dimension where all ranks share one.

    Groups have the timeout of the communicator's.
    """
    world, main = communicator.world_size, communicator.main
    if shards == world:
        return DeviceMesh.from_group(main, "cpu")
    ranks = torch.tensor(dist.get_process_group_ranks(main)).view(world // shards, shards)
    timeout = main._get_backend(torch.device("cpu")).options._timeout
    replicas = _make_groups(ranks.T.tolist(), timeout)
    return DeviceMesh.from_group(
        [replicas, _make_groups(ranks.tolist(), timeout)], "cpu", mesh=ranks, mesh_dim_names=("replicate", "shard")
    )


def _make_groups(groups: Sequence[list[int]], timeout: Any) -> dist.ProcessGroup:
    """Make all `groups`, on every rank in the same order, and return this rank's."""
    # `new_group` is called by all ranks of the default group, members or not, in the same order; else it hangs.
    all_groups: dict[tuple[int, ...], Any] = {tuple(ranks): dist.new_group(ranks, timeout=timeout) for ranks in groups}
    mine: dist.ProcessGroup = next(group for ranks, group in all_groups.items() if dist.get_rank() in ranks)
    return mine


def make_precision_policy(precision: Precision) -> MixedPrecisionPolicy:
    """Return torch's policy of what is sent in which dtype.

    Raises:
        OptionError: a dtype that cannot be trained in, or that gloo does not sum.
    """

    def dtype(name: str | None) -> torch.dtype | None:
        if name is None:
            return None
        if name not in SENT:
            what = f"the executor sends no {name}"
            raise OptionError(what, place="scheme", remedy=f"use one of {', '.join(SENT)}, or simulate it")
        return getattr(torch, name)  # type: ignore[no-any-return]

    return MixedPrecisionPolicy(param_dtype=dtype(precision.gather), reduce_dtype=dtype(precision.reduce))
