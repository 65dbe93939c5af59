"""Compression hooks with error feedback: what a codec loses in one iteration is added to the gradient of the next.

`feedback_hook` runs one codec for all buckets; `adaptive_hook` finds for each bucket the fewest bits that its gradients
bear.
"""

# No `from __future__ import annotations`: torch compares the annotations of a hook with its own classes.
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import GradBucket
from torch.utils.weak import WeakTensorKeyDictionary

from ddpexec.ddp.compression.codecs import Codec, FlatLayout, HalfCodec, LinearCodec, OneBitCodec
from ddpsim.common.errors import InputError

# The newer name where torch has it, since the older one warns there.
_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor

CODECS: dict[int, Codec] = {1: OneBitCodec(), 8: LinearCodec(), 16: HalfCodec()}
"""Bits an element to codec; 32 is an allreduce of the gradients as they are."""


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
        """Return the layout of a bucket, cached because it is on the device.

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


class AdaptiveState(ErrorFeedback):
    """The state of `adaptive_hook` knows with how many bits each bucket is written now.

    Every so many iterations the *reduced* gradient of a bucket, which is the same on all ranks, is written with 1, 8
    and 16 bits; the fewest that lose no more than `tolerance` are used from then on. So ranks agree without a word. On
    a GPU the host learns the outcome when the bucket starts again, not in the midst of backward.

    Args:
        tolerance: relative error, |g - written g| / |g|, that is borne; error feedback makes up for it over time.
        every: iterations between two choices.
        process_group: where messages go; None is the default group.
        feedback: False forgets errors, as of `ErrorFeedback`.

    Attributes:
        bits: bucket index to bits in force; 32 until the first choice.
    """

    def __init__(
        self,
        tolerance: float = 0.05,
        every: int = 20,
        process_group: dist.ProcessGroup | None = None,
        feedback: bool = True,
    ) -> None:
        super().__init__(CODECS[16], process_group, feedback)
        if tolerance < 0:
            raise InputError(f"tolerance {tolerance!r} is negative", remedy="give a relative error, e.g. 0.05")
        if every < 1:
            raise InputError(f"every {every!r} is out of range", remedy="give a whole number of at least 1")
        self.tolerance, self.every = tolerance, every
        self.bits: dict[int, int] = {}
        self._shapes: dict[int, tuple[int, ...]] = {}
        self._seen: dict[int, int] = {}
        self._outcomes: dict[int, tuple[Tensor, torch.cuda.Event]] = {}

    def start(self, bucket: GradBucket) -> int:
        """Return the bits for this bucket; a bucket that was rebuilt starts anew."""
        index, shape = bucket.index(), tuple(self.layout(bucket).lengths)
        if self._shapes.get(index) != shape:
            self._shapes[index], self._seen[index], self.bits[index] = shape, 0, 32
            self._outcomes.pop(index, None)
        elif index in self._outcomes:
            self.bits[index] = _read_bits(*self._outcomes.pop(index))
        return self.bits[index]

    def choose(self, bucket: GradBucket, reduced: Tensor) -> None:
        """Count an iteration of this bucket and, where it is time, choose its bits from the reduced gradient."""
        index = bucket.index()
        if self._seen[index] % self.every == 0:
            if reduced.is_cuda:
                self._outcomes[index] = self._try_codecs(reduced.float(), bucket)
            else:
                self.bits[index] = self._find_fewest_bits(reduced.float(), bucket)
        self._seen[index] += 1

    def _find_fewest_bits(self, reduced: Tensor, bucket: GradBucket) -> int:
        layout, norm = self.layout(bucket), reduced.norm()
        if not bool(norm.isfinite()):
            return 32
        for bits, codec in CODECS.items():
            if bool(self._is_borne(codec, reduced, norm, layout)):
                return bits
        return 32

    def _is_borne(self, codec: Codec, reduced: Tensor, norm: Tensor, layout: FlatLayout) -> Tensor:
        written = torch.zeros_like(reduced)
        codec.decode(codec.encode(reduced, layout), layout, written)
        borne: Tensor = (written - reduced).norm() <= self.tolerance * norm
        return borne

    def _try_codecs(self, reduced: Tensor, bucket: GradBucket) -> tuple[Tensor, torch.cuda.Event]:
        """Return whether the gradient is finite and which codecs it bears, on its way to the host, and the arrival."""
        layout, norm = self.layout(bucket), reduced.norm()
        borne = [self._is_borne(codec, reduced, norm, layout) for codec in CODECS.values()]
        outcome = torch.empty(1 + len(borne), dtype=torch.bool, pin_memory=True)
        outcome.copy_(torch.stack([norm.isfinite(), *borne]), non_blocking=True)
        arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
        arrived.record(torch.cuda.current_stream(reduced.device))
        return outcome, arrived


def _read_bits(outcome: Tensor, arrived: torch.cuda.Event) -> int:
    arrived.synchronize()
    finite, *borne = outcome.tolist()
    return next((bits for bits, good in zip(CODECS, borne, strict=True) if finite and good), 32)


def adaptive_hook(state: AdaptiveState, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Reduce a bucket with the bits in force, and return a future of the mean gradient."""
    flat = bucket.buffer()
    if flat.is_sparse:
        return mean_of(flat, state.group)
    bits = state.start(bucket)
    if bits == 32:
        layout = state.layout(bucket)
        corrected = state.correct(bucket, layout)
        state.keep(bucket, layout, torch.zeros_like(corrected))
        future = mean_of(flat.copy_(corrected), state.group)
    else:
        state.codec = CODECS[bits]
        future = feedback_hook(state, bucket)

    def choose(done: torch.futures.Future[torch.Tensor]) -> Tensor:
        reduced = done.value()
        state.choose(bucket, reduced)
        return reduced

    return future.then(choose)
