"""What kind of thing each constructor option must be; values are checked where they are used."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from ddpexec.ddp.drop import LayerDrop
from ddpexec.errors import OptionError
from ddpexec.timing.observe import Observer
from ddpsim.bucketing import BucketPlan

LONG = 60
"""Characters of a value that are still shown."""


def _has(*names: str) -> Callable[[Any], bool]:
    return lambda value: all(hasattr(value, name) for name in names)


def _is(kind: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, kind)


def _name_or(*names: str) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, str) or all(callable(getattr(value, name, None)) for name in names)


_KINDS: dict[str, tuple[bool, Callable[[Any], bool], str]] = {
    "module": (False, _is(nn.Module), "give the torch.nn.Module to train"),
    "plan": (
        True,
        _is(BucketPlan),
        "give a ddpsim.BucketPlan, e.g. what ddpsim.load_plan made of a file",
    ),
    "drop": (True, _is(LayerDrop), "give a ddpexec.ddp.drop.LayerDrop"),
    "observer": (True, _is(Observer), "give a ddpexec.timing.observe.Observer"),
    "rebuild": (True, _name_or("due"), "give never, once, drift or a ddpsim.order.Rebuild"),
    "predictor": (
        False,
        _name_or("observe", "predict"),
        "give last, mean, exponential, branch, context, package.module:Class or a ddpsim.order.Predictor",
    ),
    "consensus": (False, _is(str), "give rank0, mean or slowest"),
    "device_mesh": (True, _has("ndim", "get_group"), "give what init_device_mesh returned"),
    "mixed_precision": (
        True,
        _has("param_dtype", "reduce_dtype", "buffer_dtype"),
        "give a torch.nn.parallel.distributed._MixedPrecision",
    ),
    "device_ids": (
        True,
        lambda value: isinstance(value, Sequence) and not isinstance(value, str),
        "give a list of one device, e.g. [0]",
    ),
}
"""Option: whether it may be None, whether a value is of its kind, and what to give."""


def check_flags(**flags: object) -> None:
    """Raise OptionError for an option that is neither True nor False."""
    for name, value in flags.items():
        if not isinstance(value, (bool, int)) or value not in (True, False):
            raise OptionError(f"{name}={value!r} is neither True nor False", remedy="give one of these")


def check_objects(**options: object) -> None:
    """Raise OptionError for an option that is not of its kind."""
    for name, value in options.items():
        optional, fits, remedy = _KINDS[name]
        if not (optional and value is None) and not fits(value):
            shown = repr(value)
            shown = f"{name}={shown}" if len(shown) <= LONG else name
            raise OptionError(f"{shown} is of type {type(value).__name__}", remedy=remedy)
