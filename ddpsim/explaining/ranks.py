"""`TracedRank`: one rank's trace, whoever wrote it, as iterations and facts of its run; and the steps ranks share.

Times are in seconds. Those of one rank are on that rank's own clock until `ddpsim.explaining.clocks` has aligned them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ddpsim.common.units import format_time
from ddpsim.trace.metrics import INPUT, Summary
from ddpsim.trace.metrics import PARTS as OF_ITERATION
from ddpsim.trace.records import Iteration

PARTS = (*OF_ITERATION, INPUT)
"""Parts of a traced step; `input_s` is what lies between the optimizer and the next forward.

Collectives that are not DDP's have parts of their own beside these, by operation (`all_to_all_s`): the time in which
the rank does nothing else. All together sum to the step."""

UNPREDICTED = "no prediction: "
"""How a note begins that says why there is no prediction of a trace."""


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
class TracedRank:
    """One rank's iterations, and what its trace says of its run.

    Attributes:
        rank: None where the file does not say.
        world_size: None likewise.
        backend: `nccl`, `gloo`, or None.
        device: GPU model, or `cpu`.
        place: the file, for messages.
        kind: `kineto` for a trace of torch.profiler, `ddpsim` for one of ddpexec or the simulator.
        scheme: `ddp` where gradients' hooks launch allreduces, else `other`.
        notes: what was left out, what is not known.
        clock: names the clock of its times: ranks with the same name share it; None where it is unknown.
        basis: the `PredictionBasis` of the rank that a prediction is made of; None of all others.
        options: of the run, where its trace records them.
        gpus: GPUs of its node that its process saw; 0 where the trace does not say.
        base_ns: the moment from which its trace counts, ns.
        accumulation: of gradients over micro-batches; None where each step has one.
    """

    rank: int | None
    world_size: int | None
    backend: str | None
    device: str
    place: str
    kind: str
    scheme: str
    iterations: tuple[Iteration, ...]
    notes: tuple[str, ...] = ()
    clock: str | None = None
    basis: Any = None
    options: Mapping[str, object] = field(default_factory=dict)
    gpus: int = 0
    base_ns: int = 0
    accumulation: Accumulation | None = None

    @property
    def counted(self) -> list[Iteration]:
        """The iterations that medians take: those that are whole, where there are any."""
        return [it for it in self.iterations if it.whole] or list(self.iterations)

    def shift(self, offset_s: float) -> TracedRank:
        """Return the rank on a clock that is `offset_s` ahead."""
        return replace(self, iterations=tuple(it.shift(offset_s) for it in self.iterations))

    def numbered(self, rank: int) -> TracedRank:
        """Return it as of a rank, which its file may not have said."""
        return replace(self, rank=rank, iterations=tuple(replace(it, rank=rank) for it in self.iterations))


def traced_parts(traced: Summary) -> dict[str, float]:
    """Return the parts of a traced step in their order."""
    parts = traced.parts
    return {part: parts.get(part, 0.0) for part in (*PARTS, *(traced.waits_s or ()))}


Row = Mapping[int, Iteration]
"""The iterations of one number, by rank."""


def common_iterations(ranks: Sequence[TracedRank], counts: Callable[[Iteration], bool]) -> list[Row]:
    """Return the iterations that every rank has, of those that `counts` selects, by number ascending."""
    by_number: dict[int, dict[int, Iteration]] = {}
    for rank in ranks:
        for it in rank.iterations:
            if rank.rank is not None and counts(it):
                by_number.setdefault(it.index, {})[rank.rank] = it
    return [row for _, row in sorted(by_number.items()) if len(row) == len(ranks)]
