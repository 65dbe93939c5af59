"""From a scheme's name to the state and the hook that run it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

from ddpexec.ddp.compression.adaptive import AdaptiveState, adaptive_hook
from ddpexec.ddp.compression.codecs import OneBitCodec, TopKCodec
from ddpexec.ddp.compression.feedback import ErrorFeedback, feedback_hook
from ddpexec.ddp.compression.powersgd import powersgd_hook, powersgd_state
from ddpsim.schedules import compression


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
