"""Figure 6: a step of 32 GPUs by its parts, with and without overlap of communication."""

from __future__ import annotations

from ddpsim.paper.claim import Claim, near
from ddpsim.paper.figure import Answers, Figure, Reproduction
from ddpsim.paper.step import Step
from ddpsim.plots.panels import Panel, Stack

_CASES = (
    (3, "resnet50", "nccl", 0.380),
    (4, "bert-large", "nccl", 0.352),
    (5, "resnet50", "gloo", 0.268),
    (6, "bert-large", "gloo", 0.215),
)
"""Claim, model, backend, by how much of the latency the paper's overlap shortens it."""
_PARTS = ("forward", "backward_compute", "exposed_comm", "optimizer")


def _step(model: str, backend: str, overlap: bool) -> Step:
    return Step(model, "ddp-paper", backend, nodes=4, overlap=overlap)


def _points() -> list[Step]:
    return [_step(model, backend, overlap) for _, model, backend, _ in _CASES for overlap in (False, True)]


def _reproduce(answers: Answers) -> Reproduction:
    claims, stacks = [], []
    for number, model, backend, paper in _CASES:
        off, on = (answers[_step(model, backend, overlap)] for overlap in (False, True))
        falls = 1 - on["iteration_s"] / off["iteration_s"]
        says = f"{model} by {backend}, 32 GPUs: overlap makes it {{:.1%}} faster"
        verdict = near(falls, paper)
        claims.append(Claim(number, "fig6", says.format(paper), f"{falls:.1%}", None, verdict, ""))
        for label, parts in (("no overlap", off), ("overlap", on)):
            heights = [(name, parts[f"{name}_s"] / off["iteration_s"]) for name in _PARTS]
            stacks.append(Stack(f"{model}\n{backend}\n{label}", heights))
    return Reproduction([Panel("Figure 6", "", "of the latency without overlap", stacks=stacks)], claims)


FIGURE = Figure("fig6", "Latency breakdown on 32 GPUs", _points, _reproduce)
