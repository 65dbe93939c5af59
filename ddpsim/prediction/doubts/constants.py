"""The doubt of one constant: the ends of its 80 % band, where there is one of its own."""

from __future__ import annotations

import math
from collections.abc import Iterable

from ddpsim.collectives.bands import NINETIETH
from ddpsim.collectives.constant import GIVEN, Constant
from ddpsim.common.tables import ResultTable, table_of
from ddpsim.prediction.doubts.causes import scale_ends
from ddpsim.prediction.doubts.spreads import BESIDE, COPIES, CUTS, DDP_HOST, DEVICES, DOUBT
from ddpsim.simulation.ddp_costs import HOST_COSTS


def describe_constant(constant: Constant) -> dict[str, object]:
    """Return what is said of a constant, with both ends of its doubt."""
    low, high = doubt_of(constant)
    return {
        "name": constant.name,
        "value": constant.value,
        "unit": constant.unit,
        "source": constant.source,
        "prior": not constant.fitted,
        "low": low,
        "high": high,
    }


def table_constants(constants: Iterable[Constant]) -> ResultTable:
    """Return the table of constants: value, doubt, what each rests on."""
    return table_of("constants", [{**describe_constant(each), "standing": each.standing} for each in constants])


def doubt_of(constant: Constant) -> tuple[float | None, float | None]:
    """Return the 10th and the 90th percentile of a constant in its own unit; None twice where it has no doubt.

    A transport's constants have the spread of their prior or fit; in predictions it is the whole collective that is
    held against tables. Constants that somebody gave are taken as they are.
    """
    if constant.source == GIVEN:
        return constant.value, constant.value
    _, ddp, name = constant.name.partition(".ddp.")
    if not ddp:
        if constant.log_std is None:
            return None, None
        factor = math.exp(NINETIETH * constant.log_std)
        return constant.value / factor, constant.value * factor
    if constant.fitted:
        extra = 1.0 if name.endswith("_slowdown") else 0.0
        low, high = ((constant.value - extra) * math.exp(end * DOUBT) + extra for end in (-1, 1))
        return low, high
    spread = {**dict.fromkeys(HOST_COSTS, DDP_HOST), **COPIES, **CUTS, **BESIDE, **DEVICES}.get(name)
    if spread is None:
        return None, None
    low, high = sorted(scale_ends(name, constant.value, spread))
    return low, high
