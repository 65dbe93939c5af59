"""When to rebuild buckets for the order in which gradients arrive, and for which order."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from ddpsim.errors import InputError, UnknownNameError
from ddpsim.order.agreement import plan_tau
from ddpsim.order.arrivals import Arrivals
from ddpsim.order.consensus import CONSENSUS, arrange, consensus
from ddpsim.order.predictors import LastArrival, Predictor

Gather = Callable[[Sequence[float]], Sequence[Sequence[float]]]
"""Gives this rank's times to all ranks and returns those of all, by rank; the same answer everywhere."""


class Rebuild(Protocol):
    """Decides when to rebuild. Both answers must come out the same on every rank, so they see nothing local."""

    def due(self, backwards: int, rebuilds: int) -> bool:
        """Return whether ranks should confer now, after so many synced backwards and rebuilds."""

    def wanted(self, tau: float, rebuilds: int) -> bool:
        """Return whether to rebuild, given Kendall's tau of the plan in force and the agreed order."""

    def finished(self, rebuilds: int) -> bool:
        """Return whether no further rebuild will be due, so that arrivals need not be watched."""


@dataclass(frozen=True, slots=True)
class Never:
    """Keep the initial buckets."""

    def due(self, backwards: int, rebuilds: int) -> bool:
        """Return False."""
        return False

    def wanted(self, tau: float, rebuilds: int) -> bool:
        """Return False."""
        return False

    def finished(self, rebuilds: int) -> bool:
        """Return True."""
        return True


@dataclass(frozen=True, slots=True)
class Once:
    """Rebuild once, after so many synced backwards: 1 as torch does, 2 as it does under static_graph."""

    after: int = 1

    def __post_init__(self) -> None:
        _at_least_one("after", self.after)

    def due(self, backwards: int, rebuilds: int) -> bool:
        """Return whether the time has come."""
        return rebuilds == 0 and backwards >= self.after

    def wanted(self, tau: float, rebuilds: int) -> bool:
        """Return True."""
        return True

    def finished(self, rebuilds: int) -> bool:
        """Return whether that rebuild has been."""
        return rebuilds > 0


@dataclass(frozen=True, slots=True)
class OnDrift:
    """Rebuild after the first backward, and again when the plan's order and the arrivals have drifted apart.

    Attributes:
        tau: rebuild where Kendall's tau over pairs in different buckets is below this.
        every: synced backwards between two conferences of the ranks.
        at_most: rebuilds in all; None is no limit.
    """

    tau: float = 0.95
    every: int = 50
    at_most: int | None = None

    def __post_init__(self) -> None:
        _at_least_one("every", self.every)
        if not -1 <= self.tau <= 1:
            raise InputError(f"tau {self.tau!r} is out of range", remedy="give a number from -1 to 1, e.g. 0.95")

    def due(self, backwards: int, rebuilds: int) -> bool:
        """Return whether this backward is the first or one of every so many."""
        if self.finished(rebuilds):
            return False
        return backwards >= 1 if rebuilds == 0 else backwards % self.every == 0

    def wanted(self, tau: float, rebuilds: int) -> bool:
        """Return whether the order has drifted."""
        return rebuilds == 0 or tau < self.tau

    def finished(self, rebuilds: int) -> bool:
        """Return whether all rebuilds have been."""
        return self.at_most is not None and rebuilds >= self.at_most


