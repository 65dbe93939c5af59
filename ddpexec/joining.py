"""Uneven inputs: a rank that has run out shadows the collectives of those that have not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import JoinHook

from ddpexec.flat import FlatBucket
from ddpexec.parameters import broadcast_state

if TYPE_CHECKING:
    from ddpexec.ddp import DistributedDataParallel


class ShadowHook(JoinHook):
    """What a rank without input does, once for every iteration of those that have some."""

    def __init__(self, ddp: DistributedDataParallel) -> None:
        self._ddp = ddp

    def main_hook(self) -> None:
        """Take part in one iteration with gradients of zero."""
        ddp = self._ddp
        reducer = ddp.reducer
        reducer.rebuild()
        if ddp.buffers_due(after_forward=False):
            ddp.buffer_sync.synchronise(common_rank(ddp, candidate=False))
        synced = backward_is_synced(ddp, joined=True)
        ddp.require_forward_param_sync = synced
        if not synced:
            return
        zeros = [bucket for bucket in reducer.buckets if isinstance(bucket, FlatBucket)]
        for bucket in zeros:
            bucket.buffer.zero_()
        works = [(bucket, reducer.in_flight.send(bucket, place)) for place, bucket in enumerate(zeros)]
        for bucket, work in works:
            reducer.in_flight.wait(work, bucket)
        if reducer.options.searching:
            reducer.used.reduce(len(works))
            reducer.used.finish(keep=False)
        reducer.observe_order(())

    def post_hook(self, is_last_joiner: bool) -> None:
        """Give every rank the model of the rank that trained longest."""
        ddp = self._ddp
        source = ddp._authoritative_rank = common_rank(ddp, candidate=is_last_joiner)
        broadcast_state(
            ddp.module, ddp.communicator, ddp.parameters_to_ignore, buffers=ddp.forward_sync_buffers, source=source
        )


def backward_is_synced(ddp: DistributedDataParallel, *, joined: bool) -> bool:
    """Tell joined ranks whether the others reduce their gradients this iteration; each rank calls this."""
    flag = torch.tensor([float(not joined and ddp.require_backward_grad_sync)], device=_control(ddp))
    dist.all_reduce(flag, group=ddp.process_group)
    return bool(flag.item())


def common_rank(ddp: DistributedDataParallel, *, candidate: bool) -> int:
    """Return the highest rank among the candidates; every rank calls this."""
    rank = torch.tensor([ddp.communicator.rank if candidate else -1], device=_control(ddp))
    dist.all_reduce(rank, op=dist.ReduceOp.MAX, group=ddp.process_group)
    return int(rank.item())


def active_ranks(work: Any) -> int:
    """Return how many ranks still have input, from the notification that each of them sends before forward."""
    work.wait()
    return int(work.result()[0].item())


def _control(ddp: DistributedDataParallel) -> torch.device:
    return ddp.communicator.device_for(ddp.device)
