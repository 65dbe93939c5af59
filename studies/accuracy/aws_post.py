"""Times stated in AWS's post on allreduce for PyTorch DDP, beside closed forms, today's channels and measured rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ddpsim.calibrating.measured import read_table
from ddpsim.collectives.conditions import CollectiveOptions
from ddpsim.collectives.execute import Collectives
from ddpsim.collectives.schedules import ring_s
from ddpsim.topology.spec import load_topology
from studies.accuracy.systems import TABLES

BYTES = 25_000_000
SEEN_S = 75e-3
"""The last allreduce that the post shows on two p3.8xlarge."""

STATED = (
    # GPUs, bottleneck in B/s, what it is, vTrain's table of as many V100s
    (4, 25e9, "one NVLink ring", "v100_AR_GPU4.csv"),
    (8, 10e9, "a host bridge in the ring", "v100_AR_GPU8.csv"),
)
SIZES = tuple(25_000_000 * 2**k // 16 for k in range(8))


def two_machines(algorithm: str) -> Collectives:
    """Return collectives of two p3.8xlarge."""
    placement = load_topology("p3.8xlarge").place(2, 4)
    return Collectives(
        None, placement, backend="nccl", calibration=None, options=CollectiveOptions(algorithm=algorithm)
    )


def size_taking(collectives: Collectives, seconds: float) -> int:
    """Return the largest message that takes at most `seconds`."""
    low, high = 1, 1 << 40
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if collectives.estimate_s(middle) <= seconds else (low, middle)
    return low


def section() -> Iterator[str]:
    """Yield the lines of the page's section."""
    yield "| GPUs | ring through | closed form | this machine's channels | measured (vTrain) |"
    yield "|---|---|---|---|---|"
    for ranks, rate, what, table in STATED:
        closed = ring_s(ranks, BYTES, 0.0, 1 / rate)
        placement = load_topology("p3.16xlarge").place(1, ranks)
        today = Collectives(None, placement, backend="nccl", calibration=None).estimate_s(BYTES)
        measured = measured_s(TABLES / table)
        yield (
            f"| {ranks} V100 | {what}, {rate / 1e9:g} GB/s | {closed * 1e3:.3f} ms | {today * 1e3:.2f} ms | "
            f"{measured * 1e3:.2f} ms |"
        )
    yield ""
    yield "Two p3.8xlarge, 8 V100 over 10 Gbit/s (NCCL, priors), by a ring as in the post's days, and as NCCL picks"
    yield "now, which on two nodes is a tree for large messages:"
    yield ""
    yield "| size, MB | " + " | ".join(f"{size / 1e6:.3g}" for size in SIZES) + " |"
    yield "|---" * (len(SIZES) + 1) + "|"
    for name in ("ring", "auto"):
        collectives = two_machines(name)
        yield f"| {name}, ms | " + " | ".join(f"{collectives.estimate_s(size) * 1e3:.1f}" for size in SIZES) + " |"
    yield ""
    ring, now = (size_taking(two_machines(name), SEEN_S) for name in ("ring", "auto"))
    bound = ring_s(8, ring, 0.0, 1 / 1.25e9)
    yield (
        f"{SEEN_S * 1e3:.0f} ms, as the post shows for its last allreduce, is **{ring / 1e6:.1f} MB** "
        f"({ring / (1 << 20):.1f} MiB) by a ring, {now / 1e6:.1f} MB as NCCL picks now; the ring's closed form at "
        f"the full 1.25 GB/s would take {bound * 1e3:.1f} ms."
    )


def measured_s(path: Path) -> float:
    """Return the time of the table's row nearest to `BYTES`."""
    return min(read_table(path).rows, key=lambda row: abs(row.size_bytes - BYTES)).time_s
