"""Bytes of device memory that a rank of a data-parallel job needs at the peak of its step, and whether they fit.

What is alive together: parameters, module buffers, optimizer state and DDP's buckets all the time; activations while
forward and backward run; gradients from their backward to the end of the optimizer's step. `zero_grad()` frees the
gradients unless they live in buckets or are kept for the next micro-batch, so that a step's peak is either where
backward begins (all activations, no gradient) or in the optimizer (all gradients and its temporaries, no activation).

A schedule's `Sharding` splits parameters, gradients and the optimizer's state over ranks; what it has gathered, and
buffers in which gradients are staged, are alive as backward begins.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ddpsim.bucketing import BucketPlan
from ddpsim.schedules.schedule import Schedule
from ddpsim.simulation.jobs.device_split import held_by
from ddpsim.simulation.jobs.job_options import JobOptions
from ddpsim.topology.gpus.table import find_shipped_gpu
from ddpsim.workload import Workload
from ddpsim.workload.gpus import gpu_of, kind_of

STATES = {"sgd": 0, "momentum": 1, "adam": 2, "adamw": 2, "adagrad": 1, "rmsprop": 1}
"""Tensors of a parameter's size that an optimizer keeps beside it (`torch/optim/*.py`, torch 2.13)."""

_IN_PLACE = ("sgd", "momentum")
"""Optimizers whose step makes no tensor of a parameter's size; Adam's makes the square roots by which it divides."""

_DDP = Schedule(scheme="ddp", messages=())
"""Shards nothing, and every rank updates all it has."""

_MASTER_BYTES = 4
"""Bytes of an element that an optimizer updates in a copy of its own, and of its state: fp32."""

CONTEXT_BYTES = 600 << 20
"""What CUDA, cuBLAS, cuDNN and NCCL take beside the allocator: 400 to 800 MiB are seen with `nvidia-smi`."""

SLACK = (0.02, 0.12)
"""Share by which an allocator holds more than is alive, 10th and 90th percentile: prior, the gap of
`max_memory_reserved` over `max_memory_allocated` of training steps without changing shapes."""


