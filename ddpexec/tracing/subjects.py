"""What is traced: torch's DDP, ours, a module under torch's `fully_shard`, or a module that no wrapper reduces.

Each subject (`TracedModule`) puts its stamps in place for a step that is to be stamped and takes them away for one that
is not. `fully_shard`'s collectives are stamped by wrappers around those it calls; its order, groups and memory stay as
they are, and the wrapped functions are put back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from ddpexec.ddp.fully_sharded import CollectiveWatch, WatchedCollective, WatchedReplicas, make_stamp_hook
from ddpexec.ddp.parameters import ModelParameters, collect
from ddpexec.ddp.wrapper import DistributedDataParallel
from ddpexec.running.stock import StockWatch, buckets_of, reducer_order
from ddpexec.timing.observe import Note, Observer
from ddpsim.bucketing import BucketPlan
from ddpsim.bucketing.plan import custom_plan
from ddpsim.common.operation import Operation


class TracedModule:
    """A module whose steps are traced; the defaults are those of a wrapper with hooks of its own.

    Args:
        module: whose forward begins an iteration.
        model: its parameters, in registration order.
        observer: takes the moments.

    Attributes:
        implementation: as `run.json` tells it: `torch`, `ddpexec`, `fsdp2` or `none`.
        scheme: what carries gradients, by the name of a schedule.
    """

    implementation, scheme = "none", "ddp"

    def __init__(self, module: Any, model: ModelParameters, observer: Observer) -> None:
        self.module, self.model, self._observer = module, model, observer

    def attach(self) -> None:
        """Put the stamps in place, where they are not."""
        raise NotImplementedError

    def detach(self) -> None:
        """Take the stamps away; the module is as it was."""
        raise NotImplementedError

    def begin(self) -> None:
        """A forward of a stamped iteration begins, which the observer has opened."""

    def is_synced(self) -> bool:
        """Return whether the forward that begins will have its gradients reduced."""
        return bool(self.module.require_backward_grad_sync)

    def name_buckets(self, note: Note) -> None:
        """Write down which parameters the buckets of a closed iteration hold, where that is not known yet."""

    def plan(self) -> BucketPlan | None:
        """Return the buckets in force; None where there are none."""
        return None

    def options(self) -> dict[str, object]:
        """Return the job's options, by name, as far as the module shows them."""
        names = ("find_unused_parameters", "gradient_as_bucket_view", "static_graph", "broadcast_buffers")
        return {name: bool(getattr(self.module, name)) for name in names if hasattr(self.module, name)}


class ShardedSubject(TracedModule):
    """A module whose units torch shards; collectives are counted in the order of their launches."""

    implementation = "fsdp2"

    def __init__(self, module: nn.Module, observer: Observer) -> None:
        super().__init__(module, collect(module), observer)
        tensors = (*self.model.tensors, *self.model.frozen_tensors)
        place = {parameter: index for index, parameter in enumerate(tensors)}
        sharded = [each for each in module.modules() if isinstance(each, FSDPModule)]
        self._units = [
            (group, tuple(place[each.sharded_param] for each in group.fsdp_params if each.sharded_param in place))
            for each in sharded
            for group in each._get_fsdp_state()._fsdp_param_groups
        ]
        self._parameters = {
            place[each.sharded_param]: each
            for group, _ in self._units
            for each in group.fsdp_params
            if place.get(each.sharded_param, len(tensors)) < len(self.model.tensors)
        }
        mesh = self._units[0][0].mesh_info if self._units else None
        self._replicas = getattr(mesh, "replicate_process_group", None)
        shards = getattr(mesh, "shard_mesh_size", None)
        self.scheme = "fsdp2" if self._replicas is None else f"hsdp:{shards}"
        self._stamps, self._watch = GradientStamps(observer), CollectiveWatch(observer)
        self._undo: list[Callable[[], object]] = []

    def attach(self) -> None:
        """Stand around each unit's collectives, and put hooks on the gradients that exist since the first forward."""
        if not self._undo:
            for group, unit in self._units:
                self._patch_around(group, "_all_gather_comm", unit, Operation.ALL_GATHER)
                reduced = self.model.reduced(unit)
                self._patch_around(group, "_reduce_scatter_comm", reduced, Operation.REDUCE_SCATTER)
                replicas = getattr(group.mesh_info, "replicate_process_group", None)
                if replicas is not None:
                    self._put(
                        group.mesh_info, "replicate_process_group", WatchedReplicas(replicas, self._watch, reduced)
                    )
        unsharded = [(index, getattr(each, "_unsharded_param", None)) for index, each in self._parameters.items()]
        self._stamps.attach([(index, tensor) for index, tensor in unsharded if tensor is not None])

    def detach(self) -> None:
        """Put back what the units gathered and reduced with, and take the hooks away."""
        while self._undo:
            self._undo.pop()()
        self._stamps.detach()

    def begin(self) -> None:
        """Let waits count one by one."""
        self._observer.note_schedule()

    def is_synced(self) -> bool:
        """Return whether gradients are reduced, as `set_requires_gradient_sync` says."""
        return all(bool(group.reduce_grads) for group, _ in self._units)

    def plan(self) -> BucketPlan | None:
        """Return the units as buckets, in the order of backward."""
        units = [reduced for _, unit in reversed(self._units) if (reduced := self.model.reduced(unit))]
        held = {index for unit in units for index in unit}
        return custom_plan(self.model.policy, units) if len(held) == len(self.model.policy) else None

    def options(self) -> dict[str, object]:
        """Return the scheme."""
        return {"scheme": self.scheme}

    def _patch_around(self, group: Any, name: str, unit: tuple[int, ...], op: Operation) -> None:
        self._put(group, name, WatchedCollective(getattr(group, name), self._watch, op, unit))

    def _put(self, owner: Any, name: str, value: object) -> None:
        before = getattr(owner, name)
        setattr(owner, name, value)
        self._undo.append(lambda: setattr(owner, name, before))


