"""What collectives in flight take from the computation beside them.

A channel is a block of threads that keeps a multiprocessor to itself, and the bytes that a rank sends are read and
written in its memory. So computation that is bound by arithmetic has M - c of M multiprocessors left, and that which is
bound by memory what the collective leaves of its bandwidth: a GPU with more of both pays less. Kernels are cut to fill
all multiprocessors in whole waves, so that some take a wave more however few are missing: the tail.

Where `compute_slowdown` was measured or set, that is the factor, whatever the collective.

A `Processor` works at the speed that this leaves; read `Processor.work` first. `slow_messages` is the other way round:
what computation costs collectives. `ConcurrentCollectives` is what collectives in flight over gloo cost each other.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Generator, Hashable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, TypeVar

import numpy as np
import simpy
from numpy.typing import NDArray

from ddpsim.collectives.network.fluid import FULL, Network, Speed
from ddpsim.collectives.transport import Transport
from ddpsim.common.operation import Operation
from ddpsim.simulation.ddp_costs import Costs
from ddpsim.simulation.graph import Collective
from ddpsim.workload.gpus import GPUS, AchievedGpu

UNKNOWN_GPU = "A100"
"""Whose multiprocessors and bandwidth stand for those of a GPU that is not in the catalogue."""

MOST = 0.9
"""Share of a GPU that collectives take at most: the scheduler leaves computation some blocks."""


_INSTANT_S = 1e-12
"""What is left of a part when it ends now: sums of its seconds are rounded."""


@dataclass(frozen=True, slots=True)
class Share:
    """A share of a GPU says which part of its multiprocessors and of its memory's bandwidth something takes."""

    multiprocessors: float
    bandwidth: float


NOTHING = Share(0.0, 0.0)


@dataclass(frozen=True, slots=True)
class ComputeSlowdown:
    """What collectives cost a rank's computation while they are in flight.

    Attributes:
        fixed: the factor of any number of them, where it was measured or given; None derives it from what they take.
        taken: the share of the GPU that a collective takes.
        arithmetic_share: share of computing time that multiprocessors bound; memory bounds the rest.
        tail_share: by which part of its time such computation takes longer while any multiprocessor is missing.
    """

    fixed: float | None
    taken: Callable[[Collective], Share]
    arithmetic_share: float = 1.0
    tail_share: float = 0.0

    @classmethod
    def of(cls, costs: Costs, arithmetic_share: float, taken: Callable[[Collective], Share]) -> ComputeSlowdown:
        """Return what collectives that take so much of a GPU cost computation, which a calibration may have measured.

        Args:
            arithmetic_share: of the computation's time, that multiprocessors bound.
        """
        if costs.compute_slowdown_fixed:
            return cls(costs.compute_slowdown, lambda collective: NOTHING)
        return cls(None, taken, arithmetic_share, costs.tail_share)

    def factor(self, taken: Share) -> float:
        """Return the factor on computing time while collectives take `taken`."""
        if self.fixed is not None:
            return self.fixed
        tail = self.tail_share if taken.multiprocessors > 0 else 0.0
        multiprocessors, bandwidth = min(taken.multiprocessors, MOST), min(taken.bandwidth, MOST)
        return slowdown_factor(self.arithmetic_share, tail, multiprocessors, bandwidth)


Amount = TypeVar("Amount", float, NDArray[np.float64])
"""One number, or several at once."""


def slowdown_factor(arithmetic_share: float, tail: Amount, multiprocessors: Amount, bandwidth: Amount) -> Amount:
    """Return the factor on the time of computation from which collectives take so much, `MOST` at most.

    Args:
        arithmetic_share: of its time, that multiprocessors bound; memory bounds the rest.
        tail: share of that by which it takes longer whatever they take; 0 while they take nothing.
        multiprocessors, bandwidth: shares of the GPU.
    """
    waves = 1 / (1 - multiprocessors) + tail
    return arithmetic_share * waves + (1 - arithmetic_share) / (1 - bandwidth)


UNDISTURBED = ComputeSlowdown(1.0, lambda collective: NOTHING)


