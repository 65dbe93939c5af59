"""Predictors of when gradients will be ready, and by what names they are found.

A predictor is any object with these two methods; ten lines make one::

    class MedianReady:
        def __init__(self):
            self.seen = []

        def observe(self, ready):
            self.seen.append(list(ready))

        def predict(self):
            return [statistics.median(times) for times in zip(*self.seen)]

Its name, `package.module:MedianReady`, is then an option of predictions, runs and the bench alike.

An installed package offers one by an entry point of the group `ddpsim.predictors`::

    [project.entry-points."ddpsim.predictors"]
    median = "my_package.predictors:MedianReady"

Start at `Predictor`; `LastArrival` is the simplest one, and `predictor` finds one by its name.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, runtime_checkable

from ddpsim.common.errors import InputError, UnknownNameError
from ddpsim.common.options.own import convert_exit, import_object


class Predictor(Protocol):
    """What the next backward is expected to bring, learnt from those before; one on each rank."""

    def observe(self, ready: Sequence[float]) -> None:
        """Take one backward: the ready time of each parameter by registration index, NaN where no gradient came."""

    def predict(self) -> Sequence[float]:
        """Return the expected ready time of each parameter, in the unit of what was observed; NaN where unknown."""


@runtime_checkable
class KnowsContext(Protocol):
    """A predictor that gets the context of a batch: before `observe` that batch's, before `predict` the next one's."""

    def context(self, value: Hashable) -> None:
        """Take the context of the batch to observe or to predict; None where nothing is known."""


class LastArrival:
    """Expects what came last, as torch does; a parameter without a gradient keeps its last time."""

    def __init__(self) -> None:
        self._last: list[float] = []

    def observe(self, ready: Sequence[float]) -> None:
        """Keep `ready`."""
        before = self._last or [math.nan] * len(ready)
        self._last = [new if new == new else old for old, new in zip(before, ready, strict=True)]

    def predict(self) -> list[float]:
        """Return the last ready times."""
        return list(self._last)


class MeanReady:
    """Expects the mean ready time of the backwards that brought a gradient."""

    def __init__(self) -> None:
        self._sums: list[float] = []
        self._counts: list[int] = []

    def observe(self, ready: Sequence[float]) -> None:
        """Add `ready` to the sums."""
        if not self._sums:
            self._sums, self._counts = [0.0] * len(ready), [0] * len(ready)
        # Only NaN differs from itself; saves a call for each parameter.
        self._sums = [s + time if time == time else s for s, time in zip(self._sums, ready, strict=True)]
        self._counts = [n + (time == time) for n, time in zip(self._counts, ready, strict=True)]

    def predict(self) -> list[float]:
        """Return the means."""
        return [s / count if count else math.nan for s, count in zip(self._sums, self._counts, strict=True)]


class ExponentialMean:
    """Expects a mean in which each new backward has `weight`, so that old ones fade.

    Args:
        weight: above 0, at most 1; 1 is `LastArrival`.

    Raises:
        InputError: where `weight` is out of range.
    """

    def __init__(self, weight: float = 0.2) -> None:
        if not 0 < weight <= 1:
            raise InputError(f"weight {weight!r} is out of range", remedy="give a number above 0 and at most 1")
        self._weight = weight
        self._mean: list[float] = []

    def observe(self, ready: Sequence[float]) -> None:
        """Move the means towards `ready`."""
        before = self._mean or [math.nan] * len(ready)
        self._mean = [self._move(old, new) for old, new in zip(before, ready, strict=True)]

    def predict(self) -> list[float]:
        """Return the means."""
        return list(self._mean)

    def _move(self, old: float, new: float) -> float:
        if math.isnan(new):
            return old
        return new if math.isnan(old) else old + self._weight * (new - old)


Used = frozenset[int]


class ByBranch:
    """Learns the mean ready times of each branch, a set of used parameters, and which branches follow which.

    Expects the mean over the branches that have followed the last one, each as often as it has; a parameter that none
    of them used is expected to go unused. Before a branch has been followed, all branches count.

    Attributes:
        MOST: branches that are remembered; those seen least are forgotten.
    """

    MOST = 64

    def __init__(self) -> None:
        self._means: dict[Used, MeanReady] = {}
        self._after: dict[Used, dict[Used, int]] = {}
        self._last: Used | None = None
        self._count = 0

    def observe(self, ready: Sequence[float]) -> None:
        """Add a backward to its branch, and the branch to those that follow the one before."""
        used = frozenset(index for index, time in enumerate(ready) if time == time)
        self._count = len(ready)
        self._means.setdefault(used, MeanReady()).observe(ready)
        if self._last is not None:
            following = self._after.setdefault(self._last, {})
            following[used] = following.get(used, 0) + 1
        self._last = used
        if len(self._means) > self.MOST:
            self._forget()

    def predict(self) -> list[float]:
        """Return the mean over what has followed the last branch."""
        following = {} if self._last is None else self._after.get(self._last, {})
        known = {used: times for used, times in following.items() if used in self._means}
        weights = known or dict.fromkeys(self._means, 1)
        sums, counts = [0.0] * self._count, [0] * self._count
        for used, times in weights.items():
            mean = self._means[used].predict()
            for index in used:
                sums[index] += times * mean[index]
                counts[index] += times
        return [total / count if count else math.nan for total, count in zip(sums, counts, strict=True)]

    def _forget(self) -> None:
        followed = {used: sum(after.get(used, 0) for after in self._after.values()) for used in self._means}
        least = min((used for used in followed if used != self._last), key=lambda used: (followed[used], sorted(used)))
        del self._means[least]
        self._after.pop(least, None)
        for after in self._after.values():
            after.pop(least, None)


class ByContext:
    """Learns the mean ready times of each context of a batch; of one never seen, the mean of all.

    A parameter that no backward of the context used is expected to go unused.
    """

    def __init__(self) -> None:
        self._means: dict[Hashable, MeanReady] = {}
        self._all = MeanReady()
        self._context: Hashable = None

    def context(self, value: Hashable) -> None:
        """Take the context of the batch to observe or to predict."""
        self._context = value

    def observe(self, ready: Sequence[float]) -> None:
        """Add a backward to its context."""
        self._means.setdefault(self._context, MeanReady()).observe(ready)
        self._all.observe(ready)

    def predict(self) -> list[float]:
        """Return the means of the coming batch's context."""
        return self._means.get(self._context, self._all).predict()


