"""Predictors by name: the built-in ones, those of installed packages, and anybody's own.

A package offers one by an entry point of the group `ddpsim.predictors`::

    [project.entry-points."ddpsim.predictors"]
    median = "my_package.predictors:MedianReady"
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from ddpsim.errors import InputError, UnknownNameError
from ddpsim.options.own import exits_as, imported
from ddpsim.order.learning import ByBranch, ByContext
from ddpsim.order.predictors import ExponentialMean, LastArrival, MeanReady, Predictor

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


def predictor(asked: object) -> Predictor:
    """Return a new predictor.

    Args:
        asked: the name of a built-in one or of an entry point, `package.module:Class`, a class or a function without
            arguments, or a predictor, which is copied as it is now.

    Raises:
        UnknownNameError: no such name; it gives the nearest.
        InputError: what cannot be imported, or is no predictor when it is made.
    """
    if not isinstance(asked, str):
        made = _construct(asked, predictor_name(asked)) if callable(asked) else copy.deepcopy(asked)
        return _checked(made, predictor_name(asked))
    if asked in PREDICTORS:
        return PREDICTORS[asked]()
    return _checked(_construct(_import_predictor(asked), asked), asked)


def _import_predictor(name: str) -> Any:
    place, remedy = f"predictor {name!r}", "name package.module:Class"
    load: Callable[[], Any]
    if ":" not in name:
        offered = {each.name: each for each in entry_points(group=GROUP)}
        if name not in offered:
            raise UnknownNameError.among("predictor", name, [*PREDICTORS, *offered, "package.module:Class"])
        load = offered[name].load
    else:
        load = partial(imported, name)

    try:
        return load()
    except Exception as error:  # whatever a module of somebody else's raises when it is imported
        raise InputError(f"cannot be imported: {_format_error(error)}", place=place, remedy=remedy) from error


def _construct(make: Any, name: str) -> object:
    place = f"predictor {name!r}"
    if not callable(make):
        raise InputError("is neither a class nor a function", place=place, remedy="name one that makes a predictor")
    try:
        with exits_as(RuntimeError):
            return make()
    except Exception as error:
        remedy = "let it be made without arguments"
        raise InputError(f"cannot be made: {_format_error(error)}", place=place, remedy=remedy) from error


def _checked(made: Any, name: str) -> Predictor:
    for method in ("observe", "predict"):
        if not callable(getattr(made, method, None)):
            what = f"{type(made).__name__} has no method {method}()"
            raise InputError(what, place=f"predictor {name!r}", remedy="see ddpsim.order.Predictor")
    return made  # type: ignore[no-any-return]


def predictor_name(asked: object) -> str:
    """Return what a predictor is called, as `predictor` takes it: its name, or that of its class."""
    return asked if isinstance(asked, str) else str(getattr(asked, "__qualname__", type(asked).__qualname__))


def _format_error(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
