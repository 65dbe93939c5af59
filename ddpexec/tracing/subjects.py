"""What is traced: stock DDP, ours, a module under torch's `fully_shard`, or one that is trained alone.

Each subject puts its stamps in place for a step that is to be stamped, and takes them away for one that is not.
"""

from __future__ import annotations

from torch import nn
from torch.distributed.fsdp import FSDPModule

from ddpexec.ddp.parameters import collect
from ddpexec.ddp.wrapper import DistributedDataParallel
from ddpexec.running.stock import StockWatch, buckets_of, reducer_order
from ddpexec.timing.observe import Note, Observer
from ddpexec.tracing.alone import AloneSubject
from ddpexec.tracing.traced import TracedModule
from ddpexec.tracing.units import ShardedSubject
from ddpsim.bucketing import BucketPlan
from ddpsim.bucketing.plan import custom_plan


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
    """A wrapper of ours, whose reducer tells an observer by itself, and has named the buckets."""

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
        """Let the reducer tell whom it told before."""
        if self.module.observer is not self._before:
            self.module.observe(self._before)

    def plan(self) -> BucketPlan | None:
        """Return the reducer's buckets."""
        plan: BucketPlan = self.module.plan
        return plan


def list_rebuilt_buckets(ddp: nn.parallel.DistributedDataParallel) -> list[tuple[int, ...]]:
    """Return the buckets as torch's log has them once they are rebuilt; nothing before."""
    told = ddp._get_ddp_logging_data().get("rebuilt_per_bucket_param_indices", "")  # type: ignore[no-untyped-call]
    order = reducer_order(ddp)
    groups = [[int(index) for index in group.split()] for group in str(told).split(",") if group.strip()]
    return [tuple(group if order is None else (order[index] for index in group)) for group in groups]
