"""A module under torch's `fully_shard`, its collectives stamped by wrappers around those that it uses.

Nothing of torch's order, groups or memory changes: what a unit gathered and reduced with is called, and put back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn
from torch.distributed.fsdp import FSDPModule

from ddpexec.ddp.fully_sharded import CollectiveWatch, WatchedCollective, WatchedReplicas
from ddpexec.ddp.parameters import collect
from ddpexec.timing.observe import Observer
from ddpexec.tracing.alone import GradientStamps
from ddpexec.tracing.traced import TracedModule
from ddpsim.bucketing import BucketPlan
from ddpsim.bucketing.plan import custom_plan
from ddpsim.common.operation import Operation


class ShardedSubject(TracedModule):
    """A module whose units torch shards; collectives are counted in the order of their launches."""

    implementation = "fsdp2"

    def __init__(self, module: nn.Module, observer: Observer) -> None:
        super().__init__(module, collect(module), observer)
        tensors = (*self.model.tensors, *self.model.frozen_tensors)
        place = {parameter: index for index, parameter in enumerate(tensors)}
        found = [each for each in module.modules() if isinstance(each, FSDPModule)]
        self._units = [
            (group, tuple(place[each.sharded_param] for each in group.fsdp_params if each.sharded_param in place))
            for each in found
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
        made = [(index, getattr(each, "_unsharded_param", None)) for index, each in self._parameters.items()]
        self._stamps.attach([(index, tensor) for index, tensor in made if tensor is not None])

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
