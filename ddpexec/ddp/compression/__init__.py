"""Compressed communication hooks: 1 bit with error feedback, 8 bits, top-k, adaptive precision.

They take a `GradBucket` and return a future of one tensor, so they run under torch's DDP and under ours::

    state, hook = hook_for("onebit")
    ddp.register_comm_hook(state, hook)

torch's own fp16, bf16 and PowerSGD hooks come from `hook_for` too, by the names that
`ddpsim.schedules.compression.scheme` reads.
"""

from ddpexec.ddp.compression.codecs import Codec, FlatLayout, HalfCodec, LinearCodec, OneBitCodec, TopKCodec
from ddpexec.ddp.compression.feedback import AdaptiveState, ErrorFeedback, adaptive_hook, feedback_hook
from ddpexec.ddp.compression.schemes import hook_for

__all__ = [
    "AdaptiveState",
    "Codec",
    "ErrorFeedback",
    "FlatLayout",
    "HalfCodec",
    "LinearCodec",
    "OneBitCodec",
    "TopKCodec",
    "adaptive_hook",
    "feedback_hook",
    "hook_for",
]
