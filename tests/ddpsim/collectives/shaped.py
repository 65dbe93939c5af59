"""A network of single processes, as the lab shapes them, and nodes of GPUs on a switch."""

from __future__ import annotations

from ddpsim.topology.graph import Placement
from ddpsim.topology.spec import parse_topology

SHAPED = """
name: shaped
node:
  processes: {count: 1, rate: 10GB/s, total: 20GB/s}
  nics: [{count: 1, rate: 1gbit, kind: ethernet, delay: DELAY}]
fabric: {kind: flat}
"""
"""`DELAY` stands for a port's."""

SHAPED_100US = SHAPED.replace("DELAY", "0.1ms")


def shaped(ranks: int, delay: str = "0s", rate: str = "1gbit") -> Placement:
    """Return so many nodes, whose ports have a delay and a rate."""
    return parse_topology(SHAPED.replace("DELAY", delay).replace("1gbit", rate), "shaped.yaml").place(ranks)


def switched(gpus: int) -> str:
    """Return nodes of so many GPUs on one NVSwitch, with one card of 10 GB/s."""
    return f"""
name: switched
node:
  gpus: {{count: {gpus}, model: V100}}
  nvswitch: {{links_per_gpu: 1, bandwidth: 20GB/s}}
  pcie: {{generation: 3, switches: [{{socket: 0, gpus: {list(range(gpus))}, nics: [0]}}]}}
  cpu: {{sockets: 1, vendor: intel, model: skylake}}
  nics: [{{count: 1, rate: 80Gb/s, kind: infiniband}}]
fabric: {{kind: flat}}
"""
