"""What kind of thing each constructor option must be; values are checked where they are used."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from ddpexec.ddp.drop import LayerDrop
from ddpexec.errors import OptionError
from ddpexec.timing.observe import Observer
from ddpsim.bucketing import BucketPlan

LONG = 60
"""Characters of a value that are still shown."""

_KINDS: dict[str, tuple[type | None, tuple[str, ...], str]] = {
    "module": (nn.Module, (), "give the torch.nn.Module to train"),
    "plan": (BucketPlan, (), "give a ddpsim.BucketPlan, e.g. what ddpsim.load_plan made of a file"),
    "drop": (LayerDrop, (), "give a ddpexec.ddp.drop.LayerDrop"),
    "observer": (Observer, (), "give a ddpexec.timing.observe.Observer"),
    "rebuild": (str, ("due",), "give never, once, drift or a ddpsim.order.Rebuild"),
    "predictor": (
        str, ("observe", "predict"),
        "give last, mean, exponential, branch, context, package.module:Class or a ddpsim.order.Predictor",
    ),
    "consensus": (str, (), "give rank0, mean or slowest"),
    "device_mesh": (None, ("ndim", "get_group"), "give what init_device_mesh returned"),
    "mixed_precision": (
        None, ("param_dtype", "reduce_dtype", "buffer_dtype"), "give a torch.nn.parallel.distributed._MixedPrecision",
    ),
    "device_ids": (Sequence, (), "give a list of one device, e.g. [0]"),
}  # fmt: skip
"""Option: its type, the attributes by which something else is taken for it, and what to give."""

_REQUIRED = "module", "predictor", "consensus"
"""Options that may not be None."""


def check_flags(**flags: object) -> None:
    """Raise OptionError for an option that is neither True nor False."""
    for name, value in flags.items():
        if not isinstance(value, (bool, int)) or value not in (True, False):
            raise OptionError(f"{name}={value!r} is neither True nor False", remedy="give one of these")


def check_objects(**options: object) -> None:
    """Raise OptionError for an option that is not of its kind."""
    for name, value in options.items():
        kind, attributes, remedy = _KINDS[name]
        fits = kind is not None and isinstance(value, kind) and (kind is str or not isinstance(value, str))
        alike = bool(attributes) and all(hasattr(value, attribute) for attribute in attributes)
        if not (fits or alike or (value is None and name not in _REQUIRED)):
            shown = repr(value)
            shown = f"{name}={shown}" if len(shown) <= LONG else name
            raise OptionError(f"{shown} is of type {type(value).__name__}", remedy=remedy)
