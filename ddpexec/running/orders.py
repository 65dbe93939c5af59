"""Order policies side by side for real: timed layers that replay an order trace, under stock torch and under ours.

Every arm replays the same steps; arms take turns in blocks, forth and back, so that what drifts on the machine falls on
all of them alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
import torch
from torch import nn

from ddpexec.ddp.wrapper import DistributedDataParallel
from ddpexec.errors import OptionError
from ddpexec.groups.lost import name_lost_ranks
from ddpexec.groups.process_groups import Communicator
from ddpexec.running.timed import TimedModel, make_timed_model
from ddpsim.bucketing.order.arrivals import Arrivals
from ddpsim.bucketing.order.consensus import arrange, consensus
from ddpsim.bucketing.order.policy import OrderPolicy
from ddpsim.planning.order_bench import relative_difference
from ddpsim.simulation.jobs.job_options import JobOptions
from ddpsim.workload.order_trace import OrderTrace

TORCH, ORACLE = "torch", "oracle"
BLOCK = 10
"""Steps of an arm before the next has its turn; the first is not counted: chosen by hand."""
_WHOSE = "slowest"
"""Whose expectation wins."""


@dataclass(frozen=True, slots=True)
class Arm:
    """Stock torch, an oracle, or an order policy with a predictor."""

    policy: str
    predictor: str = "last"

    @property
    def name(self) -> str:
        """What it is called."""
        return self.policy if self.policy in (TORCH, ORACLE) else f"{self.policy}, {self.predictor}"


NEVER = Arm("never")
"""Torch's buckets where gradients are missing, under our own class."""


def run_orders(
    trace: OrderTrace,
    arms: Sequence[Arm],
    communicator: Communicator,
    options: JobOptions,
    rounds: int,
) -> dict[Arm, list[float]]:
    """Return this rank's time of every counted step of every arm, in seconds; the same steps for all.

    Args:
        trace: as many ranks as there are.
        arms: in the order of their first turn.
        communicator: of the default group.
        options: of all arms: bucket caps, the factor on recorded times, and whether unused parameters are looked for in
            traces that have none too.
        rounds: turns forth and back.

    Raises:
        OptionError: another number of ranks.
    """
    if communicator.world_size != trace.ranks:
        what = f"{trace.name} has {trace.ranks} ranks, {communicator.world_size} were started"
        raise OptionError(what, remedy=f"start {trace.ranks}")
    rank = communicator.rank
    steps = {}
    for arm in arms:
        timed = make_timed_model(trace.workloads[rank], rank=rank, scale_compute=options.scale_compute, in_order=True)
        wrapped = _wrap(arm, timed.model.module, trace, options)
        steps[arm] = _step(wrapped, timed, trace, rank)
    seconds: dict[Arm, list[float]] = {arm: [] for arm in arms}
    with name_lost_ranks(communicator, "a collective", others_code=True):
        for _ in range(rounds):
            for arm in [*arms, *reversed(arms)]:
                communicator.barrier()
                taken = [steps[arm]() for _ in range(BLOCK)]
                seconds[arm] += taken[1:]
    return seconds


def _step(wrapped: Any, timed: TimedModel, trace: OrderTrace, rank: int) -> Callable[[], float]:
    """Return what trains a step of a wrapped model and returns how long it took."""
    batch = timed.model.make_batch(1)
    contexts: Callable[[Hashable], None] = getattr(wrapped, "batch_context", lambda context: None)
    coming = count()

    def step() -> float:
        begin = time.perf_counter()
        contexts(trace.contexts[rank][next(coming) % trace.iterations])
        timed.model.loss(wrapped(*batch.inputs), batch).backward()  # type: ignore[no-untyped-call]
        timed.optimizer.step()
        return time.perf_counter() - begin

    return step


def _wrap(arm: Arm, module: nn.Module, trace: OrderTrace, options: JobOptions) -> Any:
    search = options.find_unused_parameters or trace.misses_gradients
    common: dict[str, Any] = {"find_unused_parameters": search, "bucket_cap_mb": options.caps.bucket_cap_mb}
    if arm.policy == TORCH:
        return torch.nn.parallel.DistributedDataParallel(module, **common)
    if arm.policy != ORACLE:
        return DistributedDataParallel(module, rebuild=arm.policy, predictor=arm.predictor, consensus=_WHOSE, **common)
    wrapped = DistributedDataParallel(module, rebuild="never", **common)
    wrapped.reducer.order = OracleRebuild(trace)
    return wrapped


class OracleRebuild(OrderPolicy):
    """Rebuilds before every iteration, without consensus, for the order that the trace will bring; that takes time."""

    def __init__(self, trace: OrderTrace) -> None:
        super().__init__(len(trace.parameters))
        self._orders = []
        for orders in zip(*(workload.used_orders() for workload in trace.workloads), strict=True):
            ready = [Arrivals(rank, 0, order).list_ready(len(trace.parameters)) for rank, order in enumerate(orders)]
            self._orders.append(arrange(consensus(ready, "slowest"), "first"))
        self._built = -1

    def observe(self, arrivals: Arrivals) -> None:
        """Count a backward."""
        self.backwards += 1

    def due(self) -> bool:
        """Return True before each forward, once."""
        return self._built != self.backwards

    def confer(self, *unused: Any) -> list[int]:
        """Return the order that comes next."""
        self._built = self.backwards
        return self._orders[self.backwards % len(self._orders)]


def measure_arms(taken: Mapping[Arm, Sequence[float]]) -> list[dict[str, Any]]:
    """Return for each arm the median step and what it saves of others' medians, with 90 % intervals.

    `gain` is over stock torch, `gain_over_never` over torch's buckets under our own class (null where that is no arm):
    what the order alone gives, on a machine whose processors are not idle and where Python costs more than C++.
    """
    return [
        {
            "arm": arm.name,
            "steps": len(steps),
            "step_s": float(np.median(steps)),
            **_measure_saved("gain", steps, taken[Arm(TORCH)]),
            **_measure_saved("gain_over_never", steps, taken.get(NEVER)),
        }
        for arm, steps in taken.items()
    ]


def _measure_saved(name: str, steps: Sequence[float], base: Sequence[float] | None) -> dict[str, float | None]:
    if base is None:
        return {name: None}
    loss, low, high = relative_difference(np.array(steps), np.array(base), centre=np.median)
    return {name: -loss, f"{name}_low": -high, f"{name}_high": -low}
