"""Would a GPU's second-level cache, priced, bring estimates nearer? `python -m studies.estimates.caches`.

The rule that is tried has no constant of its own: a kernel of one pass that moves no more than the cache holds finds
there what it reads, which is half of what it moves, for the kernel before wrote it; one that moves twice as much finds
nothing, and between the two it is a line. What is of parameters and their gradients is always read from memory. All
shares are fitted again on the first half of the published steps, without that rule and with it, and both are judged on
the second half.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from ddpsim.workload.gpus import AchievedGpu, PeakShares, fitted_peaks, gpu_named
from ddpsim.workload.operators import NARROW, Operator
from studies.command import parser
from studies.estimates.estimates_fit import Counted, counted, fit, loss
from studies.estimates.one_gpu_steps import steps

L2_MIB = {
    "GTX1080Ti": 2.75, "P100-PCIe": 4, "T4": 4, "RTX2080Ti": 5.5, "V100": 6, "V100-32GB": 6, "QuadroRTX8000": 6,
    "A10": 6, "RTX3090": 6, "RTXA6000": 6, "A100": 40, "A100-80GB": 40, "A100-PCIe": 40, "A100-PCIe-80GB": 40,
    "H100": 50, "H100-PCIe": 50, "H200": 50, "GH200": 60, "RTX4090": 72, "RTX6000Ada": 96, "RTX5090": 96,
    "B200": 126, "GB300": 126, "RTXPRO6000": 128,
}  # fmt: skip
"""Of one GPU, from NVIDIA's papers on each architecture (GA10x: 512 KiB beside each of twelve memory controllers) and
the TechPowerUp GPU database."""


def hit_rate(operator: Operator, precision: str, cache_bytes: float) -> float:
    """Return the share of what an operator moves, parameters left out, that it finds in the cache."""
    if operator.kind != "memory":
        return 0.0
    moved = operator.traffic_bytes / 2 if precision in NARROW and not operator.fp32 else operator.traffic_bytes
    return min(max(2 - moved / cache_bytes, 0.0), 1.0) / 2


def subtract_hits(operator: Operator, precision: str, cache_bytes: float) -> Operator:
    """Return the operator with what it moves between memory and chip alone."""
    found = hit_rate(operator, precision, cache_bytes) * (operator.traffic_bytes - operator.fixed_bytes)
    return replace(operator, traffic_bytes=operator.traffic_bytes - found) if found else operator


def with_cache(row: Counted) -> Counted:
    """Return a published step whose kernels find in its GPU's cache what that holds."""
    cache_bytes, precision = L2_MIB[row.step.gpu] * 2**20, row.step.precision
    phases = []
    for phase in row.phases:
        moved = Counter[Operator]()
        for operator, times in phase.items():
            moved[subtract_hits(operator, precision, cache_bytes)] += times
        phases.append(moved)
    return replace(row, phases=tuple(phases))


def relative_error(row: Counted, shares: PeakShares, launch_s: float) -> float:
    """Return by how much of the published step the estimate is off."""
    spec = gpu_named(row.step.gpu).spec
    return row.seconds(AchievedGpu(spec, fitted_peaks(spec, shares)), launch_s) / row.step.seconds - 1


def describe_fit(name: str, rows: Sequence[Counted]) -> str:
    """Fit on the first half of `rows`, judge on the second, and say both in a few lines."""
    shares, launch_s = fit([row for row in rows if row.step.fitted])
    fitted_to = f"products in 16 bits {shares.gemm_half}, on capped units {shares.gemm_capped}"
    lines = [f"{name}: {fitted_to}, memory {shares.memory}, a launch {launch_s * 1e6:.3g} us"]
    for half, fitted in (("first half", True), ("second half", False)):
        judged = [row for row in rows if row.step.fitted == fitted]
        narrow = [row for row in judged if row.step.length and row.step.precision in NARROW]
        errors, of_narrow = ([abs(relative_error(row, shares, launch_s)) for row in each] for each in (judged, narrow))
        lines.append(
            f"  {half}: {median(errors):.1%} off in the median, transformers in 16 bits {median(of_narrow):.1%}; "
            f"mean of machines {math.expm1(loss(judged, shares, launch_s)):.1%}"
        )
    for gpu in ("A100", "H100", "RTX4090", "RTXPRO6000", "GB300"):
        mine = [relative_error(row, shares, launch_s) for row in rows if row.step.gpu == gpu and row.step.length]
        lines.append(f"  transformers on {gpu}: {median(mine):+.1%} in the median of {len(mine)}")
    return "\n".join(lines)


if __name__ == "__main__":
    parser(__doc__).parse_args()
    published = [counted(step) for step in steps() if not step.fused]
    print(describe_fit("without the cache", published), flush=True)
    print(describe_fit("with it", [with_cache(row) for row in published]))
