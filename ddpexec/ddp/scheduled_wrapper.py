"""The wrapper of schemes by its older name: `DistributedDataParallel` with a scheme, and fewer of torch's options."""

from __future__ import annotations

from typing import Any

from torch import nn

from ddpexec.ddp.stepper import ScheduledOptimizer
from ddpexec.ddp.updates import MakeOptimizer
from ddpexec.ddp.wrapper import DistributedDataParallel
from ddpexec.timing.observe import Observer
from ddpsim.bucketing import BucketCaps, BucketPlan
from ddpsim.schedules.schedule import Schedule
from ddpsim.schedules.scheme import Scheme


class ScheduledDataParallel(DistributedDataParallel):
    """Train `module` data parallel by a scheme: `DistributedDataParallel` with `scheme` and `make_optimizer`.

    Args:
        module, scheme, make_optimizer: see that class, as of all others but these.
        caps: of the buckets.
        broadcast_buffers: whether rank 0's buffers are broadcast before a forward.
    """

    schedule: Schedule
    optimizer: ScheduledOptimizer

    def __init__(
        self,
        module: nn.Module,
        scheme: str | Scheme,
        make_optimizer: MakeOptimizer,
        *,
        process_group: Any = None,
        caps: BucketCaps | None = None,
        plan: BucketPlan | None = None,
        overlap: bool = True,
        every: int = 1,
        accumulate: int | None = None,
        find_unused_parameters: bool = False,
        static_graph: bool = False,
        mixed_precision: Any = None,
        broadcast_buffers: bool = True,
        comm: str = "real",
        learn: int = 0,
        observer: Observer | None = None,
    ) -> None:
        caps = caps or BucketCaps()
        super().__init__(
            module,
            process_group=process_group,
            bucket_cap_mb=caps.bucket_cap_mb,
            bucket_cap_mb_list=caps.bucket_cap_mb_list,
            first_bucket_mb=caps.first_bucket_mb,
            find_unused_parameters=find_unused_parameters,
            static_graph=static_graph,
            mixed_precision=mixed_precision,
            forward_sync_buffers=broadcast_buffers,
            scheme=scheme,
            make_optimizer=make_optimizer,
            plan=plan,
            overlap=overlap,
            every=every,
            accumulate=accumulate,
            learn=learn,
            comm=comm,
            observer=observer,
        )
