"""From a scheme's name to the state and the hook that run it.

`powersgd_hook` is PowerSGD (Vogels et al. 2019) by torch's own hook, for gradients of any shape and for those that are
zero.
"""

# No `from __future__ import annotations`: torch compares the annotations of a hook with its own classes.
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as torch_hook

from ddpexec.ddp.compression.codecs import OneBitCodec, TopKCodec
from ddpexec.ddp.compression.feedback import AdaptiveState, ErrorFeedback, adaptive_hook, feedback_hook
from ddpexec.groups.process_groups import timeout_of
from ddpexec.groups.timeouts import wait_within
from ddpsim.schedules import compression

START_ITERATION = 10
"""The first compressed iteration: after the rebuild of the buckets, which PowerSGD's state would not outlive."""
EPSILON = 1e-8
"""Added to the norm of a column before it is divided by it; as torch's documentation suggests.

torch's default is 0: the gradient of a parameter that no rank used is zero, its columns become 0 / 0, and error
feedback keeps that, so that its weights are NaN from the next iteration that uses it on.
"""


def powersgd_state(rank: int, process_group: dist.ProcessGroup | None, feedback: bool) -> torch_hook.PowerSGDState:
    """Return the state of `powersgd_hook`.

    Args:
        rank: of the two factors of each gradient.
        process_group: where messages go; None is the default group.
        feedback: False forgets what compression lost.
    """
    return torch_hook.PowerSGDState(
        process_group,
        matrix_approximation_rank=rank,
        start_powerSGD_iter=START_ITERATION,
        min_compression_rate=compression.MIN_COMPRESSION_RATE,
        use_error_feedback=feedback,
        orthogonalization_epsilon=EPSILON,
    )


def powersgd_hook(state: torch_hook.PowerSGDState, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Reduce a bucket by torch's hook, and return a future of the mean gradient.

    A bucket takes three collectives, and torch starts each in a callback of the one before. Over NCCL callbacks run
    where the first is called, so all ranks have one order. Over gloo they run in its threads once the one before is
    over, so with several buckets ranks would pair one bucket's factors with another's, or wait for each other: there a
    bucket ends before this returns.
    """
    future: torch.futures.Future[torch.Tensor] = torch_hook.powerSGD_hook(state, _Viewable(bucket))
    if "nccl" not in dist.get_backend(state.process_group):
        wait_within(future, timeout_of(cast("dist.ProcessGroup", state.process_group or dist.group.WORLD)))
    return future


@dataclass(frozen=True, slots=True)
class _Viewable:
    """A bucket whose gradients torch's hook can view as matrices and as vectors.

    The hook fails on scalars, on tensors without elements, and on those whose dimensions do not lie in memory in their
    order, as of weights in `torch.channels_last`.
    """

    bucket: Any

    def index(self) -> int:
        return int(self.bucket.index())

    def is_last(self) -> bool:
        return bool(self.bucket.is_last())

    def buffer(self) -> Tensor:
        return self.bucket.buffer()  # type: ignore[no-any-return]

    def gradients(self) -> list[Tensor]:
        return [_view_in_memory_order(gradient) for gradient in self.bucket.gradients() if gradient.numel()]


def _view_in_memory_order(gradient: Tensor) -> Tensor:
    """Return a view whose dimensions are in the order of memory; of a scalar one of a single element."""
    if gradient.dim() == 0:
        return gradient.view(1)
    if gradient.is_contiguous():
        return gradient
    return gradient.permute(sorted(range(gradient.dim()), key=gradient.stride, reverse=True))


def hook_for(
    name: str, process_group: dist.ProcessGroup | None = None, *, feedback: bool = True
) -> tuple[Any, Callable[..., Any]]:
    """Return (state, hook) for `register_comm_hook`, by a name that `ddpsim.schedules.compression.scheme` reads.

    fp16 and bf16 are torch's own hooks, PowerSGD is torch's behind `powersgd_hook`; signs, top-k and adaptive precision
    come with error feedback, and the last finds the bits that its name gives a prediction by itself. Without `feedback`
    schemes that would keep their errors forget them, for comparison.
    """
    scheme = compression.scheme(name)
    if isinstance(scheme, compression.PowerSGD):
        return powersgd_state(scheme.rank, process_group, feedback), powersgd_hook
    if isinstance(scheme, compression.OneBit):
        return ErrorFeedback(OneBitCodec(), process_group, feedback), feedback_hook
    if isinstance(scheme, compression.TopK):
        return ErrorFeedback(TopKCodec(scheme.density), process_group, feedback), feedback_hook
    if isinstance(scheme, compression.AdaptivePrecision):
        return AdaptiveState(process_group=process_group, feedback=feedback), adaptive_hook
    hooks = {
        "none": default_hooks.allreduce_hook,
        "fp16": default_hooks.fp16_compress_hook,
        "bf16": default_hooks.bf16_compress_hook,
    }
    return process_group, hooks[scheme.name]
