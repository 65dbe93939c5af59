"""`python -m ddpexec netlab`: from the command line's words to a lab with the command on every rank."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from ddpexec.lab.netlab import launch, shapes
from ddpexec.lab.netlab.lab import build
from ddpsim.common.errors import InputError
from ddpsim.common.options.exclusions import refuse_excluded
from ddpsim.common.stopping import Stopped, stop_on_signals
from ddpsim.common.units import parse_bandwidth, parse_time
from ddpsim.topology.cluster import Topology
from ddpsim.topology.processes import lab_topology


def parse_topology(ranks: int | None, rate: str | None, delay: str | None, topology: str | None) -> Topology:
    """Return the topology that the options `ranks`, `rate`, `delay` or `topology` describe.

    Raises:
        InputError: both forms, or neither, or a quantity without its unit.
    """
    if topology is not None:
        refuse_excluded(None, "netlab", beside={"topology": topology, "ranks": ranks, "rate": rate, "delay": delay})
        from ddpsim.topology.spec import load_topology

        return load_topology(topology)
    if ranks is None or rate is None:
        missing = "ranks" if ranks is None else "rate"
        raise InputError(
            f"`{missing}` is missing", place="netlab", remedy="give `ranks=4` and `rate=1gbit`, or `topology`"
        )
    delay_s = 0.0 if delay is None else parse_time(delay, "delay")
    return lab_topology(ranks, parse_bandwidth(rate, "rate"), delay_s)


def run_command(topology: Topology, command: Sequence[str], *, nodes: int | None = None) -> int:
    """Run `command` once a rank on the network of `topology` and return its exit code, 128 + n after signal n."""
    if not command:
        raise InputError("no command", place="netlab", remedy="write it after --, e.g. netlab ... -- python train.py")
    network = shapes.lab_network(topology, nodes)
    try:
        with stop_on_signals(), build(network) as lab:
            code = launch.run(lab, command)
    except Stopped as stopped:
        print(f"netlab: stopped by {stopped}", file=sys.stderr)
        return 128 + stopped.number
    return code if code >= 0 else 128 - code
