"""Error feedback: what a codec loses in one iteration is added to the gradient of the next."""

# Annotations stay objects here: torch compares those of a hook with its own.
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import GradBucket
from torch.utils.weak import WeakTensorKeyDictionary

from ddpexec.ddp.compression.codecs import Codec, FlatLayout
from ddpsim.common.errors import InputError

# The newer name where torch has it, since the older one warns there.
_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


class ErrorFeedback:
    """The state of `feedback_hook`: a codec, and on each rank the error it has made so far.

    Args:
        codec: how gradients are written; a gathered message of one rank is decoded by all.
        process_group: where messages go; None is the default group.
        feedback: False forgets errors, which biases training; for comparison.
    """

    def __init__(self, codec: Codec, process_group: dist.ProcessGroup | None = None, feedback: bool = True) -> None:
        self.codec, self.feedback = codec, feedback
        self._group = process_group
        self._layouts: dict[tuple[int, ...], FlatLayout] = {}
        self._errors = WeakTensorKeyDictionary()

    @property
    def group(self) -> dist.ProcessGroup:
        """Where messages go."""
        return self._group or dist.distributed_c10d._get_default_group()

    def layout(self, bucket: GradBucket) -> FlatLayout:
        """Return the layout of a bucket; kept, since it lives on the device.

        Raises:
            InputError: complex gradients, of which no codec knows the sign or the size.
        """
        if bucket.buffer().is_complex():
            what = f"bucket {bucket.index()} has {bucket.buffer().dtype} gradients, and codecs write real numbers"
            raise InputError(what, place="compression", remedy="register no hook, or keep such parameters real")
        lengths = tuple(gradient.numel() for gradient in bucket.gradients())
        if lengths not in self._layouts:
            self._layouts[lengths] = FlatLayout(lengths, bucket.buffer().device)
        return self._layouts[lengths]

    def correct(self, bucket: GradBucket, layout: FlatLayout) -> Tensor:
        """Return a copy of the bucket's gradients, in float32 at least, with the errors kept so far added."""
        flat: Tensor = bucket.buffer()
        corrected = flat.to(torch.promote_types(flat.dtype, torch.float32), copy=True)
        if self.feedback:
            for piece, parameter in zip(layout.pieces(corrected), bucket.parameters(), strict=True):
                if parameter in self._errors:
                    piece += self._errors[parameter]
        return corrected

    def keep(self, bucket: GradBucket, layout: FlatLayout, error: Tensor) -> None:
        """Keep `error` for the next iteration, by parameter, so that it outlives a rebuild of the buckets.

        Infinities and NaN are dropped: they belong to the one iteration that a gradient scaler will skip.
        """
        if self.feedback:
            for piece, parameter in zip(layout.pieces(error.nan_to_num_(0, 0, 0)), bucket.parameters(), strict=True):
                self._errors[parameter] = piece


def feedback_hook(state: ErrorFeedback, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Gather each rank's encoded gradients and return a future of their mean; a sparse bucket is reduced as it is."""
    flat = bucket.buffer()
    if flat.is_sparse:
        return mean_of(flat, state.group)
    layout = state.layout(bucket)
    corrected = state.correct(bucket, layout)
    payload = state.codec.encode(corrected, layout)
    sent = torch.zeros_like(corrected)
    state.codec.decode(payload, layout, sent)
    state.keep(bucket, layout, corrected - sent)
    return gather_mean(state.codec, payload, layout, flat, corrected.dtype, state.group)


def gather_mean(
    codec: Codec, payload: Tensor, layout: FlatLayout, flat: Tensor, dtype: torch.dtype, group: dist.ProcessGroup
) -> torch.futures.Future[torch.Tensor]:
    """Gather `payload` from all ranks; the future holds `flat`, filled with the mean of what they stand for."""
    world_size = group.size()
    everything = payload.new_empty(world_size * payload.numel())
    work = _gather(everything, payload, group=group, async_op=True)

    def decode(_: torch.futures.Future[Any]) -> Tensor:
        total = torch.zeros(flat.shape, dtype=dtype, device=flat.device)
        for message in everything.chunk(world_size):
            codec.decode(message, layout, total)
        return flat.copy_(total.div_(world_size))

    return cast("torch.futures.Future[Tensor]", work.get_future().then(decode))


def mean_of(tensor: Tensor, group: dist.ProcessGroup) -> torch.futures.Future[torch.Tensor]:
    """Return a future of the mean of `tensor` over ranks, by one allreduce."""
    work = dist.all_reduce(tensor, group=group, async_op=True)
    # A callback must not hold the group: its thread would be the last to let it go, and gloo aborts on that.
    world_size = group.size()
    averaged = work.get_future().then(lambda _: tensor.div_(world_size))
    return cast("torch.futures.Future[Tensor]", averaged)
