"""Whether a table of one node was timed on the host, and its rows without those that tell of the host alone.

A loop that waits on the host for every collective reports what a process, its launch and its wake-up take until the
message is large; DDP waits for none. Such rows neither fix a latency nor correct one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from statistics import median

from ddpsim.calibrating.measured import MeasuredTable
from ddpsim.calibrating.samples import Sample
from ddpsim.collectives.calibration import Calibration
from ddpsim.collectives.conditions import GPU_BACKENDS
from ddpsim.common.errors import CalibrationError
from ddpsim.common.units import format_count, format_time

SHORT_S = 100e-6
"""Rows that the priors predict to be shorter tell what a collective takes whatever its bytes."""

MOST_FACTOR, MOST_S = 2.5, 35e-6
"""How far such rows of nccl-tests, timed on the device, lie above the priors at most: of no table both.

`studies/accuracy/test_host_timed.py` holds every kept table of one node to it, but one that a loop in torch timed; the
farthest is 31 us off.
"""

FLAT = 2.0
"""The longest of such rows over the shortest where the host sets them; a slow link's times grow with their bytes."""

_LEFT = 4.0
"""A row this many times the host's floor is taken to tell of the device: a quarter of it is the host's at most."""


def drop_host_timed_rows(sample: Sample, start: Calibration) -> MeasuredTable:
    """Return the table of `sample` without rows that the host set, and with a note where there are some.

    Raises:
        CalibrationError: a table of nothing else.
    """
    floor_s, table = host_floor_s(sample, start), sample.table
    if floor_s is None:
        return table
    rows = tuple(row for row in table.rows if row.time_s >= _LEFT * floor_s)
    what = f"timed on the host: no collective takes less than about {format_time(floor_s)}, whatever its bytes"
    if not rows:
        remedy = "measure with nccl-tests, or with events on the device"
        raise CalibrationError(what, place=table.name, remedy=remedy)
    note = f"{table.name}: {what}; {format_count(len(table.rows) - len(rows), 'row')} left out"
    return replace(table, rows=rows, notes=(*table.notes, note))


def latencies_held(start: Calibration) -> Calibration:
    """Return `start` with its latencies at their priors: rows of large messages that the host timed tell none."""
    held = {name: replace(each, log_std=None) for name, each in start.constants.items() if each.unit == "s"}
    return replace(start, constants={**start.constants, **held})


def host_floor_s(sample: Sample, start: Calibration) -> float | None:
    """Return the time that a table's short collectives take on the host; None of a table timed on the device."""
    if start.backend not in GPU_BACKENDS or sample.placement.nodes > 1 or sample.isolated:
        return None
    short = list(_list_latency_rows(sample, start))
    if len(short) < 2:
        return None
    times = [measured_s for measured_s, _ in short]
    above = median(measured_s - predicted_s for measured_s, predicted_s in short)
    factor = median(measured_s / predicted_s for measured_s, predicted_s in short)
    told = above > MOST_S and factor > MOST_FACTOR and max(times) <= FLAT * min(times)
    return median(times) if told else None


def _list_latency_rows(sample: Sample, start: Calibration) -> Iterator[tuple[float, float]]:
    """Yield measured and predicted times of the rows that tell of latency."""
    for measured_s, predicted_s in zip(sample.measured.tolist(), sample.predict(start).tolist(), strict=True):
        if predicted_s < SHORT_S:
            yield measured_s, predicted_s
