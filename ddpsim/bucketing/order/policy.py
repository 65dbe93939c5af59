"""What a rank does with what it has seen: when to rebuild buckets, with the other ranks, and in which order."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from ddpsim.bucketing.order.agreement import plan_tau
from ddpsim.bucketing.order.arrivals import Arrivals
from ddpsim.bucketing.order.consensus import CONSENSUS, arrange, consensus
from ddpsim.bucketing.order.predictors import KnowsContext, LastArrival, Predictor
from ddpsim.bucketing.order.rebuild import Once, Rebuild
from ddpsim.common.errors import InputError, UnknownNameError

Gather = Callable[[Sequence[float]], Sequence[Sequence[float]]]
"""Gives this rank's times to all ranks and returns those of all, by rank; the same answer everywhere."""

Tell = Callable[[str], Sequence[str]]
"""Gives this rank's words to all ranks and returns those of all, by rank."""

FAILED = -math.inf
"""What a rank whose predictor failed sends in place of each time: no predictor may return it."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What ranks agreed on.

    Attributes:
        expected: ready times by registration index, NaN where no gradient is expected.
        tau: Kendall's, of the buckets in force and the order they imply.
        order: to rebuild in; None keeps the buckets.
    """

    expected: tuple[float, ...]
    tau: float
    order: tuple[int, ...] | None


class OrderPolicy:
    """Watches arrivals on one rank and says, with the other ranks, when to rebuild and in which order.

    Drive it so: after each synced backward `observe` the order; before the next forward say what is `coming`, ask
    `due`, and where that is true `confer` with a function that gathers from all ranks. `due` counts backwards alone and
    is the same everywhere.

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
        self._coming: Hashable = None
        self._seen_any = False
        self._failure: Exception | None = None
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

    def coming(self, context: Hashable) -> None:
        """Take what is known of the next batch on this rank, for predictors that learn by it."""
        self._coming = context

    @property
    def finished(self) -> bool:
        """Whether no further rebuild will be due; arrivals may then go unrecorded."""
        return self._rebuild.finished(self.rebuilds)

    def due(self) -> bool:
        """Return whether the ranks should confer now: the same on every rank, and once after a backward."""
        return self._conferred_at != self.backwards and self._rebuild.due(self.backwards, self.rebuilds)

    def expected(self) -> list[float]:
        """Return the ready times this rank expects, by registration index; NaN where it never saw a gradient.

        Raises:
            InputError: a predictor that raises, or returns what are not as many times as there are parameters.
        """
        self._digest()
        if self._failure is not None:
            raise self._failed("observe", self._failure)
        try:
            self._tell(self._coming)
            times = list(self._predictor.predict())
        except Exception as error:  # a predictor is a user's code, which may raise anything
            raise self._failed("predict", error) from error
        return self._check_times(times or [math.nan] * self._count)

    def confer(
        self, groups: Sequence[Sequence[int]], gather: Gather, tell: Tell = lambda words: [words]
    ) -> list[int] | None:
        """Exchange expectations and return the order to rebuild in, or None to keep the buckets.

        Args:
            groups: buckets in force, as registration indices in launch order.
            gather: exchanges this rank's expectations for everybody's.
            tell: exchanges this rank's words for everybody's; called on every rank where a predictor failed on one.

        Returns:
            All registration indices, the same on every rank.

        Raises:
            InputError: a rank's predictor failed; every rank raises the same.
        """
        order = self.decide(groups, gather, tell).order
        return None if order is None else list(order)

    def decide(self, groups: Sequence[Sequence[int]], gather: Gather, tell: Tell = lambda words: [words]) -> Decision:
        """Do as `confer`, and return what was agreed on too."""
        self._conferred_at = self.backwards
        problem = ""
        try:
            mine = self.expected()
        except InputError as error:
            mine, problem = [FAILED] * self._count, str(error)
        # A rank that failed takes part in the exchange too: the others would wait for it in a collective that never
        # ends.
        everybody = gather(mine)
        if any(FAILED in times for times in everybody):
            raise InputError(_format_first(tell(problem)), place="predictor")
        agreed = consensus(everybody, self.consensus)
        order = arrange(agreed, self._unused)
        # What is announced with the first gradient has a place in the order; what torch appends has none.
        placed = order if self._unused == "first" else (i for i in order if not math.isnan(agreed[i]))
        tau = plan_tau(groups, placed)
        return Decision(tuple(agreed), tau, tuple(order) if self._wants_rebuild(tau) else None)

    def follow(self, decision: Decision) -> None:
        """Take part in a decision that another rank has worked out."""
        self._conferred_at = self.backwards
        self._wants_rebuild(decision.tau)

    def _wants_rebuild(self, tau: float) -> bool:
        wanted = self._rebuild.wanted(tau, self.rebuilds)
        self.rebuilds += wanted
        return wanted

    def _digest(self) -> None:
        for arrivals in self._pending:
            self._seen_any |= bool(arrivals.order)
            if self._failure is None:
                self._learn(arrivals)
        self._pending.clear()

    def _learn(self, arrivals: Arrivals) -> None:
        try:
            self._tell(arrivals.context)
            self._predictor.observe(arrivals.list_ready(self._count))
        except Exception as error:  # raised when the ranks confer, so that all of them hear of it
            self._failure = error

    def _tell(self, context: Hashable) -> None:
        if isinstance(self._predictor, KnowsContext):
            self._predictor.context(context)

    def _check_times(self, predicted: list[float]) -> list[float]:
        name = type(self._predictor).__name__
        if len(predicted) != self._count:
            what = f"{name}.predict() gave {len(predicted)} times for {self._count} parameters"
            raise InputError(what, remedy="return one for each that observe() was given, NaN where unknown")
        times = [_time(time) for time in predicted]
        for index, time in enumerate(times):
            if time is None:
                what = f"{name}.predict() gave {predicted[index]!r} for parameter {index}"
                raise InputError(what, remedy="return a finite number, NaN where unknown")
        if self._seen_any and all(time != time for time in times):
            what = f"{name}.predict() gave NaN for all {self._count} parameters after {self.backwards} backwards"
            raise InputError(what, remedy="return the times of those that have come")
        return [time for time in times if time is not None]

    def _failed(self, method: str, error: Exception) -> InputError:
        what = f"{type(self._predictor).__name__}.{method}() raised {type(error).__name__}: {error}"
        return InputError(what, remedy="see ddpsim.bucketing.order.Predictor for what it is given")


def _time(value: object) -> float | None:
    """Return a time as a predictor gave it; None where it is none."""
    try:
        time = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    return None if math.isinf(time) else time


def _format_first(problems: Sequence[str]) -> str:
    rank, problem = next((rank, problem) for rank, problem in enumerate(problems) if problem)
    return f"on rank {rank}, {problem}" if len(problems) > 1 else problem
