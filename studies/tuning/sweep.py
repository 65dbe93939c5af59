"""Every cap measured in a training that is running: all of them briefly, then those near the best by turns."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from statistics import fmean, median, stdev
from typing import Any

import numpy as np
import torch.distributed as dist

from ddpexec.ddp.parameters import collect
from ddpexec.running.stock import buckets_of
from ddpexec.tuning.plan import TrialPlan
from ddpexec.tuning.switching import PlanSwitch
from ddpsim.bucketing import BucketCaps, rebuilt_plan
from ddpsim.common.units import MIB
from ddpsim.planning.best_buckets import CAPS_MB

BRIEF, BLOCK = 3, 4
"""Steps of each plan that count in the first pass, and in each block of the second."""
NEAR = 0.03
"""Share of the best step within which a plan is measured again: some four errors of a mean of the first pass."""
SURE_TO = 0.002
"""Standard error, a share of the step, to which every plan of the second pass is measured, where time allows."""


class Sweep:
    """Measures torch's default, each cap, and the plan that was kept.

    Args:
        ddp: torch's, as the tuner has left it.
        kept: its caps.
        step: takes one step, and returns its seconds.
        seconds: after which no block is begun.
    """

    def __init__(self, ddp: Any, kept: BucketCaps, step: Callable[[], float], seconds: float) -> None:
        self._step, self._seconds, self._begun_s = step, seconds, time.perf_counter()
        found = collect(ddp.module)
        groups = buckets_of(ddp, found)
        order = _agreed([index for group in groups for index in group])
        total = sum(each.size_bytes for each in found.policy) / MIB
        caps = [BucketCaps(), *(BucketCaps(bucket_cap_mb=cap) for cap in CAPS_MB if cap < total)]
        caps += [BucketCaps(bucket_cap_mb=float(np.ceil(total)))]
        self._caps = caps if kept in caps else [*caps, kept]
        self._plans = [
            TrialPlan(each, tuple(map(tuple, rebuilt_plan(found.policy, each, order).groups()))) for each in self._caps
        ]
        self._fixed = [0, self._caps.index(kept)]
        self._switch = PlanSwitch(ddp, TrialPlan(kept, tuple(map(tuple, groups))))
        self._blocks: list[list[list[float]]] = [[] for _ in self._caps]

    def plans(self) -> list[Mapping[str, object]]:
        """Return each plan's caps and the seconds of its blocks' steps in the second pass, of the first where none."""
        brief: list[float] = []
        for plan in self._plans:
            for _ in range(self._switch.use(plan)):
                self._step()
            self._switch.forget()
            brief.append(median(self._step() for _ in range(BRIEF)))
        brief = _agreed(brief)
        best = min(brief)
        near = [number for number, each in enumerate(brief) if each <= (1 + NEAR) * best or number in self._fixed]
        for number in near:  # made, and their memory touched, before any counts
            for _ in range(self._switch.use(self._plans[number])):
                self._step()
        forth = True
        while _agreed(self._goes_on(near)):
            for number in near if forth else near[::-1]:
                settling = self._switch.use(self._plans[number])
                for _ in range(settling):
                    self._step()
                self._blocks[number].append([self._step() for _ in range(BLOCK)])
            forth = not forth
        return [
            {"caps": caps.torch_arguments(), "blocks": blocks or [[seconds]]}
            for caps, blocks, seconds in zip(self._caps, self._blocks, brief, strict=True)
        ]

    def _goes_on(self, near: list[int]) -> bool:
        """Whether another pass through the plans near the best is wanted: an even number, two at least."""
        passes = len(self._blocks[near[0]])
        if passes < 2 or passes % 2:
            return True
        if time.perf_counter() - self._begun_s > self._seconds:
            return False
        return any(_error(self._blocks[number]) > SURE_TO for number in near)


def _error(blocks: list[list[float]]) -> float:
    """Return the standard error of a plan's mean step, a share of it."""
    steps = [second for block in blocks for second in block]
    return stdev(steps) / math.sqrt(len(steps)) / fmean(steps)


def _agreed(value: Any) -> Any:
    """Return what rank 0 has."""
    box = [value]
    dist.broadcast_object_list(box, 0)
    return box[0]
