"""A step of the kept lab that was predicted before it ran, above the same step as it was measured."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from ddpsim.errors import InputError
from ddpsim.files import read_json
from ddpsim.plots.figure import save

LAB = Path(__file__).parents[2] / "traces" / "lab"
RUN = "gpt2-small-pair-wire1-default"
"""GPT-2 small on two ranks of a shaped network that needs as long for all gradients as backward for computing them."""

_PARTS = {
    "forward_s": ("forward", "#4c78a8"),
    "backward_compute_s": ("backward", "#f58518"),
    "waiting_s": ("waiting for the network", "#e8e8e8"),
    "optimizer_s": ("optimizer", "#54a24b"),
}
_NETWORK = ("#72b7b2", "#2f8f89")
"""Buckets take turns between two shades, so that neighbours are told apart."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of rank 0: seconds by part, in the order in which they pass, and when each bucket was on the network."""

    parts: Mapping[str, float]
    buckets: Sequence[tuple[float, float]]

    @property
    def total_s(self) -> float:
        """From the start of forward to the end of the optimizer."""
        return sum(self.parts.values())


@cache
def steps() -> tuple[Step, Step]:
    """Return the step as it was predicted before the run, and the measured one of median length."""
    record = read_json(LAB / "runs" / f"{RUN}.json.gz", InputError, "check out the file again")
    prediction = record["documents"]["prediction"]
    measured = [it for run in record["runs"] for it in run["iterations"] if it["rank"] == 0]
    middle = statistics.median_low([it["end_s"] - it["start_s"] for it in measured])
    (one, *_) = (it for it in measured if it["end_s"] - it["start_s"] == middle)
    return _step(prediction, prediction["iteration_s"], 0.0), _step(one, one["end_s"] - one["start_s"], one["start_s"])


def _step(document: Mapping[str, Any], total_s: float, start_s: float) -> Step:
    """Return a step from a prediction or a recorded iteration: what no part names is time that waits for buckets."""
    named = {part: document[part] for part in _PARTS if part != "waiting_s"}
    parts = {part: named.get(part, total_s - sum(named.values())) for part in _PARTS}
    return Step(parts, [(b["started_s"] - start_s, b["finished_s"] - start_s) for b in document["buckets"]])


def rows() -> Iterator[tuple[str, float, float]]:
    """Yield what is compared, predicted and measured in ms."""
    predicted, measured = steps()
    for part, (label, _) in _PARTS.items():
        yield label, predicted.parts[part] * 1e3, measured.parts[part] * 1e3
    for name, index in (("first bucket reduced at", 0), ("last bucket reduced at", -1)):
        yield name, predicted.buckets[index][1] * 1e3, measured.buckets[index][1] * 1e3
    yield "step", predicted.total_s * 1e3, measured.total_s * 1e3


def draw(path: Path) -> None:
    """Draw both steps over one axis of time, each as a lane of computation above a lane of the network."""
    figure = Figure(figsize=(10, 3.6), layout="constrained")
    axes = figure.add_subplot()
    for place, (label, step) in enumerate(zip(("predicted\nbefore the run", "measured"), steps(), strict=True)):
        _draw(axes, step, 2.6 * place)
        axes.text(-0.012, 2.6 * place + 0.9, label, transform=axes.get_yaxis_transform(), ha="right", va="center")
    longest = max(step.total_s for step in steps()) * 1e3
    axes.set(xlim=(0, 1.1 * longest), ylim=(4.6, -0.1), yticks=[], xlabel="ms from the start of forward")
    handles = [axes.barh([-9], [0], color=colour, label=label) for label, colour in _PARTS.values()]
    handles.append(axes.barh([-9], [0], color=_NETWORK[0], label="buckets on the network"))
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles), frameon=False, fontsize=9)
    for side in ("left", "right", "top"):
        axes.spines[side].set_visible(False)
    save(figure, path)


def _draw(axes: Any, step: Step, top: float) -> None:
    begin = 0.0
    for part, (_, colour) in _PARTS.items():
        axes.broken_barh([(begin * 1e3, step.parts[part] * 1e3)], (top, 0.85), color=colour)
        begin += step.parts[part]
    for number, (start, end) in enumerate(step.buckets):
        axes.broken_barh([(start * 1e3, (end - start) * 1e3)], (top + 0.95, 0.85), color=_NETWORK[number % 2])
    axes.plot([begin * 1e3] * 2, [top - 0.05, top + 1.85], color="0.2", linewidth=1)
    axes.text(begin * 1e3 + 12, top + 0.45, f"{begin * 1e3:.0f} ms", va="center", fontsize=10)
