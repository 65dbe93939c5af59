"""A line an interval: how long steps took and where, and what has become worse.

What is told of the whole interval comes from the start of every step; its parts from the steps that were stamped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt
from statistics import median
from typing import Any

from ddpsim.trace.metrics import length, quantile, union
from ddpsim.trace.records import Iteration

GREW = 1.05
"""A step this many times its first interval's has grown."""
FELL = 0.05
"""Overlap this much below its first interval's has fallen; a share of communication."""
LATE, SPREADS = 0.02, 4.0
"""A rank is late that computes longer than the median of the others by this share of the step, and by this many times
what the others differ by, or its own steps leave open; the first is what is worth naming, the second chosen by hand."""
PHASES = ("forward_s", "backward_compute_s", "optimizer_s", "input_s")


def describe_interval(
    number: int, first_step: int, steps: int, step_s: Sequence[float], iterations: Sequence[Iteration]
) -> dict[str, Any]:
    """Return one rank's document of an interval; values of phases that were not stamped are None.

    Args:
        number: from 0 on.
        first_step, steps: its first step and how many it has.
        step_s: seconds of each step, on the host's clock.
        iterations: those that were stamped.
    """
    summary: dict[str, Any] = {
        "interval": number,
        "first_step": first_step,
        "steps": steps,
        "stamped": len(iterations),
        "step_s": _median(step_s),
        "step_p90_s": quantile(step_s, 0.9) if step_s else None,
    }
    for phase in (*PHASES, "exposed_comm_s"):
        summary[phase] = _median([getattr(it, phase) or 0.0 for it in iterations])
    own = [it.iteration_s - it.exposed_comm_s for it in iterations if it.synced]
    summary["own_s"] = _median(own)
    summary["own_error_s"] = (quantile(own, 0.75) - quantile(own, 0.25)) / sqrt(len(own)) if own else None
    summary["overlap_ratio"] = _median([r for it in iterations if (r := overlap(it)) is not None])
    return summary


def overlap(iteration: Iteration) -> float | None:
    """Return the share of communication time that no rank waited for; None without communication."""
    seconds = length(union((bucket.started_s, bucket.finished_s) for bucket in iteration.buckets))
    return max(0.0, 1 - iteration.exposed_comm_s / seconds) if seconds > 0 else None


class Watcher:
    """Tells what has become worse since the first interval, once when it does and once when it is over."""

    def __init__(self) -> None:
        self._first: dict[str, float] = {}
        self._on: set[str] = set()

    def events(self, words: Mapping[str, Any], others: Mapping[int, Mapping[str, Any]], rank: int) -> list[str]:
        """Return what there is to say of an interval, in sentences.

        Args:
            words: of this rank.
            others: by rank, where they were heard.
            rank: this one.
        """
        lines: list[str] = []
        step, hidden = words["step_s"], words["overlap_ratio"]
        if step is not None:
            first = self._first.setdefault("step_s", step)
            text = f"the step grew {step / first - 1:.1%}: {step * 1e3:.4g} ms, at first {first * 1e3:.4g} ms"
            lines += self._note_turn("step", step > GREW * first, text, "the step is as it was at first")
        if hidden is not None:
            first = self._first.setdefault("overlap_ratio", hidden)
            text = f"overlap fell to {hidden:.0%} of communication, at first {first:.0%}"
            lines += self._note_turn("overlap", hidden < first - FELL, text, "overlap is as it was at first")
        everybody = {rank: words, **others}
        late = find_late_ranks(everybody)
        for each in sorted(everybody) if others else ():
            lines += self._note_turn(f"rank {each}", each in late, late.get(each, ""), f"rank {each} is late no more")
        return lines

    def _note_turn(self, name: str, on: bool, text: str, over: str) -> list[str]:
        if on == (name in self._on):
            return []
        (self._on.add if on else self._on.discard)(name)
        return [text if on else over]


def find_late_ranks(everybody: Mapping[int, Mapping[str, Any]]) -> dict[int, str]:
    """Return the ranks that others wait for, each with a sentence that names the phase.

    A rank's own time is its step without what it waited for collectives: those who wait for a late rank wait longer,
    and only its own time grows. So a slow link makes no rank late, and no clocks are compared.
    """
    known = {rank: words for rank, words in everybody.items() if words.get("own_s") is not None}
    late: dict[int, str] = {}
    for rank, words in known.items():
        others = [each for other, each in known.items() if other != rank]
        if not others:
            continue
        usual = median(each["own_s"] for each in others)
        spread = max(median(abs(each["own_s"] - usual) for each in others), words["own_error_s"])
        more, step = words["own_s"] - usual, words["step_s"] or words["own_s"]
        if more > LATE * step and more > SPREADS * spread:
            where = _find_where(words, others)
            late[rank] = f"rank {rank} is late by {more * 1e3:.3g} ms of a step of {step * 1e3:.4g} ms{where}"
    return late


def _find_where(words: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> str:
    """Return where a rank's own time is longer than the others' most."""
    more = {phase: words[phase] - median(each[phase] for each in others) for phase in PHASES}
    phase = max(more, key=lambda each: more[each])
    if more[phase] <= 0:
        return ""
    return f", most in {phase.removesuffix('_s').replace('_compute', '')} ({more[phase] * 1e3:.3g} ms longer)"


def _median(values: Sequence[float]) -> float | None:
    return median(values) if values else None