GROUP = "ddpsim.predictors"
"""Of the entry points that installed packages offer."""

PREDICTORS: Mapping[str, Callable[[], Predictor]] = {
    "last": LastArrival,
    "mean": MeanReady,
    "exponential": ExponentialMean,
    "branch": ByBranch,
    "context": ByContext,
}
"""The built-in ones."""


def entry_points(group: str) -> Any:
    """Return the entry points of a group, by a module that few need and that takes long to load."""
    from importlib import metadata

    return metadata.entry_points(group=group)


def predictor(choice: object) -> Predictor:
    """Return a new predictor.

    Args:
        choice: the name of a built-in one or of an entry point, `package.module:Class`, a class or a function without
            arguments, or a predictor, which is copied as it is now.

    Raises:
        UnknownNameError: no such name; it gives the nearest.
        InputError: what cannot be imported, or is no predictor when it is made.
    """
    if not isinstance(choice, str):
        candidate = _construct(choice, predictor_name(choice)) if callable(choice) else copy.deepcopy(choice)
        return _check_predictor(candidate, predictor_name(choice))
    if choice in PREDICTORS:
        return PREDICTORS[choice]()
    return _check_predictor(_construct(_import_predictor(choice), choice), choice)


def _import_predictor(name: str) -> Any:
    place, remedy = f"predictor {name!r}", "name package.module:Class"
    load: Callable[[], Any]
    if ":" not in name:
        offered = {each.name: each for each in entry_points(group=GROUP)}
        if name not in offered:
            raise UnknownNameError.among("predictor", name, [*PREDICTORS, *offered, "package.module:Class"])
        load = offered[name].load
    else:
        load = partial(import_object, name)

    try:
        return load()
    except Exception as error:  # importing another's module may raise anything
        raise InputError(f"cannot be imported: {_format_error(error)}", place=place, remedy=remedy) from error


def _construct(make: Any, name: str) -> object:
    place = f"predictor {name!r}"
    if not callable(make):
        raise InputError("is neither a class nor a function", place=place, remedy="name one that makes a predictor")
    try:
        with convert_exit(RuntimeError):
            return make()
    except Exception as error:
        remedy = "let it be made without arguments"
        raise InputError(f"cannot be made: {_format_error(error)}", place=place, remedy=remedy) from error


def _check_predictor(candidate: Any, name: str) -> Predictor:
    for method in ("observe", "predict"):
        if not callable(getattr(candidate, method, None)):
            what = f"{type(candidate).__name__} has no method {method}()"
            raise InputError(what, place=f"predictor {name!r}", remedy="see ddpsim.bucketing.order.Predictor")
    return candidate  # type: ignore[no-any-return]


def predictor_name(choice: object) -> str:
    """Return what a predictor is called, as `predictor` takes it: its name, or that of its class."""
    return choice if isinstance(choice, str) else str(getattr(choice, "__qualname__", type(choice).__qualname__))


def _format_error(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
