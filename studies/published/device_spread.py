"""How far devices of one model differ where it is measured directly: `python -m studies.published.device_spread`.

Two sources, each noted in its CSV: rates of one H100 on each of many hosts, and the clock of each rank of eight A100
and of eight V100 that train together. Printed are standard deviations of logarithms. A clock's is `pace_spread`, a
rate's is that times the share of device time that goes with the clock (`Workload.arithmetic_share`). Where ranks train
together the fast ones wait, draw less power meanwhile and clock higher, so that clocks are an upper end.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from math import log
from pathlib import Path
from statistics import stdev

from studies.accuracy.rows import read_rows
from studies.command import parser

STEPS = Path(__file__).with_name("steps")
MODELS = ("ssd", "resnet50", "waveglow")
"""Of the hosts' rates, those that do not tell of the host."""


def spread(values: list[float]) -> float:
    """Return the standard deviation of logarithms.

    >>> round(spread([99.0, 101.0]), 4)
    0.0141
    """
    return stdev(map(log, values))


def rates() -> Iterator[tuple[str, list[float]]]:
    """Yield each model's rate on one H100 of each host."""
    rows = read_rows(STEPS / "h100_hosts.csv")
    for model in MODELS:
        yield f"H100, rates, {model}", [float(row[model]) for row in rows]


def clocks() -> Iterator[tuple[str, list[float]]]:
    """Yield the ranks' clocks in MHz of each job on all eight GPUs."""
    for row in read_rows(STEPS / "paik_single_node.csv"):
        if row["gpus"] == "8":
            name = f"{row['machine'].upper()}, clocks, {row['model']} in {row['dtype']}"
            yield name, [float(each) for each in row["sm_clock_mhz"].split()]


def main() -> int:
    """Print the spread of each."""
    for name, values in (*rates(), *clocks()):
        print(f"{name}: {spread(values):.2%} of {len(values)}")
    return 0


if __name__ == "__main__":
    parser(__doc__).parse_args()
    sys.exit(main())
