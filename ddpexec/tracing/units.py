"""A module under torch's `fully_shard`, its collectives stamped by wrappers around those that it uses.

Nothing of torch's order, groups or memory changes: what a unit gathered and reduced with is called, and put back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from ddpexec.ddp.compiling import disable_compile
from ddpexec.ddp.parameters import ModelParameters, collect
from ddpexec.timing.observe import Note, Observer
from ddpexec.tracing.alone import GradientStamps
from ddpsim.bucketing import BucketPlan
from ddpsim.bucketing.plan import custom_plan
from ddpsim.operations import Operation


class ShardedSubject:
    """A module whose units torch shards; collectives are counted in the order of their launches.

    On a CPU a collective is launched and waited for in one call. On a GPU its end is an event on the stream that torch
    launched it on; computation's wait for that is not told.
    """

    implementation = "fsdp2"

    def __init__(self, module: nn.Module, observer: Observer) -> None:
        self.module, self._observer = module, observer
        self.model: ModelParameters = collect(module)
        place = {parameter: index for index, parameter in enumerate(self.model.tensors)}
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
            if each.sharded_param in place
        }
        mesh = self._units[0][0].mesh_info if self._units else None
        self._replicas = getattr(mesh, "replicate_process_group", None)
        self.group: dist.ProcessGroup | None = dist.group.WORLD
        shards = getattr(mesh, "shard_mesh_size", None)
        self.scheme = "fsdp2" if self._replicas is None else f"hsdp:{shards}"
        self._stamps = GradientStamps(observer)
        self._undo: list[Callable[[], object]] = []

    def attach(self) -> None:
        """Stand around each unit's collectives, and put hooks on the gradients that exist since the first forward."""
        if not self._undo:
            for group, unit in self._units:
                self._patch_around(group, "_all_gather_comm", unit, Operation.ALL_GATHER)
                self._patch_around(group, "_reduce_scatter_comm", unit, Operation.REDUCE_SCATTER)
                replicas = getattr(group.mesh_info, "replicate_process_group", None)
                if replicas is not None:
                    self._put(group.mesh_info, "replicate_process_group", _Replicas(replicas, self, unit))
        made = [(index, getattr(each, "_unsharded_param", None)) for index, each in self._parameters.items()]
        self._stamps.attach([(index, tensor) for index, tensor in made if tensor is not None])

    def detach(self) -> None:
        """Put back what the units gathered and reduced with, and take the hooks away."""
        while self._undo:
            self._undo.pop()()
        self._stamps.detach()

    def begin(self) -> None:
        """Let waits count one by one."""
        if self.module is not None and self._observer.note is not None and self._observer.note.waits is None:
            self._observer.note_schedule()

    def is_synced(self) -> bool:
        """Return whether gradients are reduced, as `set_requires_gradient_sync` says."""
        return all(bool(group.reduce_grads) for group, _ in self._units)

    def name_buckets(self, note: Note) -> None:
        """Do nothing: a collective is of its unit."""

    def plan(self) -> BucketPlan | None:
        """Return the units as buckets, in the order of backward."""
        units = [unit for _, unit in reversed(self._units) if unit]
        held = {index for unit in units for index in unit}
        return custom_plan(self.model.policy, units) if len(held) == len(self.model.policy) else None

    def options(self) -> dict[str, object]:
        """Return the scheme."""
        return {"scheme": self.scheme}

    @disable_compile
    def around(self, op: Operation, unit: tuple[int, ...], size_bytes: int, call: Callable[[], Any]) -> Any:
        """Make a collective by `call`, and note it."""
        observer = self._observer
        if observer.note is None:
            return call()
        begin = observer.now()
        work = call()
        number = len(observer.note.buckets)
        if work is not None:
            observer.note_launch(number, unit, size_bytes, begin, work, op)
            return work
        end = observer.now()
        note = observer.note_collective(number, unit, size_bytes, begin, end, op)
        if note is not None and self.model.tensors[0].device.type == "cpu":
            observer.note_message_wait(note, begin)
        return work

    def _patch_around(self, group: Any, name: str, unit: tuple[int, ...], op: Operation) -> None:
        self._put(group, name, _Comm(getattr(group, name), self, unit, op))

    def _put(self, owner: Any, name: str, value: object) -> None:
        before = getattr(owner, name)
        setattr(owner, name, value)
        self._undo.append(lambda: setattr(owner, name, before))


class _Comm:
    """Passes one unit's collective on to what torch, or the user, has set for it."""

    def __init__(self, inner: Any, subject: ShardedSubject, unit: tuple[int, ...], op: Operation) -> None:
        self._inner, self._subject, self._unit, self._op = inner, subject, unit, op

    def allocate(self, *args: Any, **kwargs: Any) -> Tensor:
        """Allocate as what is wrapped does."""
        tensor: Tensor = self._inner.allocate(*args, **kwargs)
        return tensor

    @disable_compile
    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        whole = output_tensor if self._op is Operation.ALL_GATHER else input_tensor
        return self._subject.around(
            self._op, self._unit, whole.nbytes, lambda: self._inner(output_tensor, input_tensor, *args, **kwargs)
        )


class _Replicas(dist.ProcessGroup):
    """Passes the allreduces of one unit between replicas on to `group`."""

    def __init__(self, group: dist.ProcessGroup, subject: ShardedSubject, unit: tuple[int, ...]) -> None:
        super().__init__(group.rank(), group.size())  # type: ignore[call-arg]
        self._inner, self._subject, self._unit = group, subject, unit

    @disable_compile
    def allreduce(self, tensors: Any, options: Any = None) -> Any:  # type: ignore[override]
        """Pass an allreduce on; where it runs on a CPU, wait for it as its caller would next."""
        works = []

        def call() -> None:
            works.append(self._inner.allreduce(tensors, options))
            works[0].wait()

        self._subject.around(Operation.ALLREDUCE, self._unit, tensors[0].nbytes, call)
        return works[0]

    @disable_compile
    def getBackendName(self) -> str:  # noqa: N802
        """Return the backend's name."""
        return str(dist.get_backend(self._inner))
