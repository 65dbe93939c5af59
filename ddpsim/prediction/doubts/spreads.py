"""How far off what nobody measured is: half 80 % bands of logarithms, each with its source.

Every number of the bands stands here, and nothing else: which of them a run has is `causes.py`. From top to bottom:
collectives by family (`COLLECTIVES`), computing time by how it is known (`PACE`), host launches, the loader, DDP's own
costs at their priors, and measured costs (`DOUBT`). `python -m studies.bands.coverage --spreads` derives those of
collectives from public tables.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ddpsim.collectives.bands import NINETIETH
from ddpsim.collectives.calibration import Calibration
from ddpsim.collectives.codec_priors import CODEC_PRIORS
from ddpsim.collectives.ddp_priors import DDP_PRIORS
from ddpsim.workload.anchors import ROOFLINE_BAND
from ddpsim.workload.fusing import SOURCE, CompiledAs
from ddpsim.workload.timeline import EAGER_LAUNCH_S

_HALF_OF_MEDIAN = NINETIETH / 0.6745
"""Of a normal distribution: half an 80 % band over the median absolute error."""


@dataclass(frozen=True, slots=True)
class Spread:
    """10th and 90th percentile of log(measured / predicted); in general low <= 0 <= high.

    `SLOW_HOST` alone lies above 0 altogether: it is of one machine, and no doubt of a prediction.

    Attributes:
        source: where the two come from.
        name: of the family of things that share it.
    """

    low: float
    high: float
    source: str
    name: str = ""

    @classmethod
    def of_median_error(cls, error: float, source: str) -> Spread:
        """Return the symmetrical spread whose median absolute error is `error`."""
        half = math.log1p(error) * _HALF_OF_MEDIAN
        return cls(-half, half, source)


_TABLES = "errors of uncalibrated predictions on public tables of other sites (studies/bands/bands.md)"

LATENCY_BOUND, LATENCY_BOUND_INSIDE = 0.15, 0.3
"""Share of an allreduce's time that does not grow with its bytes, from which on it counts as bound by latency; by
direct paths inside a node the second. Of seven shares there it has the least interval score on every other site by name
(studies/bands/bands.md): with 0.15 most of 1 to 16 MiB had the wide band of a few KiB."""

_IN_NODE = Spread(-0.09, 0.22, _TABLES, "bandwidth inside a node")
_DIRECT = Spread(-0.23, 0.54, _TABLES, "latency, or cards that reach GPU memory")
_STAGED_LATENCY = Spread(-0.33, 0.62, _TABLES, "through host memory, latency")
_STAGED = Spread(-0.16, 0.51, _TABLES, "through host memory, bandwidth")
_TCP_LATENCY = Spread(-0.03, 1.21, _TABLES, "TCP, latency")
_TCP = Spread(-0.23, 0.60, _TABLES, "TCP, bandwidth")

COLLECTIVES = {
    "NVLink": (_DIRECT, _IN_NODE),
    "NVSwitch": (_DIRECT, _IN_NODE),
    "xGMI": (_DIRECT, _IN_NODE),
    "PCIe peer-to-peer": (_DIRECT, _IN_NODE),
    "InfiniBand or RoCE": (_DIRECT, _DIRECT),
    "EFA": (_DIRECT, _DIRECT),
    "Slingshot": (_DIRECT, _DIRECT),
    "PCIe through host memory": (_STAGED_LATENCY, _STAGED),
    "TCP": (_TCP_LATENCY, _TCP),
}
"""By family of transports, of an allreduce bound by latency and of one bound by bandwidth.

