"""The paper's set-up: its clusters, its models, PyTorch 1.5 and the NCCL that came with it.

PyTorch 1.5 builds buckets once, in registration order, and never again: the assignment that `find_unused_parameters`
has today. Its first bucket holds 1 MiB whatever `bucket_cap_mb` says (`torch/nn/parallel/distributed.py`, v1.5.0).
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from ddpsim.paper.assumptions import CENTRAL, Settings

if TYPE_CHECKING:
    from ddpsim.collectives.calibration import Calibration
    from ddpsim.topology.cluster import Topology
    from ddpsim.workload import Workload

EXCLUSIVE, SHARED = "ddp-paper", "ddp-paper-shared"
RESNET, BERT = "resnet50", "bert-large"
GPUS_PER_SERVER = 8
NAMES = {RESNET: "ResNet-50", BERT: "BERT"}
BACKENDS = {"nccl": "NCCL", "gloo": "Gloo"}

CAP_MB, FIRST_MB = 25.0, 1.0
"""`bucket_cap_mb` where none is given, and the first bucket's cap."""

NCCL = 2004
"""NCCL 2.4.8, which wheels of PyTorch 1.5 hold."""

_TREE_SHARE, _TREE_US, _RING_US, _INSIDE_US, _CHANNEL_BPUS = 3 / 4, 15, 6, 4, 5000
"""Of `ncclTreeThreshold` in NCCL 2.4's `src/init.cc`: a tree's bandwidth beside a ring's with NVLink, microseconds of a
tree's hop between nodes, of a ring's hop, of a tree's hop inside a node, bytes a microsecond of a channel."""

CHANNELS = 2
"""Of a group over one NIC: `ddpsim topo show ddp-paper --channels`."""


def algorithm(nodes: int, size_bytes: float) -> str:
    """Return what NCCL 2.4 runs an allreduce of some bytes by, between servers of eight GPUs.

    Trees up to a size, rings above; on two nodes it counts a tree at 1.5 times a ring's bandwidth, and takes no other.

    >>> algorithm(2, 1e9), algorithm(4, 26e6), algorithm(32, 26e6)
    ('tree', 'ring', 'tree')
    """
    if nodes == 1:
        return "ring"
    ranks = nodes * GPUS_PER_SERVER
    ring_us = _RING_US * (ranks - 1)
    tree_us = _TREE_US * (nodes.bit_length() - 1) + _INSIDE_US * (GPUS_PER_SERVER - 1)
    if nodes == 2:
        return "tree"
    ring = _CHANNEL_BPUS * CHANNELS
    threshold = ring * _TREE_SHARE / (1 - _TREE_SHARE) * (ring_us - tree_us)
    return "tree" if size_bytes <= threshold else "ring"


@lru_cache(maxsize=32)
def workload(model: str, batch: int) -> Workload:
    """Return a model's step on a V100 in fp32."""
    from ddpsim.planning.models import Model

    return Model.of(model).on(cluster(EXCLUSIVE, CENTRAL), batch)


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
