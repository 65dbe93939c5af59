"""Headlines of GradientFlow: its speed-up, what it was held against, and DDP's paper on its consensus phase."""

from __future__ import annotations

from dataclasses import replace

from ddpsim.schedules.chunks import NORM_BYTES, GradientFlow
from studies.paper.claim import all_of
from studies.paper.figure import Answers
from studies.paper.headlines.headline import Headline, Said
from studies.paper.headlines.points import ALEXNET, Allreduce, Job, Machine, times_one

POPULAR = 2.5
EPOCHS, IMAGES, SECONDS, SPEEDUP = 95, 1_281_167, 90.0, 410.2
"""Of GradientFlow's abstract: AlexNet's training on ImageNet, whose images are counted, and its speed-up."""
ONE_V100_PER_S = EPOCHS * IMAGES / SECONDS / SPEEDUP
_CLUSTER = Machine("GradientFlow's cluster", "V100", 8, "56Gb/s", "infiniband", 1, nodes=64)
_ALEXNET = Job(ALEXNET, "V100", 128, _CLUSTER, "gradientflow", 128 / ONE_V100_PER_S, "amp")
_ALEXNET_DDP = replace(_ALEXNET, scheme="ddp")
_ON_64 = replace(_ALEXNET, scheme="naive", machine=replace(_CLUSTER, nodes=8))
_ABSTRACT = "abstract, arXiv:1902.06855"
_GRADIENTFLOW_ASSUMED = (
    "eight V100 a server, joined by NVLinks; batches of 128; a tenth of the chunks is sent; one GPU's pace follows "
    "from 95 epochs in 1.5 minutes and the speed-up"
)


def _gradientflow(answers: Answers) -> Said:
    simulated, dense = (times_one(job, answers) for job in (_ALEXNET, _ALEXNET_DDP))
    return Said(
        f"{simulated:.0f} times; {dense:.0f} by DDP's buckets",
        "undecided",
        "A tenth of the gradients leaves the card while backward goes on; all of them do not, as DDP's buckets show. "
        "Density and batch are assumed, and the former decides; one GPU's pace is made from the figure itself.",
    )


def _popular(answers: Answers) -> Said:
    simulated = times_one(_ON_64, answers)
    return Said(
        f"{simulated:.1f} times by an allreduce a gradient after backward",
        "undecided",
        f"Which systems and which of the models is not stated. Nothing hidden and nothing fused costs this much here; "
        f"{simulated / POPULAR:.0f} times as bad is a transport that does not fill the link, or sums on the host.",
    )


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
    return [NORM_BYTES * asked.chunks(elements), 4 * min(asked.chosen(elements) * asked.chunk, elements)]


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
        "Below that size norms and chunks are two latencies instead of one, and a bucket of one chunk is sent whole. "
        "Models of millions of parameters are above it: what decides for them is whether backward hides DDP's sums "
        "anyway, where the norms cost a little, or does not, where a tenth of the bytes is worth most of the step.",
    )


HEADLINES = (
    Headline(
        "GradientFlow", f"AlexNet on 512 GPUs: {SPEEDUP:g} times one GPU", _ABSTRACT,
        "512 GPUs, 56 Gb/s, mixed precision, 95 epochs of ImageNet in 1.5 minutes", _GRADIENTFLOW_ASSUMED,
        [_ALEXNET, _ALEXNET_DDP], _gradientflow,
    ),
    Headline(
        "GradientFlow", "its consensus phase eats the gain of small models", "DDP's paper, section 7, in other words",
        "-", "models in batches of 32 on 16 V100; a tenth of the chunks is sent",
        [*_STEPS.values(), *_ALLREDUCES], _consensus,
    ),
    Headline(
        "GradientFlow", f"popular systems on 64 GPUs: {POPULAR:g} times one GPU", _ABSTRACT, "64 GPUs, 56 Gb/s",
        f"AlexNet; {_GRADIENTFLOW_ASSUMED}", [_ON_64], _popular,
    ),
)  # fmt: skip
