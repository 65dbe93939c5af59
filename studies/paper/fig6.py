"""Figure 6: a step of 32 GPUs by its parts, with and without overlap of communication."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ddpsim.report.charts import Axis, Chart, StackedBar
from studies.paper import lab
from studies.paper.assumptions import decided
from studies.paper.claim import Claim, Verdict, near
from studies.paper.figure import Answers, Figure, Reproduction
from studies.paper.setup import BACKENDS, BERT, NAMES, RESNET
from studies.paper.step import PARTS, Step, told, with_ends

_CASES = (
    (3, Step(RESNET, "nccl", 32), 0.380),
    (4, Step(BERT, "nccl", 32), 0.352),
    (5, Step(RESNET, "gloo", 32), 0.268),
    (6, Step(BERT, "gloo", 32), 0.215),
)
"""Claim, the step with overlap, by which part of the latency the paper's is shorter than without."""

_NAMED = dict(zip(PARTS, ("forward", "backward", "communication", "optimizer"), strict=True))
_LAB_WIRE = {"nccl": 1.0, "gloo": 2.0}
"""Bytes on the wire over backward, of the lab's runs that stand for each backend."""
_BERT_MS = 1e3 * 32 / 50
"""Of 32 sequences of 128 tokens on a V100 of 32 GB in fp32, forward and backward: NVIDIA/DeepLearningExamples,
PyTorch/LanguageModeling/BERT/README.md, 21.11, accumulated 128 times."""
_AS_LONG = {1.0: "as long as", 2.0: "twice"}


def _measured(step: Step) -> str | None:
    wire = _LAB_WIRE[step.backend]
    runs = [lab.run("quad", wire, overlap=overlap, impl="ddpexec") for overlap in (False, True)]
    return lab.falls(f"4 ranks, wire {_AS_LONG[wire]} backward:", *runs) if step.model == RESNET else None


def _why(step: Step, on: Mapping[str, float], off: Mapping[str, float], paper: float, verdict: Verdict) -> str:
    """Return the physics of a claim, from a step with overlap and one without."""
    backward_s, communication_s = off["backward_compute"], off["exposed_comm"]
    shorter = min(backward_s, communication_s)
    told = (
        f"Overlap saves the shorter of backward and communication, {shorter / off['iteration']:.0%} at most: "
        f"communication is {communication_s / backward_s:.1f} times backward. With overlap backward takes "
        f"{on['backward_compute'] / backward_s:.2f} times as long, and {on['exposed_comm'] * 1e3:.0f} ms of "
        f"{communication_s * 1e3:.0f} stay exposed."
    )
    if verdict == "undecided":
        return f"{told} That communication is about as long as backward fixed the rate between servers."
    if verdict == "fails" and communication_s > backward_s:
        most = (backward_s / paper - off["iteration"] + communication_s) / backward_s
        told += f" The paper's share needs communication of at most {most:.1f} times backward."
    if step.model == BERT and step.backend == "nccl":
        told += (
            f" NVIDIA's BERT-large takes {_BERT_MS:.0f} ms for the same batch on a V100 in fp32 (50 sequences/s in its "
            f"DeepLearningExamples), here forward and backward take {(off['forward'] + backward_s) * 1e3:.0f}."
        )
    return told


def _and(words: Sequence[str]) -> str:
    return " and ".join(words or ["none"]) if len(words) < 3 else f"{', '.join(words[:-1])} and {words[-1]}"


def _without(step: Step) -> Step:
    return Step(step.model, step.backend, step.gpus, overlap=False)


def _points() -> list[Step]:
    return list(with_ends([each for _, step, _ in _CASES for each in (step, _without(step))]))


def _reproduce(answers: Answers) -> Reproduction:
    claims, panels, as_rate = [], [], []
    for number, step, paper in _CASES:
        of = {"on": step, "off": _without(step)}
        falls = told(answers, of, lambda found: 1 - found["on"]["iteration"] / found["off"]["iteration"])
        what = f"{step.label}, 32 GPUs: overlap makes a step {paper:.1%} shorter"
        verdict = decided(near(falls.value, paper), step.model, step.backend, step.gpus)
        why = _why(step, answers[step], answers[of["off"]], paper, verdict)
        claims.append(Claim(number, "fig6", what, falls.text(), _measured(step), verdict, why))
        as_rate += [str(number)] if near(falls.value, paper / (1 + paper)) == "holds" else []
        whole = answers[of["off"]]["iteration"]
        bars = []
        for name, label in (("off", "no overlap"), ("on", "overlap")):
            parts = [(_NAMED[part], answers[of[name]][part] / whole) for part in PARTS]
            rest = answers[of[name]]["iteration"] / whole - sum(height for _, height in parts)
            band = (1 - falls.high, 1 - falls.low, 1 - paper) if name == "on" else ()
            bars.append(StackedBar(label, (*parts, ("hooks, buffers", rest)), *band))
        panels.append(Chart(step.label, Axis(""), Axis("latency, normalised"), bars=tuple(bars)))
    more = [
        f"{NAMES[step.model]} by {BACKENDS[step.backend]}"
        for _, step, _ in _CASES
        if answers[_without(step)]["exposed_comm"] > answers[_without(step)]["backward_compute"]
    ]
    rates = ", ".join(f"{paper:.1%} is {paper / (1 + paper):.1%}" for _, _, paper in _CASES)
    notes = [
        f"The paper writes speed-up, which is read as latency that falls. As a rate that rises {rates} less latency, "
        f"and of its claims {_and(as_rate)} would hold.",
        f"Without overlap communication is over half of backward for {len(more)} of 4, as the paper says of all: "
        f"{', '.join(more) or 'none'}.",
    ]
    return Reproduction(panels, claims, notes)


FIGURE = Figure("fig6", "Figure 6: latency breakdown on 32 GPUs", _points, _reproduce)