def share_of(
    costs: Costs,
    gpu: AchievedGpu | None,
    transport: Transport,
    ranks: int,
    size_bytes: int,
    operation: Operation = Operation.ALLREDUCE,
) -> Share:
    """Return the share of `gpu` that an operation of `size_bytes` takes while it is on its way.

    A ring sends 2(n-1)/n of an allreduce's message on each rank, a tree hardly more; a switch that adds gets it once.

    Args:
        gpu: what is not known of it is taken as of `UNKNOWN_GPU`.
    """
    if ranks == 1 or size_bytes == 0:
        return NOTHING
    known, other = gpu or GPUS[UNKNOWN_GPU], GPUS[UNKNOWN_GPU]
    multiprocessors = known.spec.multiprocessors or other.spec.multiprocessors or 1
    choice = transport.choice(size_bytes, operation)
    sent = 1.0 if choice.algorithm.startswith("nvls") else operation.sent(ranks)
    traffic_bps = costs.memory_passes * sent * size_bytes / transport.time_s(operation, size_bytes)
    taken = costs.channel_multiprocessors * choice.channels / multiprocessors
    return Share(taken, traffic_bps / known.memory_Bps)


Process = Generator[simpy.Event, Any, None]

OnBusy = Callable[[bool], None]
"""Called with True when a rank's processor becomes busy and with False when it is idle again."""


def slow_messages(network: Network, costs: Costs, hops: Mapping[str, float], sender: Hashable = None) -> OnBusy:
    """Return what slows the messages of a sender while any rank that sends as it is busy.

    A message as a whole, as `communication_slowdown` says of its hops; the steps of its threads, where that is more,
    by `step_slowdown`.

    Args:
        sender: a rank that sends for itself, or a job beside another; None is those that send together.
    """
    slowdown = costs.slowdown_of(hops)
    slowed = Speed(1 / slowdown, 1 / max(costs.step_slowdown / slowdown, 1.0))
    busy_count = 0

    def on_busy(busy: bool) -> None:
        nonlocal busy_count
        busy_count += 1 if busy else -1
        if busy_count == busy:  # the first that is busy, or the last that was
            network.set_speed(slowed if busy else FULL, sender)

    return on_busy if slowed != FULL else lambda busy: None


