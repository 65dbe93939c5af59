"""The paper's set-up: its clusters, its models, PyTorch 1.5 and the NCCL that came with it.

PyTorch 1.5 builds buckets once, in registration order, and never again: the assignment that `find_unused_parameters`
has today. Its first bucket holds 1 MiB whatever `bucket_cap_mb` says (`torch/nn/parallel/distributed.py`, v1.5.0).
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from studies.paper.assumptions import CENTRAL, Settings

if TYPE_CHECKING:
    from ddpsim.collectives.calibration import Calibration
    from ddpsim.topology.cluster import Topology
    from ddpsim.workload import Workload

EXCLUSIVE, SHARED = "ddp-paper", "ddp-paper-shared"
RESNET, BERT = "resnet50", "bert-large"
GPU, PRECISION = "V100", "fp32"
GPUS_PER_SERVER = 8
NAMES = {RESNET: "ResNet-50", BERT: "BERT"}
BACKENDS = {"nccl": "NCCL", "gloo": "Gloo"}

CAP_MB, FIRST_MB = 25.0, 1.0
"""`bucket_cap_mb` where none is given, and the first bucket's cap."""

NCCL = 2004
"""NCCL 2.4.8, which wheels of PyTorch 1.5 hold."""

CHANNELS = 2
"""Of a group over one NIC: `ddpsim topo show ddp-paper --channels`."""
PORT_Bps = 100e9 / 8
"""Of a server's card."""

FORWARD_MS, BACKWARD_MS = 19.83, 46.26
"""ResNet-50's on one V100 in fp32, batch 16, cuDNN 7: cnn-benchmarks, `README.md` (rejunity/cnn-benchmarks on GitHub).

The proportion is kept and the step's length is not: a V100 runs convolutions' gradients at a lower share of its peak
than convolutions, which a roofline with one share for both does not know. Elsewhere it is 2.5 for ResNet-152 (38.7 of
136.5 ms in u39kun/deep-learning-benchmark) and 1.9 to 2.0 on Pascal.
"""


@lru_cache(maxsize=32)
def workload(model: str, batch: int) -> Workload:
    """Return a model's step on a V100 in fp32; ResNet-50's is shared by forward and backward as it was measured."""
    from ddpsim.prediction.models import Model

    made = Model.of(model).on(cluster(EXCLUSIVE, CENTRAL), batch)
    return _shared(made) if model == RESNET else made


def _shared(made: Workload) -> Workload:
    """Return an estimated step with the measured proportion of backward to forward, both together as they were."""
    from ddpsim.workload.anchors import RooflineFactors
    from ddpsim.workload.estimate import EstimateOptions, ModelShape, estimate
    from ddpsim.workload.files import load_workload
    from ddpsim.workload.gpus import gpu_named

    source = load_workload(RESNET)
    assert source.operators is not None
    assert made.batch_size is not None
    shape = ModelShape.of(source, source.operators.with_batch(made.batch_size))
    plain = estimate(shape, gpu_named(GPU), PRECISION)
    whole_s = sum(float(phase.device_s[0]) for phase in (made.forward, made.backward))
    factors = [
        whole_s * part_ms / (FORWARD_MS + BACKWARD_MS) / float(phase.device_s[0])
        for part_ms, phase in ((FORWARD_MS, plain.forward), (BACKWARD_MS, plain.backward))
    ]
    pace = RooflineFactors((factors[0], factors[1], 1.0))
    made = estimate(shape, gpu_named(GPU), PRECISION, EstimateOptions(pace=pace))
    return replace(made, operators=None)


def batch_of(model: str, settings: Settings) -> int:
    """Return the batch assumed of a model."""
    return settings.resnet_batch if model == RESNET else settings.bert_batch


@lru_cache(maxsize=32)
def cluster(name: str, settings: Settings, backend: str = "nccl") -> Topology:
    """Return a cluster, the congested link of the shared one as assumed for a backend."""
    from ddpsim.topology.node import Degradation
    from ddpsim.topology.spec import load_topology

    topology = load_topology(name)
    change = Degradation(settings.congested_Bps if backend == "nccl" else settings.congested_tcp_Bps)
    return replace(topology, degraded=tuple(replace(each, change=change) for each in topology.degraded))


def constants(backend: str, nodes: int, settings: Settings) -> Calibration:
    """Return the constants of a backend; what a group moves is limited between servers only."""
    from ddpsim.collectives.calibration import Calibration

    if backend == "gloo":
        values = {"gloo.reduce.bandwidth": settings.gloo_Bps, "gloo.host.bandwidth": settings.host_Bps}
    else:
        values = {"nccl.version": float(NCCL)}
        if nodes > 1:
            values |= {f"nccl.channel.{protocol}": settings.channel_Bps for protocol in ("ll", "ll128", "simple")}
    return Calibration.priors(backend).with_values(values, source="an assumption of `ddpsim paper`")