_PARTS = (
    "parameters_bytes", "gradients_bytes", "optimizer_bytes", "buckets_bytes", "activations_bytes", "gathered_bytes",
    "resident_bytes", "host_bytes",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Memory:
    """Device memory of one rank.

    Attributes:
        parameters_bytes: of parameters, frozen ones too, and module buffers.
        gradients_bytes: of gradients, wherever they live.
        optimizer_bytes: of the optimizer's state, with its own copy of the parameters where it has one.
        buckets_bytes: of buckets beside the gradients: none where gradients are views of their bucket.
        gathered_bytes: of parameters gathered from other ranks as backward begins, and of buffers for gradients then.
        resident_bytes: what stays from step to step.
        host_bytes: of parameters, gradients and optimizer state that are on the host instead.
        activations_bytes: of all else that is alive at the peak; None where the workload does not know.
        step_bytes: alive at the peak of the step, from the parts above.
        capacity_bytes: of the device; None where it is not known.
        batch_size: samples a rank that the activations are of.
    """

    parameters_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    buckets_bytes: int
    activations_bytes: int | None
    step_bytes: int
    capacity_bytes: int | None
    batch_size: int
    gathered_bytes: int = 0
    resident_bytes: int = 0
    host_bytes: int = 0

    @classmethod
    def of(
        cls,
        workload: Workload,
        plan: BucketPlan,
        job: JobOptions,
        capacity_bytes: float | None,
        schedule: Schedule = _DDP,
        device: int = 0,
    ) -> Memory:
        """Return the memory of a rank that trains `workload` under `plan`.

        Args:
            capacity_bytes: of the device's memory; None where it is not known.
            schedule: says what is sharded, and who updates.
            device: which of the rank's, where it has several: activations are on each by its share of forward's time.
        """
        sharding = schedule.sharding
        # What this rank trains, and on which of its devices: a stage has some layers, `held_by` some of those.
        trained = {index for bucket in plan.buckets for index in bucket.parameters}
        here = held_by(workload, device)
        chosen = [p for index, p in enumerate(workload.parameters) if index in trained and index in here.parameters]
        gradients = _shard(sum(p.size_bytes for p in chosen), sharding.gradients)
        whole = sum(workload.parameters[i].size_bytes for i in here.parameters) + here.frozen_bytes
        parameters = _shard(whole, sharding.parameters)
        kind = workload.optimizer_kind or "momentum"
        updated = [_MASTER_BYTES * p.numel if sharding.master else p.size_bytes for p in chosen]
        # An optimizer keeps so many tensors of a parameter's size; an unknown one as many as Adam.
        names = (name.partition("+")[0].partition("-")[0] for name in kind.split(","))
        tensors = max(STATES.get(name, 2) for name in names) + (1 if sharding.master else 0)
        elsewhere = schedule.update == "elsewhere"  # a parameter server has the optimizer
        state = 0 if elsewhere else _shard(tensors * sum(updated), sharding.optimizer)
        temporary = 0 if elsewhere else _shard(_temporary_bytes(kind, updated), sharding.optimizer)
        host = 0
        if sharding.offload is not None:
            # FSDP2's offload: parameters, gradients and the update are on the host; gathered copies stay here.
            host = parameters + gradients + state
            parameters = gradients = state = temporary = 0
        parameters += sum(buffer.size_bytes for buffer in here.buffers)
        # A scheme that stages gradients in buffers of its own has no DDP buckets.
        has_buckets = sharding.staging_bytes is None
        bucketed = sum(b.size_bytes for b in plan.buckets if here.parameters.issuperset(b.parameters))
        buckets = 0 if job.gradient_as_bucket_view or not has_buckets else bucketed
        # Gradients outlive `zero_grad()` where they are views of their bucket or are accumulated.
        lasting = gradients if (job.gradient_as_bucket_view and has_buckets) or job.accumulate > 1 else 0
        gathered = sharding.gathered_bytes + (sharding.staging_bytes or 0)
        # The peak is where backward begins or in the optimizer; see the top of this file.
        in_backward = lasting + gathered + (here.activations_bytes or 0)
        in_optimizer = gradients + temporary
        resident = parameters + state + buckets + sharding.kept_bytes
        return cls(
            parameters,
            gradients,
            state,
            buckets,
            here.activations_bytes,
            resident + max(in_backward, in_optimizer),
            None if capacity_bytes is None else int(capacity_bytes),
            workload.batch_size,
            gathered,
            resident + lasting,
            host,
        )

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Memory:
        """Return what `document` says."""
        known = {name: document[name] for name in (*_PARTS, "capacity_bytes", "batch_size")}
        return cls(step_bytes=document["alive_bytes"], **known)

    @property
    def fits(self) -> bool | None:
        """Whether the device holds it with the slack of its allocator; None where that cannot be told."""
        if self.capacity_bytes is None:
            return None
        # Between the two ends of the slack it may or may not fit; without activations more is needed than is counted,
        # so that only "does not fit" can be said.
        if self._needed(1 + SLACK[1]) <= self.capacity_bytes:
            return None if self.activations_bytes is None else True
        return False if self._needed(1 + SLACK[0]) > self.capacity_bytes else None

    @property
    def in_doubt(self) -> bool:
        """Whether all of it is known, and it still may or may not fit."""
        return self.fits is None and self.activations_bytes is not None and self.capacity_bytes is not None

    def text(self) -> str:
        """Return it in words: `9.1 GiB of 16.0, fits; the largest batch that fits is 57`."""
        gib = 1 << 30
        parts = f"{'' if self.activations_bytes is not None else 'over '}{self.step_bytes / gib:.1f} GiB"
        if self.capacity_bytes is None:
            return parts
        verdict = {True: "fits", False: "does NOT fit", None: "may not fit"}[self.fits]
        if self.fits is None and self.activations_bytes is None:
            verdict = "activations are not known"
        largest = self.largest_batch_size
        batch = "" if largest is None else f"; the largest batch that fits is {largest}"
        return f"{parts} of {self.capacity_bytes / gib:.1f}, {verdict}{batch}"

    @property
    def least_bytes(self) -> int:
        """What the device must have at least, with the smaller slack of its allocator."""
        return int(self._needed(1 + SLACK[0]))

    @property
    def largest_batch_size(self) -> int | None:
        """The most samples a rank that fit, activations in proportion to them; None where that cannot be told."""
        if self.capacity_bytes is None or not self.activations_bytes:
            return None
        room = (self.capacity_bytes - CONTEXT_BYTES) / (1 + SLACK[1]) - (self.step_bytes - self.activations_bytes)
        return max(int(room * self.batch_size / self.activations_bytes), 0)

    def document(self) -> dict[str, object]:
        """Return the `memory` document of a prediction."""
        return {
            **{name: getattr(self, name) for name in _PARTS},
            "alive_bytes": self.step_bytes,
            "total_bytes": int(self._needed(1 + sum(SLACK) / 2)),
            "capacity_bytes": self.capacity_bytes,
            "batch_size": self.batch_size,
            "largest_batch_size": self.largest_batch_size,
            "total_low_bytes": self.least_bytes,
            "total_high_bytes": int(self._needed(1 + SLACK[1])),
            "fits": self.fits,
        }

    def _needed(self, slack: float) -> float:
        return self.step_bytes * slack + CONTEXT_BYTES


def capacity_bytes(workload: Workload, models: Sequence[str]) -> float | None:
    """Return the memory of the smallest of a machine's GPUs; None where one of them is not known.

    A machine names a GPU's kind (`A100`); where the workload is of a form of that kind (`A100-80GB`), or its file
    describes the GPU, it is that one.

    Args:
        workload: that is to run on them.
        models: of the GPUs, as the topology names them.
    """
    own = gpu_of(workload.device, workload.provenance)
    same = kind_of(workload.device).lower()

    def one(model: str) -> float | None:
        if own is not None and own.spec.memory is not None and kind_of(model).lower() == same:
            return own.spec.memory
        spec = find_shipped_gpu(model)
        return None if spec is None else spec.memory

    sizes = [one(model) for model in dict.fromkeys(models)]
    return min((size for size in sizes if size is not None), default=None) if all(sizes) else None


def _shard(size_bytes: int, ranks: float) -> int:
    """Return what one of `ranks` has of what they share."""
    return math.ceil(size_bytes / ranks) if ranks % 1 else -(-size_bytes // int(ranks))


def _temporary_bytes(kind: str, sizes: Sequence[int]) -> int:
    """Return what a step makes for a moment: roots of all parameters at once with `foreach`, else of the largest."""
    if kind.partition("+")[0] in _IN_PLACE or "fused" in kind:
        return 0
    return sum(sizes) if "foreach" in kind else max(sizes, default=0)