class GradientStamps:
    """Hooks on gradients that stamp when each is there."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._handles: list[Callable[[], None]] = []

    def attach(self, parameters: Sequence[tuple[int, Tensor]]) -> None:
        """Put a hook on each of the numbered parameters, where none is."""
        if not self._handles:
            for index, parameter in parameters:
                hook = make_stamp_hook(self._observer, index)
                handle = parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
                self._handles.append(handle.remove)

    def detach(self) -> None:
        """Take the hooks away."""
        while self._handles:
            self._handles.pop()()


class AloneSubject(TracedModule):
    """A module that is trained without a wrapper that this package knows."""

    def __init__(self, module: nn.Module, observer: Observer) -> None:
        super().__init__(module, collect(module), observer)
        self._stamps = GradientStamps(observer)

    def attach(self) -> None:
        """Put a hook on every gradient."""
        self._stamps.attach(list(enumerate(self.model.tensors)))

    def detach(self) -> None:
        """Take the hooks away."""
        self._stamps.detach()

    def is_synced(self) -> bool:
        """Return that nothing is reduced."""
        return False

    def options(self) -> dict[str, object]:
        """Return nothing."""
        return {}


def subject_of(root: nn.Module, observer: Observer) -> TracedModule:
    """Return the subject of a training loop that calls `root`: the outermost of its modules that is known."""
    for module in root.modules():
        if isinstance(module, nn.parallel.DistributedDataParallel):
            return StockSubject(module, observer)
        if isinstance(module, DistributedDataParallel):
            return OwnSubject(module, observer)
        if isinstance(module, FSDPModule):
            return ShardedSubject(module, observer)
    return AloneSubject(root, observer)


class StockSubject(TracedModule):
    """torch's own DDP: its reducer, hooks and collectives stay as they are."""

    implementation = "torch"

    def __init__(self, module: nn.parallel.DistributedDataParallel, observer: Observer) -> None:
        model = collect(module.module, set(getattr(module, "parameters_to_ignore", ())))
        super().__init__(module, model, observer)
        self._watch: StockWatch | None = None
        self._groups: list[tuple[int, ...]] = []
        self._sizes: tuple[int, ...] = ()

    def attach(self) -> None:
        """Put hooks on every gradient, and a group that stamps under the reducer."""
        if self._watch is None:
            self._watch = StockWatch(self.module, self.model, self._observer)
        self._watch.attach()

    def detach(self) -> None:
        """Give the reducer its group back, and take the hooks away."""
        if self._watch is not None:
            self._watch.detach()

    def name_buckets(self, note: Note) -> None:
        """Ask torch where the sizes have changed; what it answers with is as large as all gradients."""
        sizes = tuple(bucket.size_bytes for bucket in note.buckets)
        if sizes and sizes != self._sizes:
            self._sizes, self._groups = sizes, list_rebuilt_buckets(self.module) or buckets_of(self.module, self.model)
        whole = len(note.buckets) == len(self._groups)
        for bucket in note.buckets:
            bucket.indices = self._groups[bucket.number] if whole else ()

    def plan(self) -> BucketPlan | None:
        """Return torch's buckets, as far as a stamped iteration has shown them."""
        return custom_plan(self.model.policy, self._groups) if self._groups else None

    def options(self) -> dict[str, object]:
        """Return the flags, and the cap, of torch's constructor; None is its default, which is not 25."""
        cap = None if self.module.bucket_bytes_cap_default else self.module.bucket_bytes_cap / 2**20
        return {**super().options(), "bucket_cap_mb": cap}


class OwnSubject(TracedModule):
    """Our own wrapper, whose executor calls an observer by itself, buckets named."""

    implementation = "ddpexec"

    def __init__(self, module: DistributedDataParallel, observer: Observer) -> None:
        super().__init__(module, module.reducer.model, observer)
        self._before = module.observer
        self.scheme = "ddp" if module.schedule is None else module.schedule.scheme

    def attach(self) -> None:
        """Let the reducer tell our observer."""
        if self.module.observer is not self._observer:
            self.module.observe(self._observer)

    def detach(self) -> None:
        """Give the wrapper back the observer that it had."""
        if self.module.observer is not self._before:
            self.module.observe(self._before)

    def plan(self) -> BucketPlan | None:
        """Return the reducer's buckets."""
        plan: BucketPlan = self.module.plan
        return plan


def list_rebuilt_buckets(ddp: nn.parallel.DistributedDataParallel) -> list[tuple[int, ...]]:
    """Return the buckets as torch's log has them once they are rebuilt; nothing before."""
    text = ddp._get_ddp_logging_data().get("rebuilt_per_bucket_param_indices", "")  # type: ignore[no-untyped-call]
    order = reducer_order(ddp)
    groups = [[int(index) for index in group.split()] for group in str(text).split(",") if group.strip()]
    return [tuple(group if order is None else (order[index] for index in group)) for group in groups]
