"""Figures 7 and 8: latency over bucket size, on 16 and on 32 GPUs."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt
from typing import Literal

from ddpsim.report.charts import Axis, BoxBar, Chart
from studies.paper import lab
from studies.paper.claim import TOLERANCE, Claim, all_of
from studies.paper.figure import Answers, Figure, Reproduction
from studies.paper.panels import LATENCY
from studies.paper.setup import BERT, GPUS_PER_SERVER, RESNET
from studies.paper.step import Step, told, with_ends

CAPS_MB = {RESNET: (0, 5, 10, 25, 50), BERT: (0, 5, 10, 25, 50, 100, 200)}
"""The paper's ticks as its text names them; for BERT two beyond its best, 50, which it says lies in the middle."""

_ORDER: tuple[tuple[str, Literal["nccl", "gloo"]], ...] = (
    (RESNET, "nccl"), (RESNET, "gloo"), (BERT, "nccl"), (BERT, "gloo"),
)  # fmt: skip
_BEST = {(RESNET, "nccl"): (10, 25), (RESNET, "gloo"): (5,), (BERT, "nccl"): (50,), (BERT, "gloo"): (5,)}
"""The caps at which the paper's steps are shortest."""

_LATE, _EVERY = 1.1, 100
"""A server computes a tenth slower in one iteration of so many: V100s differ by 8 % (Sinha et al., SC 2022).

How often says nothing of whether the spread widens: any number above the servers gives the same sign.
"""


_CLEAR = TOLERANCE / 3
"""A difference that is larger is clear, one that is smaller is not noticeable."""
_SO = {True: "so", False: "not so"}
_QUARTILE = 0.6745 / 1.2816
"""Of a normal's way from the median to the 90th percentile, that to the 75th."""


def _step(model: str, backend: Literal["nccl", "gloo"], gpus: int, cap_mb: float) -> Step:
    return Step(model, backend, gpus, cap_mb=cap_mb)


def _late(gpus: int) -> Step:
    return Step(RESNET, "nccl", gpus, straggler=_LATE)


def _by_rings(gpus: int) -> Step:
    return replace(_step(RESNET, "nccl", gpus, 0), algorithm="ring")


def _points(gpus: int) -> list[Step]:
    steps = [_step(*which, gpus, cap) for which in _ORDER for cap in CAPS_MB[which[0]]]
    return [*with_ends(steps), _late(gpus), _by_rings(gpus)]


def _all_points() -> list[Step]:
    return [*_points(16), *_points(32)]


def _curve(answers: Answers, model: str, backend: Literal["nccl", "gloo"], gpus: int) -> dict[float, float]:
    return {cap: answers[_step(model, backend, gpus, cap)]["iteration"] for cap in CAPS_MB[model]}


def _panels(answers: Answers, gpus: int) -> list[Chart]:
    panels = []
    for model, backend in _ORDER:
        boxes = []
        for cap in CAPS_MB[model]:
            step = _step(model, backend, gpus, cap)
            found = told(answers, {"it": step}, lambda of: of["it"]["iteration"])
            low, high = (found.value + _QUARTILE * (end - found.value) for end in (found.low, found.high))
            spread = (found.low, low, found.value, high, found.high)
            boxes.append(BoxBar(f"{cap:g}", spread, cap in _BEST[model, backend]))
        title = f"{_step(model, backend, gpus, 0).label}, {gpus} GPUs"
        panels.append(Chart(title, Axis("bucket size", "MB"), LATENCY, boxes=tuple(boxes)))
    return panels


def _best_caps(answers: Answers, number: int, model: str) -> Claim:
    """Return the claim on the best caps of a model, on 16 and 32 GPUs."""
    says, facts = [], []
    for backend in ("nccl", "gloo"):
        for gpus in (16, 32):
            curve = _curve(answers, model, backend, gpus)
            best = min(curve, key=lambda cap: curve[cap])
            nearest = min(curve[cap] for cap in _BEST[model, backend]) / curve[best] - 1
            facts.append(best in _BEST[model, backend])
            says.append(f"{backend} {best:g} on {gpus}" + ("" if facts[-1] else f" (theirs {nearest:.1%} slower)"))
    wanted = {RESNET: "NCCL 10 to 25 MB, gloo 5", BERT: "NCCL 50 MB, gloo 5"}[model]
    name = {RESNET: "ResNet-50", BERT: "BERT"}[model]
    caps = lab.joined(lab.best_cap("pair", 1.0), lab.best_cap("quad", 1.0))
    measured = None if caps is None or model == BERT else f"best of 0 to 25, wire as long as backward: {caps}"
    return Claim(
        number,
        "fig7",
        f"best bucket size of {name}: {wanted}",
        "; ".join(says),
        measured,
        all_of(facts),
        _why(answers, model),
    )


