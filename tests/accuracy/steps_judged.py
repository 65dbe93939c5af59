"""Published data-parallel steps, each predicted from its page's one-GPU row and no measurement of the network."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ddpsim.bucketing import BucketCaps, Parameter
from ddpsim.prediction.predict import predict
from ddpsim.prediction.prediction import Prediction
from ddpsim.simulation import Options
from ddpsim.workload import Workload
from ddpsim.workload.files import load_workload
from ddpsim.workload.profile import Phase
from tests.accuracy.published_table import CAPS, GPUS, MODELS, Case, published
from tests.accuracy.systems import machine

STEPS = Path(__file__).with_name("steps")
_LAYERS, _LAYER_BYTES, _EMBEDDING = 36, 19_660_800, (50257 + 1024, 1280)


@dataclass(frozen=True)
class Step:
    """A measured step beside its prediction."""

    page: str
    name: str
    measured_s: float
    predicted: Prediction

    @property
    def inside(self) -> bool:
        """Whether the step is in the band of its prediction."""
        return self.predicted.low_s <= self.measured_s <= self.predicted.high_s


def steps() -> Iterator[Step]:
    """Yield every step of several GPUs under torch's DDP whose page states one GPU's time and the caps."""
    yield from dgx_1v()
    yield from rtx()
    yield from baskerville()


def dgx_1v() -> Iterator[Step]:
    """Yield PyTorch's own table: two DGX-1V."""
    medians, quartiles = published()
    topology = machine("dgx-1v")
    for cap, times in ((25, medians), (1, quartiles)):
        for model in MODELS:
            one_s = medians[Case(model, 0)].middle
            for gpus in GPUS[1:]:
                options = Options(caps=CAPS[cap], assignment="unused", broadcast_buffers=False)
                found = predict(
                    _known(load_workload(model), one_s),
                    topology,
                    nodes=max(1, gpus // 8),
                    gpus_per_node=min(8, gpus),
                    options=options,
                )
                yield Step("dgx-1v", f"{model}, {gpus} GPUs, {cap} MiB", times[Case(model, gpus, cap)].middle, found)


def rtx() -> Iterator[Step]:
    """Yield the bucket sweep on eight GPUs of PCIe; rows without accumulation."""
    rows = list(_rows("rtxpro6000_nanogpt124m_ddp_bucket_sweep.csv"))
    one_s = next(float(row["step_ms"]) for row in rows if row["mode"] == "single") * 1e-3
    workload = _known(load_workload("gpt2-small@a100-amp-b8"), one_s)
    for row in rows:
        if row["mode"] == "ddp" and row["gas"] == "1":
            options = Options(caps=BucketCaps(bucket_cap_mb=float(row["bucket_cap_mb"])), gradient_as_bucket_view=True)
            found = predict(workload, machine("8xrtxpro6000"), options=options)
            yield Step("8xrtxpro6000", f"{row['bucket_cap_mb']} MiB", float(row["step_ms"]) * 1e-3, found)


def baskerville() -> Iterator[Step]:
    """Yield GPT-2 Large on nodes of four GPUs and one NIC."""
    rows = [row for row in _rows("baskerville_a100_gpt2large_ddp_nic_sharing.csv") if row["model"] == "gpt2-large"]
    one_s = next(float(row["step_ms"]) for row in rows if (row["nodes"], row["gpus_per_node"]) == ("1", "1")) * 1e-3
    workload = gpt2_large(one_s)
    for row in rows:
        nodes, gpus = int(row["nodes"]), int(row["gpus_per_node"])
        if nodes * gpus > 1:
            found = predict(workload, machine("baskerville"), nodes=nodes, gpus_per_node=gpus)
            yield Step("baskerville", f"{nodes} x {gpus} GPUs", float(row["step_ms"]) * 1e-3, found)


def baskerville_rows(kind: str) -> list[dict[str, str]]:
    """Return the page's rows of `kind`: `ddp`, `allreduce` (over NCCL) or `allreduce-gloo`."""
    return [row for row in _rows("baskerville_a100_gpt2large_ddp_nic_sharing.csv") if row["kind"] == kind]


def _known(workload: Workload, one_s: float) -> Workload:
    """Return `workload` at the measured pace of one GPU, as if it had been captured there."""
    work_s = sum(float(phase.device_s[0]) for phase in (workload.forward, workload.backward, workload.optimizer))
    factor = one_s / work_s

    def scaled(phase: Phase) -> Phase:
        return Phase(phase.host_s, phase.device_s * factor)

    return replace(
        workload,
        estimated=False,
        forward=scaled(workload.forward),
        backward=scaled(workload.backward),
        optimizer=scaled(workload.optimizer),
        gradient_ready_s=np.maximum(workload.gradient_ready_s * factor, workload.gradient_hook_s),
    )


def gpt2_large(one_s: float) -> Workload:
    """Return a step of GPT-2 Large in bfloat16, layers alike: a third of its time in forward, 1/20 in the optimizer."""
    shapes = [("embedding", _EMBEDDING), *((f"layer.{n}", (_LAYER_BYTES,)) for n in range(_LAYERS))]
    parameters = tuple(Parameter(name, shape, "bfloat16", "cuda:0") for name, shape in shapes)
    backward_s = one_s * 0.95 * 2 / 3
    ready = backward_s * (1 - np.arange(_LAYERS + 1) / (_LAYERS + 1))
    one = np.ones(1)
    return Workload(
        name="gpt2-large", device="A100", precision="bf16", batch_size=16, threads=None, estimated=False,
        parameters=parameters, buffers=(), forward=Phase(0.02 * one, one_s * 0.95 / 3 * one),
        backward=Phase(0.04 * one, backward_s * one), optimizer=Phase(0.005 * one, one_s * 0.05 * one),
        gradient_hook_s=(0.04 * ready / backward_s)[None, :], gradient_ready_s=ready[None, :],
        provenance={},
    )  # fmt: skip


def _rows(name: str) -> Iterator[dict[str, str]]:
    with (STEPS / name).open(encoding="utf-8") as file:
        yield from csv.DictReader(line for line in file if not line.startswith("#"))
