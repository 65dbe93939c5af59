"""A step of the kept lab that was predicted before it ran, above the same step as it was measured."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from ddpsim.common.errors import InputError
from ddpsim.common.files import read_json
from ddpsim.report.charts.timeline import TimelineStep
from ddpsim.report.plots import plot_lanes
from ddpsim.trace.records import BACKWARD, FORWARD, OPTIMIZER, WAIT, BucketTimes

LAB = Path(__file__).parents[2] / "traces" / "lab"
RUN = "gpt2-small-pair-wire1-default"
"""GPT-2 small on two ranks of a shaped network that needs as long for all gradients as backward for computing them."""

_PARTS = {"forward_s": FORWARD, "backward_compute_s": BACKWARD, "waiting_s": WAIT, "optimizer_s": OPTIMIZER}
"""Of a prediction or a recorded iteration, in the order in which they pass; what no part names waits for buckets."""


@cache
def steps() -> tuple[TimelineStep, TimelineStep]:
    """Return the step as it was predicted before the run, and the measured one of median length."""
    record: Any = read_json(LAB / "runs" / f"{RUN}.json.gz", InputError, "check out the file again")
    prediction = record["documents"]["prediction"]
    measured = [it for run in record["runs"] for it in run["iterations"] if it["rank"] == 0]
    middle = statistics.median_low([it["end_s"] - it["start_s"] for it in measured])
    (one, *_) = (it for it in measured if it["end_s"] - it["start_s"] == middle)
    ours = _step("predicted\nbefore the run", prediction, prediction["iteration_s"], 0.0)
    return ours, _step("measured", one, one["end_s"] - one["start_s"], one["start_s"])


def _step(label: str, document: Mapping[str, Any], total_s: float, start_s: float) -> TimelineStep:
    named = {part: document[part] for part in _PARTS if part != "waiting_s"}
    parts = {part: named.get(part, total_s - sum(named.values())) for part in _PARTS}
    ends = [0.0, *accumulate(parts.values())]
    phases = tuple((name, *at) for name, at in zip(_PARTS.values(), pairwise(ends), strict=True))
    buckets = tuple(_bucket(number, bucket, start_s) for number, bucket in enumerate(document["buckets"]))
    return TimelineStep(label, total_s, phases, buckets, (None,) * len(buckets))


def _bucket(number: int, bucket: Mapping[str, Any], start_s: float) -> BucketTimes:
    moments = {f"{name}_s": bucket[f"{name}_s"] - start_s for name in ("ready", "launched", "started", "finished")}
    written_s, size_bytes = moments["finished_s"], bucket["size_bytes"]
    return BucketTimes(index=number, size_bytes=size_bytes, parameters=(), wire_s=None, written_s=written_s, **moments)


def rows() -> Iterator[tuple[str, float, float]]:
    """Yield what is compared, predicted and measured in ms."""
    predicted, measured = steps()
    names = {WAIT: "waiting for the network"}
    for (name, *ours), (_, *real) in zip(predicted.phases, measured.phases, strict=True):
        yield names.get(name, name), (ours[1] - ours[0]) * 1e3, (real[1] - real[0]) * 1e3
    for name, index in (("first bucket reduced at", 0), ("last bucket reduced at", -1)):
        yield name, predicted.buckets[index].finished_s * 1e3, measured.buckets[index].finished_s * 1e3
    yield "step", predicted.iteration_s * 1e3, measured.iteration_s * 1e3


def draw(path: Path) -> None:
    """Draw both steps over one axis of time, each as a lane of computation above a lane of the network."""
    plot_lanes(steps(), path)
