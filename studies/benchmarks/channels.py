"""Channel search on every shipped machine, its first GPUs and every second one: `make bench` prints the slowest."""

from __future__ import annotations

import sys
import time

from ddpsim.collectives.channels import find_channels
from ddpsim.common import shipped
from ddpsim.topology.graph import NodeTemplate
from ddpsim.topology.spec import load_topology

BOUND_S = 0.5
MOST_GPUS = 16


def main() -> None:
    """Print bus bandwidths and search times, and fail where a search misses its bound."""
    slowest = 0.0
    print(f"{'machine':18} {'one node':>16} {'several nodes':>16} {'all GPUs':>10} {'slowest':>10}")
    for name in shipped.names("topology"):
        template = load_topology(name).groups[0].template
        networks = [False, True] if template.nics else [False]
        names = [gpu.name for gpu in template.gpus]
        times = {
            (network, count): timed(template, names[:count], network)
            for network in networks
            for count in range(1, min(len(names), MOST_GPUS) + 1)
        }
        spread = [timed(template, names[: MOST_GPUS * 2 : 2][::-1], network) for network in networks]
        whole = sum(seconds for (_, count), seconds in times.items() if count == max(c for _, c in times))
        worst = max(*times.values(), *spread)
        slowest = max(slowest, worst)
        found = [bandwidth(template, network) for network in networks] + [""]
        print(f"{name:18} {found[0]:>16} {found[1]:>16} {whole * 1e3:7.1f} ms {worst * 1e3:7.1f} ms")
    sys.exit(f"a search took {slowest:.2f} s, the bound is {BOUND_S} s" if slowest > BOUND_S else 0)


def timed(template: NodeTemplate, gpus: list[str], network: bool) -> float:
    """Return the seconds of one search that is not cached."""
    started = time.perf_counter()
    find_channels(template, gpus, network=network)
    return time.perf_counter() - started


def bandwidth(template: NodeTemplate, network: bool) -> str:
    """Return channels and the bandwidth of each."""
    channels = find_channels(template, [gpu.name for gpu in template.gpus[:MOST_GPUS]], network=network)
    return f"{len(channels.rings)} x {channels.channel_bandwidth / 1e9:g} GB/s"


if __name__ == "__main__":
    main()
