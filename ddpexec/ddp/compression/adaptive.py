"""Adaptive precision: for each bucket the fewest bits that its gradients bear."""

# Annotations stay objects here: torch compares those of a hook with its own.
import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import GradBucket

from ddpexec.ddp.compression.codecs import Codec, FlatLayout, HalfCodec, LinearCodec, OneBitCodec
from ddpexec.ddp.compression.feedback import ErrorFeedback, feedback_hook, mean_of
from ddpsim.common.errors import InputError

CODECS: dict[int, Codec] = {1: OneBitCodec(), 8: LinearCodec(), 16: HalfCodec()}
"""Bits an element to codec; 32 is an allreduce of the gradients as they are."""


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
