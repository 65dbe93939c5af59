"""What is traced: stock DDP, ours, a module under torch's `fully_shard`, or one that is trained alone.

Each subject puts its stamps in place for a step that is to be stamped, and takes them away for one that is not.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule

from ddpexec.ddp.parameters import ModelParameters, collect
from ddpexec.ddp.wrapper import DistributedDataParallel
from ddpexec.running.stock import StockWatch, buckets_of, reducer_order
from ddpexec.timing.observe import Note, Observer
from ddpexec.tracing.alone import AloneSubject
from ddpexec.tracing.units import ShardedSubject
from ddpsim.bucketing import BucketPlan
from ddpsim.bucketing.plan import custom_plan


class TracedModule(Protocol):
    """A module whose steps are traced.

    Attributes:
        implementation: as `run.json` tells it: `torch`, `ddpexec`, `fsdp2` or `none`.
        scheme: what carries gradients, by the name of a schedule.
        module: whose forward begins an iteration.
        model: its parameters, in registration order.
        group: of the ranks that train it together; None where it is trained alone.
    """

    implementation: str
    scheme: str
    module: nn.Module
    model: ModelParameters
    group: dist.ProcessGroup | None

    def attach(self) -> None:
        """Put the stamps in place, where they are not."""

    def detach(self) -> None:
        """Take the stamps away; the module is as it was."""

    def begin(self) -> None:
        """A forward of a stamped iteration begins, which the observer has opened."""

    def is_synced(self) -> bool:
        """Return whether the forward that begins will have its gradients reduced."""

    def name_buckets(self, note: Note) -> None:
        """Write down which parameters the buckets of a closed iteration hold, where that is not known yet."""

    def plan(self) -> BucketPlan | None:
        """Return the buckets in force; None where there are none."""

    def options(self) -> dict[str, object]:
        """Return what is known of how the job was asked for, by the names of a job's options."""


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


class _Wrapped:
    """What torch's DDP and ours have in common."""

    scheme = "ddp"
    module: Any
    model: ModelParameters

    def begin(self) -> None:
        """Do nothing: the wrapped module has hooks of its own."""

    def is_synced(self) -> bool:
        """Return that it will, except under `no_sync`."""
        return bool(self.module.require_backward_grad_sync)

    def _options(self) -> dict[str, object]:
        ddp = self.module
        names = ("find_unused_parameters", "gradient_as_bucket_view", "static_graph", "broadcast_buffers")
        return {name: bool(getattr(ddp, name)) for name in names if hasattr(ddp, name)}


class StockSubject(_Wrapped):
    """torch's own DDP: its reducer, hooks and collectives stay as they are."""

    implementation = "torch"

    def __init__(self, module: nn.parallel.DistributedDataParallel, observer: Observer) -> None:
        self.module, self._observer = module, observer
        self.model = collect(module.module, set(getattr(module, "parameters_to_ignore", ())))
        self.group: dist.ProcessGroup | None = module.process_group
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
        return {**self._options(), "bucket_cap_mb": cap}


class OwnSubject(_Wrapped):
    """Our DDP, whose reducer tells an observer by itself."""

    implementation = "ddpexec"

    def __init__(self, module: DistributedDataParallel, observer: Observer) -> None:
        self.module, self._observer, self._before = module, observer, module.observer
        self.model: ModelParameters = module.reducer.model
        self.group: dist.ProcessGroup | None = module.process_group

    def attach(self) -> None:
        """Let the reducer tell our observer."""
        if self.module.observer is not self._observer:
            self.module.observe(self._observer)

    def detach(self) -> None:
        """Let the reducer tell whom it told before."""
        if self.module.observer is not self._before:
            self.module.observe(self._before)

    def name_buckets(self, note: Note) -> None:
        """Do nothing: the reducer has named them."""

    def plan(self) -> BucketPlan | None:
        """Return the reducer's buckets."""
        plan: BucketPlan = self.module.reducer.plan
        return plan

    def options(self) -> dict[str, object]:
        """Return the flags of the constructor."""
        return self._options()


def list_rebuilt_buckets(ddp: nn.parallel.DistributedDataParallel) -> list[tuple[int, ...]]:
    """Return the buckets as torch's log has them once they are rebuilt; nothing before."""
    told = ddp._get_ddp_logging_data().get("rebuilt_per_bucket_param_indices", "")  # type: ignore[no-untyped-call]
    order = reducer_order(ddp)
    groups = [[int(index) for index in group.split()] for group in str(told).split(",") if group.strip()]
    return [tuple(group if order is None else (order[index] for index in group)) for group in groups]