class Processor:
    """Executes seconds of work; slower while collectives run beside it.

    Args:
        env: the simulation.
        slowdown: what collectives in flight cost the time of work.
        copy_slowdown: the same of what the host does for DDP: hooks, copies, launches.

    Attributes:
        late_s: how long a collective waits for multiprocessors where this computes when it could begin.
        busy: whether it works, other than `serve`.
        on_busy: called with True when work begins and with False when it ends.
    """

    def __init__(
        self,
        env: simpy.Environment,
        slowdown: ComputeSlowdown,
        on_busy: OnBusy,
        copy_slowdown: float = 1.0,
        late_s: float = 0.0,
    ) -> None:
        self.env, self.late_s = env, late_s
        self._slowdown = slowdown
        self._factor = 1.0
        self._taken: list[Share] = []
        self._copy_slowdown = copy_slowdown
        self._on_busy = on_busy
        self._timer: simpy.Event | None = None
        self.busy = False
        self._under_way: tuple[Sequence[tuple[float, int]], float, float, float] = ((), 0.0, 0.0, 1.0)

    def part_under_way(self) -> int | None:
        """Return the number of the part of its work that it is at; None where it is idle, or its work has no parts."""
        parts, done, since_s, factor = self._under_way
        reached = done + (self.env.now - since_s) / factor
        at = bisect_right(parts, reached + _INSTANT_S, key=itemgetter(0)) if self.busy else len(parts)
        return parts[at][1] if at < len(parts) else None

    def collective_begins(self, collective: Collective) -> None:
        """Count one more collective in flight on this rank."""
        self._taken.append(self._slowdown.taken(collective))
        self._change_speed()

    def collective_ends(self, collective: Collective) -> None:
        """Count a collective no more."""
        self._taken.remove(self._slowdown.taken(collective))
        self._change_speed()

    def work(
        self,
        seconds: float,
        parts: Sequence[tuple[float, int]] = (),
        ends: list[float] | None = None,
    ) -> Process:
        """Work for `seconds` of undisturbed time; a process yields from this.

        Args:
            parts: after how many of the seconds each of its parts has ended, in order, and its number.
            ends: by number of a part when it ended; written some time after that, before the work ends.
        """
        if seconds <= 0:
            return
        self.busy = True
        self._on_busy(True)
        # `done` of the seconds are over; at each change of speed, and at the end, parts that ended by then are written.
        done, written, count, part_ends = 0.0, 0, len(parts), [] if ends is None else ends
        while done < seconds:
            factor, begin = self._factor, self.env.now
            self._under_way = parts, done, begin, factor
            timer = self._timer = self.env.timeout((seconds - done) * factor)
            yield timer
            reached = seconds if timer.processed else done + (self.env.now - begin) / factor
            while written < count:
                at, part = parts[written]
                if at > reached:
                    break
                part_ends[part] = begin + (at - done) * factor
                written += 1
            done = reached
        self.busy = False
        self._on_busy(False)

    def serve(self, seconds: float, *, lasting: bool = False) -> Process:
        """Work for DDP on the host: `seconds` with no collective in flight when it begins.

        Args:
            lasting: whether such work follows such work, so that collectives in flight feel it; behind a single hook
                socket buffers keep the wire busy.
        """
        if seconds <= 0:
            return
        if lasting:
            self._on_busy(True)
        yield self.env.timeout(seconds * (self._copy_slowdown if self._taken else 1.0))
        if lasting:
            self._on_busy(False)

    def _change_speed(self) -> None:
        taken = self._taken
        together = Share(sum(each.multiprocessors for each in taken), sum(each.bandwidth for each in taken))
        factor = self._slowdown.factor(together) if taken else 1.0
        if factor != self._factor:
            self._factor = factor
            if self._timer is not None and self._timer.callbacks:
                # What waits for the end of its work goes on now, with the rest of it; the timer then wakes nobody.
                changed = self.env.event()
                changed.callbacks, self._timer.callbacks = self._timer.callbacks, []
                changed.succeed()


class ConcurrentCollectives:
    """These are the collectives in flight of a job, on all its process groups, and what they cost each other.

    What begins beside others takes `pair_s` at least, for threads are woken in turn, and beside one whose bytes lie in
    the links' queues `behind_s`, though no longer than that one would by itself. Both are of an allreduce; another
    operation takes as much less as it has fewer steps.

    Args:
        env: the simulation.
        costs: that have those times.
        ranks: of the job.
        alone_s: what a collective takes with nothing in flight.
        steps: that it has.
    """

    def __init__(
        self,
        env: simpy.Environment,
        costs: Costs,
        ranks: int,
        alone_s: Callable[[Collective], float],
        steps: Callable[[Collective], int],
    ) -> None:
        self._env, self._costs, self._alone_s, self._steps = env, costs, alone_s, steps
        self._whole = Operation.ALLREDUCE.steps(ranks)
        self._in_flight: dict[Collective, float] = {}
        self._matters = ranks > 1 and max(costs.pair_s, costs.behind_s) > 0

    def wait_for_end(self, collective: Collective, ended: simpy.Event) -> simpy.Event:
        """Return when `collective`, whose bytes have `ended` as they would if wires alone counted, has ended."""
        if not self._matters:
            return ended
        least_s = self._least_s(collective)
        done = ended & self._env.timeout(least_s) if least_s > 0 else ended
        self._in_flight[collective] = self._alone_s(collective)

        def leave(_: simpy.Event) -> None:
            del self._in_flight[collective]

        assert done.callbacks is not None
        done.callbacks.append(leave)
        return done

    def _least_s(self, collective: Collective) -> float:
        if not self._in_flight:
            return 0.0
        least_s = max(self._costs.pair_s, min(self._costs.behind_s, max(self._in_flight.values())))
        return least_s * min(1.0, self._steps(collective) / self._whole)
