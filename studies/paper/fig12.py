"""Figure 12: round-robin process groups."""

from __future__ import annotations

from typing import Literal

from ddpsim.report.charts import Chart
from studies.paper import lab
from studies.paper.assumptions import CENTRAL
from studies.paper.claim import TOLERANCE, Claim, all_of, near
from studies.paper.figure import Answers, Figure, Reproduction
from studies.paper.panels import LATENCY, curve, gpus_axis, reported
from studies.paper.setup import BERT, CHANNELS, RESNET, PORT_Bps
from studies.paper.step import Step, told, with_ends

GROUPS = (1, 3, 5)
_GPUS = (8, 16, 32)
_PAPER = 0.33
"""By which part three groups are shorter than one, BERT by NCCL on 16 GPUs."""
_NEGLIGIBLE = TOLERANCE / 3
"""A gain that is smaller is none to speak of."""

_CASES: tuple[tuple[str, Literal["nccl", "gloo"]], ...] = (
    (RESNET, "nccl"), (RESNET, "gloo"), (BERT, "nccl"), (BERT, "gloo"),
)  # fmt: skip


_LAB = (
    ("where each collective waits for 5 ms of delay, three groups", "far", 0.25),
    ("where all share a rate", "pair", 5.0),
)  # fmt: skip


def _measured(what: str, network: str, cap_mb: float) -> str | None:
    one, three = (lab.run(network, 1.0, impl="ddpexec", cap_mb=cap_mb, groups=groups) for groups in (1, 3))
    return lab.falls(what, one, three)


def _step(model: str, backend: Literal["nccl", "gloo"], gpus: int, groups: int) -> Step:
    return Step(model, backend, gpus, groups=groups)


def _points() -> list[Step]:
    return list(with_ends([_step(*case, gpus, groups) for case in _CASES for gpus in _GPUS for groups in GROUPS]))


def _reproduce(answers: Answers) -> Reproduction:
    panels = []
    for model, backend in _CASES:
        lines = []
        for groups in GROUPS:
            steps = [_step(model, backend, gpus, groups) for gpus in _GPUS]
            found = [told(answers, {"it": step}, lambda of: of["it"]["iteration"]) for step in steps]
            band = [each.low for each in found], [each.high for each in found]
            lines.append(curve(f"rr{groups}", _GPUS, [each.value for each in found], band))
        if (model, backend) == (BERT, "nccl"):
            alone = answers[_step(model, backend, 16, 1)]["iteration"]
            lines.append(reported("the paper's rr3", 16, (1 - _PAPER) * alone))
        title = _step(model, backend, 16, 1).label
        panels.append(Chart(title, gpus_axis(_GPUS), LATENCY, tuple(lines)))
    gains = {
        case: told(
            answers,
            {"1": _step(*case, 16, 1), "3": _step(*case, 16, 3)},
            lambda found: 1 - found["3"]["iteration"] / found["1"]["iteration"],
        )
        for case in _CASES[:3]
    }
    resnet, gloo, bert = gains.values()
    facts = [near(bert.value, _PAPER) == "holds", gloo.value > _NEGLIGIBLE, abs(resnet.value) < _NEGLIGIBLE]
    alone = [answers[_step(*case, 16, 1)] for case in (_CASES[2], _CASES[1], _CASES[0])]
    exposed = [each["exposed_comm"] / each["iteration"] for each in alone]
    claim = Claim(
        14,
        "fig12",
        "three groups on 16 GPUs: BERT on NCCL 33 % faster; ResNet-50 on gloo gains, on NCCL it does not",
        f"{bert.text()}; {gloo.text()}; {resnet.text()}",
        lab.joined(*(_measured(*each) for each in _LAB)),
        all_of(facts),
        f"A group of NCCL moves {CHANNELS * CENTRAL.channel_Bps / 1e9:.1f} of {PORT_Bps / 1e9:.1f} GB/s, and each "
        f"group of gloo brings two threads. Of a step with one group {exposed[0]:.0%} waits for communication where "
        f"BERT is on NCCL, {exposed[1]:.0%} where ResNet-50 is on gloo and {exposed[2]:.0%} where it is on NCCL.",
    )
    return Reproduction(panels, [claim])


FIGURE = Figure("fig12", "Figure 12: round-robin process groups", _points, _reproduce)
