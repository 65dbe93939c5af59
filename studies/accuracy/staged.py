"""Allreduces through host memory, each table beside what is predicted: those to choose on, and those that judge.

`python -m studies.accuracy.staged` prints the median errors of sizes from 1 MiB on, by the priors. What slots, uplinks
and links between sockets carry (`ddpsim/topology/hardware.py`), and a channel (`collectives/nccl/costs.py`), was chosen
on `CHOOSING`, nothing on `JUDGING`; but `efficiency.host` is fitted to those of both that stand in `systems.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from ddpsim.collectives.calibration import Calibration
from studies.accuracy.systems import System, load
from studies.command import parser

CHOOSING = (
    System("azure_4xK80_pcie.csv", "4xk80", 1, "nc24"),
    System("l40s_2gpu_pcie_ring.csv", "2xl40s-pcie", 1, "l40s", algorithm="ring"),
    System("l40s_2gpu_pcie_tree.csv", "2xl40s-pcie", 1, "l40s", algorithm="tree"),
    System("l40s_4gpu_pcie_ring.csv", "4xl40s-pcie", 1, "l40s", algorithm="ring"),
    System("l40s_4gpu_pcie_tree.csv", "4xl40s-pcie", 1, "l40s", algorithm="tree"),
    System("rtxpro6000_8gpu.csv", "8xrtxpro6000", 1, "rtxpro6000"),
    System("turin_4xrtxpro6000_staged.csv", "turin-4xrtxpro6000", 1, "turin"),
)
JUDGING = (
    System("azure_nc96ads_a100_v4_4gpu.csv", "ncv4-4", 1, "ncv4"),
    System("dgxa100_4gpu_staged.csv", "dgx-a100-staged", 1, "dgx-a100-staged"),
    System("rtxpro6000_2gpu.csv", "8xrtxpro6000", 1, "rtxpro6000"),
    System("rtxpro6000_4gpu.csv", "8xrtxpro6000", 1, "rtxpro6000"),
    System("pcie_2x4090_docker.csv", "4x4090", 1, "kalavai"),
    System("pcie_2x4090_k8s_2sockets.csv", "2x4090-sockets", 1, "kalavai"),
    System("pcie_4x4090_docker.csv", "4x4090", 1, "kalavai"),
)

FROM_BYTES = 1 << 20
"""The smallest allreduce that is judged."""


@dataclass(frozen=True, slots=True)
class Beside:
    """A table beside its prediction.

    Attributes:
        measured, predicted: bus bandwidths of its largest size, GB/s.
        errors: of times, `predicted / measured - 1`, by size.
    """

    name: str
    measured: float
    predicted: float
    errors: Sequence[float]

    @property
    def error(self) -> float:
        """The median error, unsigned."""
        return median(map(abs, self.errors))


def beside(systems: Sequence[System] = (*CHOOSING, *JUDGING)) -> Iterator[Beside]:
    """Yield each table beside its prediction by the priors."""
    priors = Calibration.priors("nccl")
    for system in systems:
        sample = load(system, smallest=FROM_BYTES)
        predicted = [float(each) for each in sample.predict(priors)]
        measured = [float(each) for each in sample.measured]
        ranks = sample.placement.world_size
        moved = 2 * (ranks - 1) / ranks * sample.sizes[-1] / 1e9
        yield Beside(
            system.name,
            moved / measured[-1],
            moved / predicted[-1],
            [p / m - 1 for p, m in zip(predicted, measured, strict=True)],
        )


def main() -> int:
    """Print a line a table of each half."""
    for half, systems in (("choosing", CHOOSING), ("judging", JUDGING)):
        print(f"\n| {half} | busbw measured, GB/s | predicted | times off | signed |\n|---|--:|--:|--:|--:|")
        for each in beside(systems):
            signed = median(each.errors)
            print(f"| {each.name} | {each.measured:.1f} | {each.predicted:.1f} | {each.error:.0%} | {signed:+.0%} |")
    return 0


if __name__ == "__main__":
    parser(__doc__).parse_args()
    sys.exit(main())
