"""`python -m ddpexec netlab`: from the command line's words to a lab with the command on every rank.

Start with `run_command`. `parse_topology` reads the options, `lab_network` says which hosts, switches and wires are
built of the topology that the simulator reads, and `run` starts the command once a rank, with torchrun's environment,
and ends all ranks whatever happens.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

from ddpexec.groups.environment import RANKS_HERE
from ddpexec.lab.netlab.lab import Lab, build
from ddpexec.lab.netlab.network import Host, LabNetwork, LinkDirection
from ddpsim.common.errors import InputError, TopologyError
from ddpsim.common.options.exclusions import refuse_excluded
from ddpsim.common.parent import die_with_parent
from ddpsim.common.stopping import Stopped, stop_on_signals
from ddpsim.common.units import parse_bandwidth, parse_time
from ddpsim.topology.cluster import Topology
from ddpsim.topology.processes import lab_topology

MASTER_PORT = 29500
"""The port of the ranks' store, torchrun's default; a lab is a network of its own."""
GRACE_S = 5.0
"""How long ranks may take to end by themselves after one has failed, and again after they are asked to."""
POLL_S = 0.02
"""Between two looks at whether ranks have ended; chosen by hand."""


def run(lab: Lab, command: Sequence[str], environment: Mapping[str, str] | None = None) -> int:
    """Run `command` on every rank of `lab` and return the exit code: that of the first rank to fail, else 0.

    A rank that fails ends the others: they have `GRACE_S` seconds to report their own errors first.
    """
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for host, each in enumerate(lab.network.hosts):
            for local, rank in enumerate(each.ranks):
                variables = {**os.environ, **rank_environment(lab.network, rank, local, host), **(environment or {})}
                processes.append(_start(lab.enter(host, list(command)), variables))
        return _wait(processes)
    finally:
        end(processes)


def rank_environment(network: LabNetwork, rank: int, local_rank: int, host: int) -> dict[str, str]:
    """Return what torchrun would set for `rank`, and the interface that gloo and NCCL must use."""
    threads = {} if "OMP_NUM_THREADS" in os.environ else {"OMP_NUM_THREADS": "1"}
    return {
        **threads,
        "RANK": str(rank),
        "LOCAL_RANK": str(local_rank),
        "WORLD_SIZE": str(network.world_size),
        "LOCAL_WORLD_SIZE": str(len(network.hosts[host].ranks)),
        "GROUP_RANK": str(host),
        RANKS_HERE: str(network.world_size),
        "MASTER_ADDR": network.address(0),
        "MASTER_PORT": str(MASTER_PORT),
        "GLOO_SOCKET_IFNAME": "eth0",
        "NCCL_SOCKET_IFNAME": "eth0",
    }


def end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Ask the processes that still run to end, then kill their groups; strays die with their namespace."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        running = [process for process in processes if process.poll() is None]
        deadline_s = time.monotonic() + GRACE_S
        for process in running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
        for process in running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline_s - time.monotonic()))


def _start(command: list[str], variables: dict[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, env=variables, start_new_session=True, preexec_fn=die_with_parent)


def _wait(processes: Sequence[subprocess.Popen[bytes]]) -> int:
    first, deadline_s = 0, None
    while True:
        codes = [process.poll() for process in processes]
        failed = [code for code in codes if code]
        if None not in codes:
            return first or (failed[0] if failed else 0)
        if failed and deadline_s is None:
            first, deadline_s = failed[0], time.monotonic() + GRACE_S
        if deadline_s is not None and time.monotonic() > deadline_s:
            return first
        time.sleep(POLL_S)


def lab_network(topology: Topology, nodes: int | None = None, gpus_per_node: int | None = None) -> LabNetwork:
    """Return the network to build for the first `nodes` nodes of `topology`, one host each.

    Raises:
        TopologyError: a node without a NIC or with several.
    """
    placement = topology.place(nodes, gpus_per_node)
    hosts = [
        Host(f"node{node}", tuple(placement.rank_of(node, gpu) for gpu in range(placement.gpus_per_node)))
        for node in range(placement.nodes)
    ]
    for node in range(placement.nodes):
        if len(nics := placement.class_of(node).template.nics) != 1:
            raise TopologyError(
                f"node{node} of {topology.name} has {len(nics)} NICs",
                place="netlab",
                remedy="a lab's nodes have one NIC each; describe them as one of the summed rate"
                if nics
                else "give it one",
            )
    wires = []
    for source, target, link in topology.graph(placement.nodes).edges(data="link"):
        if link.kind in ("nic", "network"):
            wires.append(
                LinkDirection(_host_or_switch(source), _host_or_switch(target), link.bandwidth, link.latency_s)
            )
    switches = {end for wire in wires for end in (wire.source, wire.target)} - {host.name for host in hosts}
    return LabNetwork(tuple(hosts), tuple(sorted(switches)), tuple(wires))


def _host_or_switch(vertex: str) -> str:
    return vertex.partition("/")[0]


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
    network = lab_network(topology, nodes)
    try:
        with stop_on_signals(), build(network) as lab:
            code = run(lab, command)
    except Stopped as stopped:
        print(f"netlab: stopped by {stopped}", file=sys.stderr)
        return 128 + stopped.number
    return code if code >= 0 else 128 - code
