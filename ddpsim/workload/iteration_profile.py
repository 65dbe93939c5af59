"""A workload's two clocks taken apart: what the host spends, what the device works, and how far it lags.

Recorded times are results: a gradient is complete when the device got to it, and that may have been because the
device was slow or because the host launched its kernels late. To replay a workload under other conditions (a faster
device, hooks that cost the host time) the causes are needed. For gradient j in hook order, with host times h and
device times r, both from the start of backward on their own clock,

    r[j] = max(r[j-1] + work[j], h[j] + lag[j])

holds by construction for the `work` and `lag` computed here, where no completion comes before its hook. Where the
device was busy, throughout or from one completion to the next, `work` is the interval between them and `lag` is zero;
elsewhere `work` is the interval times the busy share of all such intervals, and `lag` is what the record shows.

Start at `IterationProfile` and `_pace`, which computes `work` and `lag`; `merge_latest` makes one rank of several,
`without` leaves layers out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ddpsim.bucketing import Parameter
from ddpsim.bucketing.drop import DropPlan
from ddpsim.common.errors import WorkloadError
from ddpsim.workload import Workload
from ddpsim.workload.anchors import PHASES
from ddpsim.workload.profile import ForwardUse
from ddpsim.workload.times import Seconds

BUSY_THROUGHOUT = 0.97
"""Share of busy time in backward from which on the device counts as never idle; timer resolution takes the rest."""


@dataclass(frozen=True, slots=True)
class IterationProfile:
    """One iteration of one rank, ready to be replayed. All times in seconds.

    Attributes:
        forward_host, forward_work: host time and device work of forward.
        order: registration indices in hook order; parameters without a gradient are absent.
        host: host time from the previous hook (or the start of backward) to each hook, in hook order.
        work: device work that completes each gradient, in hook order.
        lag: least time from a hook to its gradient's completion, in hook order.
        tail_host, tail_work: what backward spends after its last gradient.
        optimizer_host, optimizer_work: of the optimizer.
        idle_s: time the device idles in backward without DDP, where nothing but its own host holds it up.
        missed: parameters that some of the ranks it stands for had no gradient of, though others had.
    """

    forward_host: float
    forward_work: float
    order: tuple[int, ...]
    host: Seconds
    work: Seconds
    lag: Seconds
    tail_host: float
    tail_work: float
    optimizer_host: float
    optimizer_work: float
    idle_s: float = 0.0
    missed: frozenset[int] = frozenset()

    @property
    def host_s(self) -> float:
        """Host time of forward and backward."""
        return self.forward_host + float(self.host.sum()) + self.tail_host

    @property
    def work_s(self) -> float:
        """Device work of forward and backward."""
        return self.forward_work + float(self.work.sum()) + self.tail_work

    def forward_use(self, shares: ForwardUse) -> ForwardUse:
        """Return when forward first needs each parameter: on the host, and the device work before, from its start.

        Args:
            shares: of forward that are over then, `Workload.forward_shares()`.
        """
        return shares.scale(self.forward_host, self.forward_work)

    def scale_phases(self, phases: Mapping[str, float], *, one_clock: bool) -> IterationProfile:
        """Return this pace with the device work of each phase times its factor in `phases`, 1 where it has none.

        Args:
            one_clock: whether the host's time is the computation, so that it is scaled too.
        """
        device = [phases.get(phase, 1.0) for phase in PHASES]
        return self._scale_clocks(device if one_clock else [1.0] * len(PHASES), device)

    def scale(self, compute: float, host: float) -> IterationProfile:
        """Return this pace with device work times `compute` and host time times `host`."""
        return self._scale_clocks([host] * len(PHASES), [compute] * len(PHASES))

    def _scale_clocks(self, host: Sequence[float], device: Sequence[float]) -> IterationProfile:
        """Return this pace with both clocks of forward, backward and optimizer times their factors."""
        forward_host, backward_host, optimizer_host = host
        forward, backward, optimizer = device
        scaled = replace(
            self,
            forward_host=self.forward_host * forward_host,
            forward_work=self.forward_work * forward,
            host=self.host * backward_host,
            work=self.work * backward,
            tail_host=self.tail_host * backward_host,
            tail_work=self.tail_work * backward,
            optimizer_host=self.optimizer_host * optimizer_host,
            optimizer_work=self.optimizer_work * optimizer,
        )
        # The host may be the slower one at one pace and not at another: what the device must idle is worked out anew,
        # what was recorded beyond that has other causes and stays.
        return replace(scaled, idle_s=scaled.least_idle_s + max(0.0, self.idle_s - self.least_idle_s))

    @property
    def least_idle_s(self) -> float:
        """How long the device idles in backward at least, without DDP, where the host is the slower of the two.

        By the recurrence above it idles as long as the host is behind its work at most. An iteration begins with the
        host ahead by what the optimizer takes longer on the device.
        """
        if not len(self.work):
            return 0.0
        ahead = max(0.0, self.optimizer_work - self.optimizer_host)
        begin = max(self.forward_host, ahead + self.forward_work)
        behind = self.forward_host + np.cumsum(self.host) + self.lag - begin - np.cumsum(self.work)
        return max(0.0, float(behind.max()))


def paces(
    workload: Workload,
    scale_compute: float = 1.0,
    scale_host: float = 1.0,
    phases: Mapping[str, float] | None = None,
) -> list[IterationProfile]:
    """Return the pace of each recorded iteration of `workload`.

    On a CPU, and where the workload is timed, there is one clock: the host's time is the computation, scaled by
    `scale_compute` and by the factors of `phases`.
    """
    host = scale_compute if workload.one_clock else scale_host
    profiles = [_pace(workload, iteration).scale(scale_compute, host) for iteration in range(workload.iterations)]
    return [each.scale_phases(phases, one_clock=workload.one_clock) for each in profiles] if phases else profiles


def _pace(workload: Workload, iteration: int) -> IterationProfile:
    hooks, ready = workload.gradient_hook_s[iteration], workload.gradient_ready_s[iteration]
    order = [index for index in workload.arrival_order(iteration) if not np.isnan(hooks[index])]
    hooks, ready = hooks[order], np.maximum.accumulate(ready[order])
    intervals = np.diff(ready, prepend=0.0)
    backward_host = float(workload.backward.host_s[iteration])
    backward_busy = float(workload.backward.device_s[iteration])
    wall = float(ready[-1]) if len(order) else 0.0
    busy = _find_busy(hooks, ready, backward_busy)
    left, idled = backward_busy - float(intervals[busy].sum()), float(intervals[~busy].sum())
    share = min(max(left / idled, 0.0), 1.0) if idled > 0 else 1.0
    work, lag = np.where(busy, intervals, intervals * share), np.where(busy, 0.0, np.maximum(ready - hooks, 0.0))
    return IterationProfile(
        forward_host=float(workload.forward.host_s[iteration]),
        forward_work=float(workload.forward.device_s[iteration]),
        order=tuple(order),
        host=np.diff(hooks, prepend=0.0),
        work=work,
        lag=lag,
        tail_host=max(0.0, backward_host - (float(hooks[-1]) if len(order) else 0.0)),
        tail_work=max(0.0, backward_busy - float(work.sum())),
        optimizer_host=float(workload.optimizer.host_s[iteration]),
        optimizer_work=float(workload.optimizer.device_s[iteration]),
        idle_s=max(0.0, wall - float(work.sum())),
    )


def _find_busy(hooks: Seconds, ready: Seconds, busy_s: float) -> NDArray[np.bool_]:
    """Return for each gradient whether the device was busy from the completion before to its own.

    It was where the host had queued all that the gradient needs when the one before was complete.
    """
    wall = float(ready[-1]) if len(ready) else 0.0
    if busy_s >= BUSY_THROUGHOUT * wall:
        return np.ones(len(ready), dtype=np.bool_)
    before = np.concatenate(([0.0], ready[:-1]))
    return np.asarray(before >= hooks)


def merge_latest(drawn: list[IterationProfile], since: list[float], *, local: bool = False) -> IterationProfile:
    """Return the pace of the last of several ranks at every point, as one pace.

    Ranks that leave a collective together drift apart over optimizer, local steps, forward and backward until the next
    one; the collective waits for the maximum. The result has, for forward and for each gradient, the maximum over the
    ranks of the time since they were last together.

    Args:
        drawn: one pace a rank, all of the same workload.
        since: each rank's time from when they were last together to this iteration.
        local: whether no collective ends the iteration, so that the result is at its end, too, where the last rank is.
    """
    if len(drawn) == 1:
        return drawn[0]
    # Everything below counts from where the last rank begins this iteration, as the result begins there: a rank that
    # began earlier has its times less the lead that it had.
    before = max(since)
    forward_host = max(s + p.forward_host for s, p in zip(since, drawn, strict=True)) - before
    forward_work = max(s + p.forward_work for s, p in zip(since, drawn, strict=True)) - before
    width = 1 + max(max(p.order) for p in drawn)
    # Of each gradient the latest hook, the latest end of the device work up to it, and the longest lag, by
    # registration index; -inf stays where no rank has the gradient. Sums from the start are what the maximum is taken
    # of: the maximum of each interval would add up slow intervals of different ranks, which no rank has in one
    # iteration.
    last = np.full((3, width), -np.inf)
    for begun, pace in zip(since, drawn, strict=True):
        order = list(pace.order)
        host = begun + pace.forward_host + np.cumsum(pace.host)
        work = begun + pace.forward_work + np.cumsum(pace.work)
        last[0, order] = np.maximum(last[0, order], host - before - forward_host)
        last[1, order] = np.maximum(last[1, order], work - before - forward_work)
        last[2, order] = np.maximum(last[2, order], pace.lag)
    order = [int(i) for i in np.argsort(last[0], kind="stable") if np.isfinite(last[0, i])]
    # In order of the latest hooks the ends of work may descend by a little, where two ranks differ in order; one
    # device completes nothing earlier than what it has before.
    host, work = last[0, order], np.maximum.accumulate(last[1, order])
    tail_host, tail_work = max(p.tail_host for p in drawn), max(p.tail_work for p in drawn)
    if local:
        host_s = max(s + p.host_s for s, p in zip(since, drawn, strict=True)) - before
        work_s = max(s + p.work_s for s, p in zip(since, drawn, strict=True)) - before
        tail_host = max(0.0, host_s - forward_host - float(host[-1]))
        tail_work = max(0.0, work_s - forward_work - float(work[-1]))
    return IterationProfile(
        forward_host=forward_host,
        forward_work=forward_work,
        order=tuple(order),
        host=np.maximum(np.diff(host, prepend=0.0), 0.0),
        work=np.maximum(np.diff(work, prepend=0.0), 0.0),
        lag=last[2, order],
        tail_host=tail_host,
        tail_work=tail_work,
        optimizer_host=max(p.optimizer_host for p in drawn),
        optimizer_work=max(p.optimizer_work for p in drawn),
        idle_s=max(p.idle_s for p in drawn),
        missed=frozenset(order).difference(set(order).intersection(*(p.order for p in drawn))),
    )


def find_dropped(plan: DropPlan | None, cycle: int) -> Callable[[int], frozenset[int]]:
    """Return, by iteration, the parameters of the layers it leaves out.

    Args:
        plan: which layers; its iterations count from 1, as the executor's do, and are the synchronised ones: local
            steps leave out what the step that ends their cycle does.
        cycle: iterations from one synchronised step to the next.
    """
    return lambda iteration: frozenset() if plan is None else plan.parameters_dropped(iteration // cycle + 1)


def check_left(plan: DropPlan | None, paces: Iterable[IterationProfile], parameters: Sequence[Parameter]) -> None:
    """Raise where leaving layers out could leave a recorded iteration no gradient, but buckets to reduce.

    Its rank would never start them, and the others would wait for it, as in a real run.

    Raises:
        WorkloadError: an iteration whose gradients are all of layers that may be left out, of a model that has others.
    """
    layers = () if plan is None else plan.layers
    may_go = {index for layer in layers if layer.probability > 0 for index in layer.parameters}
    if len(may_go) == len(parameters):
        return
    for number, pace in enumerate(paces):
        if may_go.issuperset(pace.order):
            what = f"recorded iteration {number} has gradients of no layer that stays"
            raise WorkloadError(what, place="drop", remedy="name fewer layers, or record other iterations")


def leave_out(
    pace: Callable[[int], IterationProfile], dropped: Callable[[int], Collection[int]], parameters: Sequence[Parameter]
) -> Callable[[int], IterationProfile]:
    """Return `pace` without what `dropped` names in each iteration."""

    def left(iteration: int) -> IterationProfile:
        out = dropped(iteration)
        return without(pace(iteration), out, parameters) if out else pace(iteration)

    return left


def without(pace: IterationProfile, dropped: Collection[int], parameters: Sequence[Parameter]) -> IterationProfile:
    """Return what is left of a pace where the layers that hold `dropped` are not computed.

    A gradient takes with it the time since the gradient before, which its layer's backward filled. Forward is known
    as a whole only: it shrinks by the same share as backward, the optimizer by the share of bytes that get no gradient.
    """
    places = [place for place, index in enumerate(pace.order) if index not in dropped]
    order = tuple(pace.order[place] for place in places)
    host, work, lag = pace.host[places], pace.work[places], pace.lag[places]
    host_share, work_share = _share(host.sum(), pace.host.sum()), _share(work.sum(), pace.work.sum())
    size_share = _share(sum(parameters[i].size_bytes for i in order), sum(parameters[i].size_bytes for i in pace.order))
    return replace(
        pace,
        forward_host=pace.forward_host * host_share,
        forward_work=pace.forward_work * work_share,
        order=order,
        host=host,
        work=work,
        lag=lag,
        optimizer_host=pace.optimizer_host * size_share,
        optimizer_work=pace.optimizer_work * size_share,
        idle_s=pace.idle_s * work_share,
    )


def leave_unused(
    pace: IterationProfile, own: Collection[int], everybodys: Collection[int], parameters: Sequence[Parameter]
) -> IterationProfile:
    """Return the pace of a rank that does not use `own` parameters, of which no rank uses `everybodys`.

    What another rank uses has the mean of the gradients on this one too, which its optimizer updates by.
    """
    if not own:
        return pace
    own_profile = without(pace, own, parameters)
    whole = without(pace, everybodys, parameters)
    return replace(own_profile, optimizer_host=whole.optimizer_host, optimizer_work=whole.optimizer_work)


def _share(part: float, whole: float) -> float:
    return float(part / whole) if whole > 0 else 1.0