def _spread_s(answers: Answers, gpus: int) -> float:
    """Return the standard deviation of a step that takes longer where any of its servers is late."""
    servers = gpus // GPUS_PER_SERVER
    late = 1 - (1 - 1 / _EVERY) ** servers
    more_s = answers[_late(gpus)]["iteration"] - answers[_step(RESNET, "nccl", gpus, 25)]["iteration"]
    return float(more_s) * sqrt(late * (1 - late))


def _measured_spread() -> str | None:
    """Return the lab's 10th to 90th percentile over its median, of two ranks and of four."""
    found = [lab.run(network, 1.0, cap_mb=5.0) for network in ("pair", "quad")]
    texts = [f"{each.ranks} ranks {(each.high_s - each.low_s) / each.measured_s:.1%}" for each in found if each]
    return f"spread of iterations at 5 MB: {', '.join(texts)}" if len(texts) == len(found) else None


def _from_16_to_32(answers: Answers) -> Claim:
    zero, rest = [], []
    for model, backend in _ORDER[:2]:
        small, large = (_curve(answers, model, backend, gpus) for gpus in (16, 32))
        zero.append(large[0] / small[0] - 1)
        rest += [large[cap] / small[cap] - 1 for cap in small if cap >= 5]
    wider = _spread_s(answers, 32) / _spread_s(answers, 16)
    by_rings = answers[_by_rings(32)]["iteration"] / answers[_by_rings(16)]["iteration"] - 1
    worse = ", ".join(f"{each:+.1%}" for each in zero)
    facts = {
        "0 MB worse on 32 by NCCL": zero[0] > max(_CLEAR, max(rest)),
        "by gloo": zero[1] > max(_CLEAR, max(rest)),
        "none above 5 MB": max(rest) < _CLEAR,
    }
    return Claim(
        9,
        "fig8",
        "ResNet-50: 0 MB clearly worse on 32 GPUs than on 16, no noticeable regression above 5 MB (its wider spread is "
        "not judged)",
        f"0 MB {worse} (NCCL, gloo); above {min(rest):+.1%} to {max(rest):+.1%}; spread {wider:.2f} times",
        _measured_spread(),
        all_of(facts.values()),
        f"{', '.join(f'{what}: {_SO[so]}' for what, so in facts.items())}. On two servers NCCL 2.4 takes trees for "
        f"every size, on four for small gradients only; by rings on both 0 MB is {by_rings:+.1%}. The spread is that "
        "of a step in which any of the servers may be the late one, which twice as many widen by themselves: it is not "
        "judged.",
    )


def _why(answers: Answers, model: str) -> str:
    """Return how much the sizes from 5 MB on differ, which is what an order among them rests on."""
    told = []
    for backend in ("nccl", "gloo"):
        curves = [_above_zero(_curve(answers, model, backend, gpus)) for gpus in (16, 32)]
        apart = [max(curve.values()) / min(curve.values()) - 1 for curve in curves]
        told.append(f"by {apart[0]:.1%} on 16 and {apart[1]:.1%} on 32 ({backend})")
    return (
        f"Steps of all sizes from 5 MB on differ {', '.join(told)}: latency a bucket stands against waiting for the "
        "last large one. Gloo has two collectives in flight, and a large last bucket goes out alone, at half the pace."
    )


def _above_zero(curve: dict[float, float]) -> dict[float, float]:
    return {cap: seconds for cap, seconds in curve.items() if cap > 0}


def _fig7(answers: Answers) -> Reproduction:
    claims = [_best_caps(answers, 7, RESNET), _best_caps(answers, 8, BERT)]
    return Reproduction(_panels(answers, 16), claims)


def _fig8(answers: Answers) -> Reproduction:
    return Reproduction(_panels(answers, 32), [_from_16_to_32(answers)])


FIGURE_7 = Figure("fig7", "Figure 7: latency over bucket size, 16 GPUs", _all_points, _fig7)
FIGURE_8 = Figure("fig8", "Figure 8: latency over bucket size, 32 GPUs", _all_points, _fig8)
