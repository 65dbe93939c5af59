"""Headlines of a system that fuses allreduces: Horovod."""

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
        f"is sent beside it; the paper's figure leaves {allowed_s * 1e3:.0f} ms for both."
    )


def _speedup(number: int, job: Job, paper: float) -> Headline:
    def judge(answers: Answers) -> Said:
        simulated = times_one(job, answers)
        return Said(f"{simulated:.1f} times", near(simulated, paper), _parts(job, paper, answers))

    by = "RDMA" if job.machine.kind == "roce" else "TCP"
    claim = f"VGG-16 on 16 GPUs by NCCL over {by}: {paper:g} times one GPU"
    return Headline(number, "Horovod", claim, _TABLE, _STATED, _ASSUMED, [job], judge)


def _efficiency(number: int, nodes: int, paper: float, source: str) -> Headline:
    job = replace(_VGG, machine=replace(_P100S, nodes=nodes))

    def judge(answers: Answers) -> Said:
        simulated = times_one(job, answers) / job.machine.world_size
        parts = _parts(job, paper * job.machine.world_size, answers)
        return Said(f"{simulated:.0%}", near(simulated, paper), parts)

    claim = f"VGG-16 on {job.machine.world_size} GPUs: {paper:.0%} scaling efficiency"
    stated = f"{nodes} servers of four Pascal GPUs, 25 Gb/s RoCE"
    assumed = f"{_ASSUMED}; batch and pace of one GPU as in the table of 16"
    return Headline(number, "Horovod", claim, source, stated, assumed, [job], judge)


HEADLINES = (
    _speedup(32, _VGG, 13.7),
    _speedup(33, replace(_VGG, machine=replace(_P100S, kind="ethernet")), 10.0),
    _efficiency(34, 32, 0.79, "README of Horovod in 2017 and 2018 (bobohuang/horovod keeps it)"),
    _efficiency(35, 128, 0.68, _CHART),
)
