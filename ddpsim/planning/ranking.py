"""Which predictions a verdict may rank beside each other: those at the pace of their machine's own GPU."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from ddpsim.prediction.doubts.causes import rests_on_nvidia
from ddpsim.prediction.doubts.spreads import AMD_SOFTWARE
from ddpsim.prediction.prediction import Prediction
from ddpsim.workload.anchors import MEASURED_ON

Row = TypeVar("Row")


def list_rankable(rows: Iterable[Row], prediction: Callable[[Row], Prediction]) -> list[Row]:
    """Return the rows that a verdict may rank; none where no machine's own pace is known.

    A row whose workload keeps the pace of a GPU that its machine does not have says what that GPU would do there, not
    the machine. Machines without GPUs have no pace of their own, so that they are ranked where all are such.
    """
    every = list(rows)
    if all(prediction(row).topology.compute_device == "cpu" for row in every):
        return every
    return [row for row in every if not prediction(row).other_devices]


def describe_overlap(machines: Iterable[str]) -> str:
    """Return what is said of machines whose bands overlap with that of the best."""
    return f"as good within its uncertainty: {', '.join(machines)}; measure one step on a GPU of each before deciding"


def describe_borrowed(predictions: Iterable[Prediction]) -> Iterator[str]:
    """Yield a sentence on each machine whose place in a ranking rests on steps of other GPUs."""
    ranked = list_rankable(predictions, lambda each: each)
    amd = dict.fromkeys(each.topology.name for each in ranked if rests_on_nvidia(each.workload))
    if amd:
        yield (
            f"{', '.join(amd)}: ranked as if it reached the share of peak of NVIDIA's GPUs; the only published step "
            f"on MI300X took {math.exp(AMD_SOFTWARE.high):.1f} times as long, so measure a step there before deciding"
        )
    carried: dict[str, dict[str, None]] = {}
    for each in ranked:
        if (other := each.workload.provenance.get(MEASURED_ON)) is not None:
            carried.setdefault(str(other), {})[each.topology.name] = None
    for other, machines in carried.items():
        yield f"{', '.join(machines)}: ranked as if as near to its roofline as the step measured on {other}"


def list_unranked(predictions: Iterable[Prediction]) -> Iterator[tuple[str, list[Prediction]]]:
    """Yield why predictions are not ranked, `its compute times are of V100, it has A100`, with these predictions."""
    every = list(predictions)
    ranked = set(map(id, list_rankable(every, lambda each: each)))
    by_reason: dict[str, list[Prediction]] = {}
    for each in every:
        if id(each) not in ranked:
            why = f"its compute times are of {each.workload.device_label}, it has {', '.join(each.other_devices)}"
            by_reason.setdefault(why, []).append(each)
    yield from by_reason.items()