class OrderPolicy:
    """Watches arrivals on one rank and says, with the other ranks, when to rebuild and in which order.

    Drive it so: after each synced backward `observe` the order; before the next forward ask `due`, and where that is
    true `confer` with a function that gathers from all ranks. `due` counts backwards alone and is the same everywhere.

    Args:
        count: parameters of the model.
        rebuild: when.
        predictor: what to expect; a new one for each rank. None is `LastArrival`.
        consensus: one of `CONSENSUS`.
        unused: where parameters go that never had a gradient, `first` or `last`; see `arrange`.
    """

    def __init__(
        self,
        count: int,
        rebuild: Rebuild | None = None,
        predictor: Predictor | None = None,
        consensus: str = "rank0",
        unused: str = "last",
    ) -> None:
        if consensus not in CONSENSUS:
            raise UnknownNameError.among("consensus", consensus, CONSENSUS)
        self._count = count
        self._rebuild = Once() if rebuild is None else rebuild
        self._predictor = LastArrival() if predictor is None else predictor
        self.consensus = consensus
        self._unused = unused
        self._pending: list[Arrivals] = []
        self._conferred_at = 0
        self.backwards = 0
        self.rebuilds = 0

    def observe(self, arrivals: Arrivals) -> None:
        """Take the arrivals of one synced backward on this rank; cheap, the work is done when ranks confer."""
        self.backwards += 1
        if self.finished:
            return
        self._pending.append(arrivals)
        if len(self._pending) == 64:
            self._digest()

    @property
    def finished(self) -> bool:
        """Whether no further rebuild will be due; arrivals may then go unrecorded."""
        return self._rebuild.finished(self.rebuilds)

    def due(self) -> bool:
        """Return whether the ranks should confer now: the same on every rank, and once after a backward."""
        return self._conferred_at != self.backwards and self._rebuild.due(self.backwards, self.rebuilds)

    def expected(self) -> list[float]:
        """Return the ready times this rank expects, by registration index; NaN where it never saw a gradient."""
        self._digest()
        expected = list(self._predictor.predict()) or [math.nan] * self._count
        if len(expected) != self._count:
            what = f"{type(self._predictor).__name__}.predict() gave {len(expected)} times for {self._count} parameters"
            raise InputError(what, remedy="return one for each that observe() was given, NaN where unknown")
        return expected

    def confer(self, groups: Sequence[Sequence[int]], gather: Gather) -> list[int] | None:
        """Exchange expectations and return the order to rebuild in, or None to keep the buckets.

        Args:
            groups: buckets in force, as registration indices in launch order.
            gather: exchanges this rank's expectations for everybody's.

        Returns:
            All registration indices, the same on every rank.
        """
        self._conferred_at = self.backwards
        agreed = consensus(gather(self.expected()), self.consensus)
        order = arrange(agreed, self._unused)
        if not self._rebuild.wanted(plan_tau(groups, (i for i in order if not math.isnan(agreed[i]))), self.rebuilds):
            return None
        self.rebuilds += 1
        return order

    def _digest(self) -> None:
        for arrivals in self._pending:
            self._predictor.observe(arrivals.ready(self._count))
        self._pending.clear()


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """It is a rebuild that a policy asked for: before which iteration, in which order."""

    iteration: int
    order: tuple[int, ...]


def replay(
    arrivals: Sequence[Arrivals],
    policies: Sequence[OrderPolicy],
    groups: Sequence[Sequence[int]],
    assign: Callable[[Sequence[int]], Sequence[Sequence[int]]],
) -> Iterator[Rebuilt]:
    """Yield the rebuilds that policies would have asked for on recorded arrivals.

    Args:
        arrivals: of every rank, `policies[rank]` sees those of its rank; iterations without all ranks are passed over.
        policies: one a rank, alike.
        groups: buckets in force at first.
        assign: buckets for an order, such as `lambda order: rebuilt_plan(parameters, caps, order).groups()`.
    """
    known = {(a.iteration, a.rank): a for a in arrivals}
    for iteration in sorted({iteration for iteration, _ in known}):
        if any((iteration, rank) not in known for rank in range(len(policies))):
            continue
        for rank, policy in enumerate(policies):
            policy.observe(known[iteration, rank])
        order = _confer(policies, groups) if policies[0].due() else None
        if order is not None:
            groups = assign(order)
            yield Rebuilt(iteration + 1, tuple(order))


def _confer(policies: Sequence[OrderPolicy], groups: Sequence[Sequence[int]]) -> list[int] | None:
    everybody = [policy.expected() for policy in policies]
    orders = [policy.confer(groups, lambda _: everybody) for policy in policies]
    return orders[0]


def rebuild(text: str) -> Rebuild:
    """Return the rebuild policy that `text` names: `never`, `once`, `drift`, `drift:TAU` or `drift:TAU:EVERY`.

    Raises:
        UnknownNameError: no such policy.
        InputError: a parameter that is no number, or out of range.
    """
    name, *values = text.split(":")
    if name not in ("never", "once", "drift"):
        raise UnknownNameError.among("rebuild policy", name, ("never", "once", "drift"))
    if name != "drift":
        if values:
            raise InputError(f"rebuild policy {name!r} takes no parameter, got {text!r}", remedy=f"write {name}")
        return Never() if name == "never" else Once()
    default = OnDrift()
    try:
        tau = float(values[0]) if values else default.tau
        [every] = [int(value) for value in values[1:]] or [default.every]
    except ValueError:
        what = f"{text!r} names no Kendall's tau and number of backwards"
        raise InputError(what, remedy="write e.g. drift:0.95:50") from None
    return OnDrift(tau, every)


def _at_least_one(name: str, value: int) -> None:
    if value < 1:
        raise InputError(f"{name} {value!r} is out of range", remedy="give a whole number of at least 1")