Families that the tables cannot tell apart share a spread: with one or two sites a family, one of its own covers less
and scores worse on a site that had no part.
"""


def find_collective_spread(family: str, latency_share: float) -> Spread:
    """Return the spread of an allreduce in `family`, of whose time `latency_share` does not grow with its bytes."""
    by_latency, by_bandwidth = COLLECTIVES[family]
    bound = LATENCY_BOUND_INSIDE if by_bandwidth is _IN_NODE else LATENCY_BOUND
    return by_latency if latency_share >= bound else by_bandwidth


SLOW_HOST = Spread(
    1.41,
    1.95,
    "allreduces bound by bandwidth of two and four RTX 4090 in containers (kalavai-net/kalavai-client, docker and "
    "Kubernetes): 4.1 to 7.1 times as long as predicted, 6.1 in the median (studies/bands/bands.md)",
)
"""Of a collective through host memory on a machine where that is far slower than on the others that were published."""
SLOW_HOST_MEDIAN = 1.80

DOMAIN = Spread(
    _IN_NODE.low,
    0.68,
    "errors of uncalibrated predictions on public tables of racks (studies/racks/racks.md); the lower end is of boards",
    "NVLink domains of several nodes",
)
"""Of a collective inside an NVLink domain of several nodes, or between such: `python -m studies.racks` derives it."""

COLLISIONS = Spread(
    0.0,
    math.log(1.4),
    "ECMP by itself costs an AllReduce up to 40 % beside hashing of queue pairs (Meta, A RoCE network for distributed "
    "AI training at scale, SIGCOMM 2024); links of 100 Gb/s reach about 70 (Baidu Intelligent Cloud, hash collisions)",
)
"""Of a collective that crosses a spine over Ethernet whose switches hash each flow onto a way."""

MEASURED_COLLECTIVE = 0.05
"""Half the band of an allreduce between rows measured on the same machine: the accuracy page's rows left out."""

PACE = {
    "roofline": Spread.of_median_error(0.17, "rooflines alone: 15 to 20 % off published one-GPU steps in the median"),
    "counted": Spread(
        *ROOFLINE_BAND, "published one-GPU steps beside eager mode's counted kernels (studies/estimates)"
    ),
    "anchored": Spread.of_median_error(0.07, "rooflines anchored on another row of the GPU: 7 % off in the median"),
    "carried": Spread.of_median_error(
        0.11, "steps carried from another GPU by both rooflines: 10 to 11 % off in the median (studies/estimates)"
    ),
    "measured": Spread.of_median_error(
        0.0125, "a step that was given repeats to 2 or 3 % on its machine, as captures do"
    ),
    "captured": Spread.of_median_error(0.0125, "captured steps of one machine repeat to 2 or 3 % (80 % of them)"),
}
"""By how a workload's device time is known."""

AMD_SOFTWARE = Spread(
    0.0,
    math.log((478.73 / 989.4) / (215.79 / 1307.4)),
    "GPT-2 XL in bf16 by torch.compile: 216 of 1307 TFLOP/s on MI300X, 479 of 989 on H100, October 2024 "
    "(ROCm/TransformerEngine issue 72)",
)
"""Of a step estimated for a GPU of AMD at the shares of peak of NVIDIA's: of the one row known, early software's."""

HOST_LAUNCH = Spread(
    -math.log(2), math.log(1.5), "eager-mode operators take 15 to 45 us of the host where 30 are taken"
)
"""Of an estimated workload's host time, where operators were counted."""
EAGER_LAUNCH = Spread(
    math.log(11e-6 / EAGER_LAUNCH_S),
    math.log(30e-6 / EAGER_LAUNCH_S),
    "published steps of small transformers that the host bounds take 11 to 30 us a kernel (studies/estimates)",
)
"""The same where eager mode's kernels were counted one by one."""


def find_fusing_spreads(compiled: CompiledAs) -> tuple[Spread, Spread]:
    """Return the spreads of device and host time of a step priced as compiled: from that price to eager mode's."""
    device, host = compiled.device_factor, compiled.host_factor
    return Spread(0.0, math.log(device), SOURCE, "device"), Spread(0.0, math.log(host), SOURCE, "host")


INPUT = Spread(
    math.log(0.97),
    math.log(1.097),
    "periods of torch's DataLoader over the rule's: 0.97 to 1.10 (`python -m studies.host_costs.loading`, two cores)",
)
"""Of what loading a batch takes, and the host's part of its copy."""

DDP_HOST = Spread(-0.5, 0.5, "launch costs of DDP range from 26 to 70 us on gloo, hooks from 4 to 10 us on CUDA")
"""Of DDP's own host costs at their priors: they scale together with a host's speed."""

