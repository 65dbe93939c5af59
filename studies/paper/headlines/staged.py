"""Headlines of pipelines: GPipe, PipeDream."""

from __future__ import annotations

from ddpsim.schedules.pipeline import find_end_times, works_of
from studies.paper.claim import near
from studies.paper.figure import Answers
from studies.paper.headlines.headline import Headline, Said
from studies.paper.headlines.points import ALEXNET, step_of

MICRO_BATCHES = 32
FASTER, DEVICES = 3.5, 4


def _pipeline_s(stages: int, micro_batches: int) -> float:
    """Return the step of a model of one second of forward and two of backward a micro-batch, in equal stages."""
    return max(
        find_end_times(
            works_of("gpipe", stages, micro_batches), [1 / stages] * stages, [2 / stages] * stages, [0.0] * (stages - 1)
        )
    )


def _bubble(stages: int) -> float:
    return (stages - 1) / (MICRO_BATCHES + stages - 1)


def _gpipe(_: Answers) -> Said:
    gain = _pipeline_s(2, MICRO_BATCHES) / _pipeline_s(2 * DEVICES, MICRO_BATCHES)
    few = _pipeline_s(2, 2 * DEVICES) / _pipeline_s(2 * DEVICES, 2 * DEVICES)
    return Said(
        f"{gain:.2f} times with {MICRO_BATCHES} micro-batches ({few:.2f} with {2 * DEVICES})",
        near(gain, FASTER),
        f"Equal stages idle for (p-1)/(m+p-1) of a step: {_bubble(2):.0%} on two, {_bubble(2 * DEVICES):.0%} on "
        f"{2 * DEVICES}. Activations cost nothing here, and computing forward again in backward takes as long on "
        "either.",
    )


_POOLED_BYTES = {"vgg16": 512 * 7 * 7 * 4, ALEXNET: 256 * 6 * 6 * 4}
"""Of an image, what the last pooling hands to the first linear layer."""
LESS, REPLICAS = 0.95, 15


def _sent_less(model: str, batch: int = 64) -> float:
    """Return by which part PipeDream sends less: convolutions on 15 GPUs, linear layers on one, both ways between."""
    parameters = step_of(model, "V100", batch, None, "fp32").parameters
    convolutions = sum(each.size_bytes for each in parameters if each.name.startswith("features"))
    whole = sum(each.size_bytes for each in parameters)
    kept = _ring_bytes(REPLICAS, convolutions) + 2 * batch * _POOLED_BYTES[model]
    return 1 - kept / _ring_bytes(REPLICAS + 1, whole)


def _ring_bytes(ranks: int, size_bytes: int) -> float:
    return 2 * (ranks - 1) / ranks * size_bytes


def _less(_: Answers) -> Said:
    shares = {model: _sent_less(model) for model in (ALEXNET, "vgg16")}
    told = ", ".join(f"{share:.0%} {model}" for model, share in shares.items())
    return Said(
        told,
        near(max(shares.values()), LESS),
        "Nearly all parameters are in linear layers behind a small tensor: what crosses is that, and the sum of the "
        "convolutions' gradients over 15 GPUs. Bytes of a batch, by counting.",
    )


HEADLINES = (
    Headline(
        43, "GPipe", f"{FASTER:g} times as fast on {DEVICES} times as many devices",
        "README of kakaobrain/torchgpipe, which quotes the paper of November 2018", "from 2 to 8 devices",
        f"equal stages, {MICRO_BATCHES} micro-batches: four a device, the paper's rule for small bubbles (from memory)",
        [], _gpipe,
    ),
    Headline(
        44, "PipeDream", f"up to {LESS:.0%} less communication than data parallelism", "abstract, arXiv:1806.03377",
        "large DNNs, on two clusters",
        "AlexNet and VGG-16 in batches of 64, 15 copies of convolutions and one stage of linear layers: a "
        "configuration of the paper's (from memory)",
        [], _less,
    ),
)  # fmt: skip
