"""Headlines of systems that fuse allreduces: Horovod, and TensorFlow's strategies beside it."""

from __future__ import annotations

from dataclasses import replace

from studies.paper.claim import near
from studies.paper.figure import Answers
from studies.paper.headlines.headline import Headline, Said
from studies.paper.headlines.points import Job, Machine, times_one

ONE_P100_PER_S = 130.9
"""Images a second of one GPU in Horovod's table: VGG-16 in batches of 64, which fixes the pace of all its rows."""
_BATCH = 64
_P100S = Machine("Horovod's servers", "P100-PCIe", 4, "25Gb/s", "roce", nodes=4)
_TABLE = "horovod/horovod pull request 44, the table that the README had until October 2017"
_CHART = "horovod/horovod `docs/benchmarks`"
_VGG = Job("vgg16", "P100-PCIe", _BATCH, _P100S, "horovod:fusion=64MiB,cycle=5ms", _BATCH / ONE_P100_PER_S)
"""Fusion and cycle are the defaults of Horovod before 0.21."""
VGG_BYTES, CARD_Bps = 138_357_544 * 4, 25e9 / 8
_STATED = "VGG-16, batch 64 a GPU, four Pascal GPUs a server, 25 Gb/s RoCE (issue 20 of the repository), one GPU alone"
_ASSUMED = "the GPUs are P100 on PCIe; buffers of 64 MiB each 5 ms, the defaults then"


def _parts(job: Job, times: float, answers: Answers) -> str:
    """Return what a step takes beyond one GPU's alone, here and at `times` one GPU's pace, in words."""
    found, ranks = answers[job], job.machine.world_size
    ring_s = 2 * (ranks - 1) / ranks * VGG_BYTES / CARD_Bps
    beside_s = found["iteration_s"] - found["alone_s"] - found["exposed_s"]
    allowed_s = found["alone_s"] * (ranks / times - 1)
    return (
        f"At its full rate the card carries the sum in {ring_s * 1e3:.0f} ms. Here {found['exposed_s'] * 1e3:.0f} ms "
        f"of it are exposed, and computing takes {beside_s * 1e3:.0f} ms longer for copies into buffers and for what "
        f"is sent beside it; the paper's figure leaves {allowed_s * 1e3:.0f} ms for both"
    )


def _speedup(job: Job, paper: float, why: str) -> Headline:
    def judge(answers: Answers) -> Said:
        simulated = times_one(job, answers)
        return Said(f"{simulated:.1f} times", near(simulated, paper), f"{_parts(job, paper, answers)}. {why}")

    by = "RDMA" if job.machine.kind == "roce" else "TCP"
    claim = f"VGG-16 on 16 GPUs by NCCL over {by}: {paper:g} times one GPU"
    return Headline("Horovod", claim, _TABLE, _STATED, _ASSUMED, [job], judge)


def _efficiency(nodes: int, paper: float, source: str, why: str) -> Headline:
    job = replace(_VGG, machine=replace(_P100S, nodes=nodes))

    def judge(answers: Answers) -> Said:
        simulated = times_one(job, answers) / job.machine.world_size
        parts = _parts(job, paper * job.machine.world_size, answers)
        return Said(f"{simulated:.0%}", near(simulated, paper), f"{parts}. {why}")

    claim = f"VGG-16 on {job.machine.world_size} GPUs: {paper:.0%} scaling efficiency"
    stated = f"{nodes} servers of four Pascal GPUs, 25 Gb/s RoCE"
    assumed = f"{_ASSUMED}; batch and pace of one GPU as in the table of 16"
    return Headline("Horovod", claim, source, stated, assumed, [job], judge)


_SERVED = [replace(_VGG, scheme=f"parameter-server:servers={servers}") for servers in (1, 4)]


def _served(answers: Answers) -> Said:
    one, four = (times_one(job, answers) for job in _SERVED)
    return Said(
        f"{one:.1f} times with 15 GPUs and 1 server, {four:.1f} with 12 and 4",
        "undecided",
        "Where the servers are is not stated, and it decides: all pushes meet in the servers' cards, here in one. Most "
        "of what fifteen GPUs add is lost either way; gRPC's copies, which servers here do not make, lose the rest.",
    )


_PACKED = replace(_VGG, scheme="multiworker-mirrored")


def _packed(answers: Answers) -> Said:
    packed, fused = (times_one(job, answers) for job in (_PACKED, _VGG))
    return Said(
        f"{packed:.1f} times one GPU where Horovod has {fused:.1f}",
        "undecided",
        "Neither TensorFlow's guide nor its pages of the strategy state a figure, and it has no paper; a user's two "
        "Tesla P4 in two machines reach 1.3 times one (tensorflow/tensorflow issue 34752), by a network not told. One "
        "pack of all gradients, the default, hides nothing of its sum.",
    )


HEADLINES = (
    _speedup(
        _VGG, 13.7,
        "Nearly all is hidden there: TensorFlow hands the large linear layers' gradients over as they come, and its "
        "kernels lost less to what was sent beside them than the prior has it.",
    ),
    _speedup(
        replace(_VGG, machine=replace(_P100S, kind="ethernet")), 10.0,
        "The same, over sockets, whose share of the link is a prior.",
    ),
    _efficiency(
        32, 0.79, "README of Horovod in 2017 and 2018 (bobohuang/horovod keeps it)",
        "A ring's bytes hardly grow with the servers, so that this row misses what that of 16 misses.",
    ),
    _efficiency(
        128, 0.68, _CHART,
        "The paper loses more from 128 to 512 GPUs than a ring's hops cost; late servers would, which are none here.",
    ),
    Headline(
        "TF ParameterServer", "VGG-16 on 16 GPUs: 0.6 times one GPU", _TABLE, _STATED,
        f"{_ASSUMED}; servers are the last GPUs, 1 and 4 of them", _SERVED, _served,
    ),
    Headline(
        "TF MultiWorkerMirrored", "no figure of its own was found", "searched: tensorflow.org, its repositories", "-",
        "VGG-16 on the 16 GPUs of Horovod's table", [_PACKED, _VGG], _packed,
    ),
)  # fmt: skip
