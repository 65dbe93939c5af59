"""Headlines of pipelines and of cut layers: GPipe, PipeDream, Mesh-TensorFlow."""

from __future__ import annotations

from ddpsim.schedules.pipeline import carried_out_s, work_of
from studies.paper.claim import near
from studies.paper.figure import Answers
from studies.paper.headlines.headline import Headline, Said
from studies.paper.headlines.points import ALEXNET, Job, Machine, Staged, step_of

MICRO_BATCHES = 32
FASTER, DEVICES = 3.5, 4


def _pipeline_s(stages: int, micro_batches: int) -> float:
    """Return the step of a model of one second of forward and two of backward a micro-batch, in equal stages."""
    works = [work_of("gpipe", stage, stages, micro_batches) for stage in range(stages)]
    return max(carried_out_s(works, [1 / stages] * stages, [2 / stages] * stages, [0.0] * (stages - 1)))


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


_TEN_GBIT = Machine("PipeDream's servers", "V100-PCIe", 4, "10Gb/s", "ethernet", nodes=4)
_VGG = Job("vgg16", "V100-PCIe", 64, _TEN_GBIT)
_POOLED_BYTES = {"vgg16": 512 * 7 * 7 * 4, ALEXNET: 256 * 6 * 6 * 4}
"""Of an image, what the last pooling hands to the first linear layer."""
_STRAIGHT = [Staged(_VGG, stages, 16, "pipedream", 64 * 256 * 56 * 56 * 4 // stages) for stages in (2, 4)]
"""Boundaries as large as VGG-16's third stage has them, less where there are more."""
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


def _faster(answers: Answers) -> Said:
    ddp = answers[_VGG]
    straight = max(answers[staged]["samples_per_s"] / ddp["samples_per_s"] for staged in _STRAIGHT)
    bound = ddp["iteration_s"] / ddp["alone_s"]
    return Said(
        f"{straight:.1f} times DDP's pace in equal copies of few stages, {bound:.1f} at the most",
        "undecided",
        "Nothing is faster than sixteen GPUs that wait for nothing, which bounds what a pipeline gains over DDP. The "
        "paper's data parallelism sums after backward, by an older torch. Fifteen copies of one stage beside one of "
        "another are not simulated: copies here are of whole pipelines.",
    )


PARAMETERS, CORE_BYTES, CORES = 5_000_000_000, 8 << 30, 512


def _mesh(_: Answers) -> Said:
    whole = 4 * PARAMETERS
    ranks = next(count for count in (2**k for k in range(10)) if 2 * whole / count <= CORE_BYTES)
    return Said(
        f"parameters and gradients of {2 * whole / 1e9:.0f} GB fit cores of 8 GiB where layers are cut over {ranks} or "
        f"more, with {CORES // ranks} copies on {CORES} cores",
        "undecided",
        "By counting: whole copies do not fit at all. The abstract states no time; `ddpsim pipeline --tensor-ranks` "
        "has the allreduces of activations, but there are no TPUs here.",
    )


HEADLINES = (
    Headline(
        "GPipe", f"{FASTER:g} times as fast on {DEVICES} times as many devices",
        "README of kakaobrain/torchgpipe, which quotes the paper of November 2018", "from 2 to 8 devices",
        f"equal stages, {MICRO_BATCHES} micro-batches: four a device, the paper's rule for small bubbles (from memory)",
        [], _gpipe,
    ),
    Headline(
        "PipeDream", f"up to {LESS:.0%} less communication than data parallelism", "abstract, arXiv:1806.03377",
        "large DNNs, on two clusters",
        "AlexNet and VGG-16 in batches of 64, 15 copies of convolutions and one stage of linear layers: a "
        "configuration of the paper's (from memory)",
        [], _less,
    ),
    Headline(
        "PipeDream", "up to 5.3 times faster to high accuracy than intra-batch parallelism", "abstract, SOSP 2019",
        "a range of models and clusters; which is not in the abstract",
        "VGG-16 in batches of 64 on 16 V100 in four servers at 10 Gb/s (from memory)", [_VGG, *_STRAIGHT], _faster,
    ),
    Headline(
        "Mesh-TensorFlow", "Transformers of up to 5 billion parameters on up to 512 TPU cores",
        "abstract, arXiv:1811.02084", "TPUv2 meshes of up to 512 cores; 8 GB a core (of GPipe's report)",
        "parameters and gradients in fp32, the optimizer's state besides", [], _mesh,
    ),
)  # fmt: skip
