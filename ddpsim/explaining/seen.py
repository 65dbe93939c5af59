"""What one rank's trace says of its steps, whoever wrote it: parts, own work by phase, collectives with their stamps.

Times are in seconds. Those of one rank are on that rank's own clock until `ddpsim.explaining.clocks` has aligned them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ddpsim.units import format_time

PARTS = (
    "forward_s", "backward_compute_s", "exposed_comm_s", "buffer_broadcast_s", "ddp_overhead_s", "optimizer_s",
    "input_s",
)  # fmt: skip
"""Parts of a traced step; `input_s` is what lies between the optimizer and the next forward.

Collectives that are not DDP's have parts of their own beside these, by operation (`all_to_all_s`): the time in which
the rank does nothing else. All together sum to the step."""

UNPREDICTED = "no prediction: "
"""What a note begins with that says why nothing is predicted of a trace."""

PHASES = ("input", "forward", "backward", "optimizer", "hooks")
"""What a rank does by itself in a step; `hooks` is what DDP's own work takes of its host."""


@dataclass(frozen=True, slots=True)
class SeenCollective:
    """One collective of one step on one rank.

    Attributes:
        index: its place in launch order in the step.
        operation: `all_reduce`, `all_gather`, ... as torch names it.
        size_bytes: None where the trace does not say.
        parameters: gradients in it; 0 where it is no bucket.
        arrived_s: the rank had all it needs for it: the later of its launch and of the work before it. A stamp from
            before the collective: it holds nothing of other ranks.
        started_s: it began on this rank, when the collective before it was over too.
        finished_s: it was over.
        own: it is DDP's or the sharding's, not one that a layer or the loop makes.
        everyone: all ranks of the run take part, as far as the trace says.
    """

    index: int
    operation: str
    size_bytes: int | None
    parameters: int
    arrived_s: float
    started_s: float
    finished_s: float
    own: bool = True
    everyone: bool = True

    def shift(self, offset_s: float) -> SeenCollective:
        """Return it on a clock that is `offset_s` ahead."""
        return replace(
            self,
            arrived_s=self.arrived_s + offset_s,
            started_s=self.started_s + offset_s,
            finished_s=self.finished_s + offset_s,
        )


@dataclass(frozen=True, slots=True)
class SeenStep:
    """One step of one rank.

    Attributes:
        number: the profiler's or the run's, by which steps of different ranks are matched.
        start_s, end_s: start of forward, and of the next step's.
        parts: of `PARTS`, and those of collectives that are not DDP's; they sum to the step.
        host_s: own work of the host by phase, waits for the device or other ranks left out.
        device_s: own work of the device by phase; empty where the host computes.
        collectives: in launch order, without broadcasts of buffers.
        counts: whether its period is whole, so that medians take it.
    """

    number: int
    start_s: float
    end_s: float
    parts: Mapping[str, float]
    host_s: Mapping[str, float]
    device_s: Mapping[str, float]
    collectives: tuple[SeenCollective, ...]
    counts: bool = True

    @property
    def step_s(self) -> float:
        """Its length."""
        return self.end_s - self.start_s

    def own_s(self, phase: str) -> float:
        """Return what the rank itself took for a phase: the longer of host and device, which work at once."""
        return max(self.host_s.get(phase, 0.0), self.device_s.get(phase, 0.0))

    def shift(self, offset_s: float) -> SeenStep:
        """Return it on a clock that is `offset_s` ahead."""
        moved = tuple(collective.shift(offset_s) for collective in self.collectives)
        return replace(self, start_s=self.start_s + offset_s, end_s=self.end_s + offset_s, collectives=moved)


@dataclass(frozen=True, slots=True)
class Accumulation:
    """Gradients that a step adds up over several micro-batches.

    Attributes:
        accumulate: micro-batches of a step.
        reducing: micro-batches that reduce gradients; one is enough, the last.
        waits_s: that a step waits for collectives of the others than the last; None where they are not DDP's.
    """

    accumulate: int
    reducing: int
    waits_s: float | None

    def advice(self) -> str | None:
        """Return what to change; None where no micro-batch but one reduces gradients."""
        if self.reducing < 2:
            return None
        what = f"{self.reducing} of {self.accumulate} micro-batches reduce gradients, where the last is enough"
        if self.waits_s is None:
            how = "under no_sync(), of fully_shard set_requires_gradient_sync(False): a rank then keeps whole gradients"
            return f"{what}: run the others {how}"
        return f"{what}: run the others under no_sync(), a step waits {format_time(self.waits_s)} for theirs"


@dataclass(frozen=True, slots=True)
class SeenRank:
    """A rank's trace, taken apart.

    Attributes:
        rank: None where the file does not say.
        world_size: None likewise.
        backend: `nccl`, `gloo`, or None.
        device: GPU model, or `cpu`.
        kind: who wrote it: `kineto` or `ddpsim`.
        scheme: `ddp` where gradients' hooks launch allreduces, else `other`.
        notes: what was left out, what is not known.
        clock: which clock its times are of: ranks with the same share it; None where nobody says.
        made_by: workload, plan and costs for a prediction, of the rank that was asked for them.
        options: of the run, where its trace records them.
        gpus: of its node, as many as its process saw; 0 where the trace does not say.
        base_ns: what the clock of its trace counts from.
        accumulation: of gradients over micro-batches; None where each step has one.
    """

    rank: int | None
    world_size: int | None
    backend: str | None
    device: str
    place: str
    kind: str
    scheme: str
    steps: tuple[SeenStep, ...]
    notes: tuple[str, ...] = ()
    clock: str | None = None
    made_by: Any = None
    options: Mapping[str, object] = field(default_factory=dict)
    gpus: int = 0
    base_ns: int = 0
    accumulation: Accumulation | None = None

    def shift(self, offset_s: float) -> SeenRank:
        """Return the rank on a clock that is `offset_s` ahead."""
        return replace(self, steps=tuple(step.shift(offset_s) for step in self.steps))


def complete_parts(parts: Mapping[str, float], step_s: float) -> dict[str, float]:
    """Return parts that are not negative and sum to the step: what they are short of it is DDP's overhead.

    Stamps of two clocks may overlap a little, and what is counted twice is taken off the largest part.
    """
    found = {part: max(0.0, seconds) for part, seconds in parts.items() if part != "ddp_overhead_s"}
    left_s = step_s - sum(found.values())
    found["ddp_overhead_s"] = max(0.0, left_s)
    while left_s < 0:
        largest = max(found, key=lambda part: found[part])
        taken_s = min(found[largest], -left_s)
        found[largest] -= taken_s
        left_s = left_s + taken_s if taken_s > 0 else 0.0
    return found