COPIES = {
    "copy_Bps": Spread(
        -0.27, 0.5, "copies of microbenchmarks scatter by 0.27; half a memory's bandwidth is an estimate"
    ),
    "copy_s": Spread(-0.27, 1.08, "2.5 us are the prior, 5.8 us fitted to PyTorch's table: 1.28 times that deviation"),
}
"""Of copies into and out of buckets at their priors; what takes longer is above."""

CUTS = {
    "graph_passes": Spread(
        -math.log(2),
        math.log(1.5),
        "inductor counts 0.99 times the bytes (`python -m studies.host_costs.graph_bytes`); of eight H200's sweep of "
        "caps the large change of the step is 1.2 times what is predicted, a small one 0.4 times "
        "(`python -m studies.published.compiled_ddp`)",
    )
}
"""Of what crosses the cuts of a compiled step's graph."""

ENCODING = Spread(
    -math.log(2),
    math.log(8),
    "chosen by hand: on a core codecs measured 0.4 to 5.5 times what copies tell; on a GPU nobody measured",
)
"""Of what a compression scheme's kernels and bytes cost where they are priced as copies."""

_TWO_FITS = math.log(0.509 / 0.178) / math.sqrt(2) * NINETIETH
"""Half an 80 % band of a price of which two fits to one table, ResNet-50 alone and both models, are known: 0.96."""

_BESIDE = Spread(
    -_TWO_FITS, _TWO_FITS, "fitted to PyTorch's table twice, with other rows (studies/published/gpu-steps.md)"
)
BESIDE = dict.fromkeys(
    (
        "channel_multiprocessors",
        "memory_passes",
        "tail_share",
        "late_kernels",
        "nvlink_slowdown",
        "pcie_slowdown",
        "staged_slowdown",
        "staged_net_slowdown",
        "net_slowdown",
    ),
    _BESIDE,
)
"""Mutual slowdown of computation and the collectives that overlap it: one factor on all its prices.

No published table tells them apart, so they move together. Of a slow-down the part above 1 is in doubt.
"""

DEVICES = dict.fromkeys(("pace_spread", "shared_compute_slowdown", "node_spread"), _BESIDE)
"""Differences between devices and nodes of one kind, likewise one factor. Sinha et al. (SC 2022) report 8 % between
V100s at full load."""

UNPRICED = {
    "enter_s": 38e-6 * math.log(10),
    "compute_slowdown": 1 + 0.178 * math.log(10),
    "communication_slowdown": 1.1,
    "pace_spread": 0.0256 * math.log(10),
    "shared_compute_slowdown": 1 + 0.013 * math.log(10),
}
"""The same of a backend that has no price for them, 90th percentile; the 10th is their prior, which is nothing.

Taken as means of exponential distributions: what PyTorch's table comes to on V100s, in constants that know no GPU.
"""


DOUBT = 0.27
"""Half an 80 % band of the logarithm of a measured cost: 1.28 standard deviations of 0.21.

That is how copies scattered, 4.8 to 8.6 GB/s, in five microbenchmarks of one lab network, four ranks on two cores.
Chosen by hand from those five, and taken for every cost: the width of a band is proportional to it, and nothing else.
"""


def at_end(calibration: Calibration, end: int) -> Calibration:
    """Return `calibration` with DDP's costs at the low (-1) or the high (1) end of their 80 % band.

    Only what was measured has one. A slow-down doubts what it adds.
    """
    factor = math.exp(end * DOUBT)
    moved = {}
    for constant in (*DDP_PRIORS[calibration.backend], *CODEC_PRIORS[calibration.backend]):
        now = calibration.constants.get(constant.name)
        if now is None or not now.measured:
            continue
        if now.name.endswith("_slowdown"):
            moved[now.name] = 1 + max(now.value - 1, 0.0) * factor
        else:
            moved[now.name] = now.value * (1 / factor if now.unit == "B/s" else factor)
    return calibration.with_values(moved, source="an end of its band")
