"""Headline of GradientFlow: DDP's paper on its consensus phase."""

from __future__ import annotations

from ddpsim.schedules.chunks import NORM_BYTES, GradientFlow
from studies.paper.claim import all_of
from studies.paper.figure import Answers
from studies.paper.headlines.headline import Headline, Said
from studies.paper.headlines.points import Allreduce, Job, Machine

_MODELS = ("resnet50", "bert-base", "vgg16")
_MACHINES = (Machine("dgx-1v", gpus=8, nodes=2), Machine("p3.8xlarge", gpus=4, nodes=4))
_STEPS = {
    (model, machine, scheme): Job(model, "V100", 32, machine, scheme)
    for model in _MODELS
    for machine in _MACHINES
    for scheme in ("ddp", "gradientflow")
}
_SIZES = [4 << power for power in range(12, 26)]
"""Bytes of all gradients, of models from 4,096 parameters to 33 million."""


def _messages(size_bytes: int) -> list[int]:
    """Return the bytes that GradientFlow sends of gradients in fp32: norms of chunks, and the chunks chosen."""
    asked, elements = GradientFlow(), size_bytes // 4
    return [NORM_BYTES * asked.chunks(elements), 4 * min(asked.count_chosen(elements) * asked.chunk, elements)]


def _by_itself(machine: Machine, size_bytes: int) -> Allreduce:
    return Allreduce(machine, "auto", size_bytes)


_ALLREDUCES = list(
    dict.fromkeys(
        _by_itself(machine, size) for machine in _MACHINES for whole in _SIZES for size in (whole, *_messages(whole))
    )
)


def _pace(answers: Answers, model: str, machine: Machine) -> float:
    ddp, ours = (answers[_STEPS[model, machine, scheme]]["iteration_s"] for scheme in ("ddp", "gradientflow"))
    return float(ddp / ours)


def _consensus(answers: Answers) -> Said:
    gains = {
        machine: [
            answers[_by_itself(machine, whole)]["seconds"]
            / sum(answers[_by_itself(machine, size)]["seconds"] for size in _messages(whole))
            for whole in _SIZES
        ]
        for machine in _MACHINES
    }
    from_bytes = {
        machine: next((size for size, gain in zip(_SIZES, of, strict=True) if gain > 1), None)
        for machine, of in gains.items()
    }
    limits = ", ".join(f"{(size or 0) / 1e6:.2g} MB on {machine}" for machine, size in from_bytes.items())
    paces = {machine: ", ".join(f"{_pace(answers, model, machine):.2f}" for model in _MODELS) for machine in _MACHINES}
    steps = "; ".join(f"{pace} ({machine})" for machine, pace in paces.items())
    facts = [of[0] < 1 < of[-1] for of in gains.values()]
    return Said(
        f"by themselves, messages gain from {limits} of gradients on, and cost below; steps of "
        f"{', '.join(_MODELS)} go at {steps} times DDP's pace",
        all_of(facts),
        "Norms and chunks are two latencies instead of one, and a bucket of one chunk is sent whole; what larger "
        "models gain depends on whether backward hides DDP's sums anyway.",
    )


HEADLINES = (
    Headline(
        39, "GradientFlow", "its consensus phase eats the gain of small models",
        "DDP's paper, section 7, in other words",
        "-", "models in batches of 32 on 16 V100; a tenth of the chunks is sent",
        [*_STEPS.values(), *_ALLREDUCES], _consensus,
    ),
)  # fmt: skip
