"""Which predictions a verdict may rank beside each other: those at the pace of their machine's own GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from ddpsim.prediction.prediction import Prediction

Row = TypeVar("Row")


def list_rankable(rows: Iterable[Row], prediction: Callable[[Row], Prediction]) -> list[Row]:
    """Return the rows that a verdict may rank; none where no machine's own pace is known.

    A row whose workload keeps the pace of a GPU that its machine does not have says what that GPU would do there, not
    the machine. Machines without GPUs have no pace of their own, so that they are ranked where all are such.
    """
    found = list(rows)
    if all(prediction(row).topology.compute_device == "cpu" for row in found):
        return found
    return [row for row in found if not prediction(row).other_devices]


def describe_overlap(machines: Iterable[str]) -> str:
    """Return what is said of machines whose bands overlap with that of the best."""
    return f"within its band too: {', '.join(machines)}; measure one step on a GPU of each before deciding"


def list_unranked(predictions: Iterable[Prediction]) -> Iterator[tuple[str, list[Prediction]]]:
    """Yield why some of the predictions are not ranked, `keeps the pace of V100, has A100`, with these predictions."""
    found = list(predictions)
    ranked = set(map(id, list_rankable(found, lambda each: each)))
    said: dict[str, list[Prediction]] = {}
    for each in found:
        if id(each) not in ranked:
            why = f"keeps the pace of {each.workload.device_label}, has {', '.join(each.other_devices)}"
            said.setdefault(why, []).append(each)
    yield from said.items()
