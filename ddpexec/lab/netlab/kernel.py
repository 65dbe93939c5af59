"""A lab network that the kernel shapes: namespaces, bridges, veth pairs, `tbf` for rates and `netem` for delays."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence

from ddpexec.lab.netlab.network import LabNetwork, LinkDirection
from ddpsim.common.errors import InputError

BURST_S = 1e-3
"""A shaper may catch up this much after the kernel served it late.

With less a busy machine loses rate (4 to 10 % at 0.3 ms); with more, messages after a pause run free for longer.
"""
MIN_BURST_BYTES = 16 << 10
"""The smallest burst of a shaper, on slow wires; chosen by hand, ten full packets."""
SEGMENT_SHARE = 0.9
"""Of the smallest burst that a TCP segment may take; a shaper cuts up or drops what exceeds its burst."""
QUEUE_S = 0.5
"""How long a packet may wait for a wire before it is dropped, as in the forwarder."""
SETTINGS = ("tcp_slow_start_after_idle=0", "tcp_no_metrics_save=1", "tcp_congestion_control=reno")
"""Of each host, so that what a collective takes depends on the network alone.

Every kernel has Reno, which on links that lose nothing keeps the window full. BBR, the default of some machines, drains
a link every ten seconds to measure its delay: 100 to 200 ms are then missing.
"""


def ip(*arguments: str) -> None:
    """Run `ip` with `arguments`."""
    _run(["ip", *arguments])


def make_hosts(lab: str, network: LabNetwork) -> None:
    """Make one namespace a host, with loopback up and TCP as in `SETTINGS`."""
    for index in range(len(network.hosts)):
        namespace = host_namespace(lab, index)
        ip("netns", "add", namespace)
        ip("-n", namespace, "link", "set", "lo", "up")
        for setting in SETTINGS:
            _run(["ip", "netns", "exec", namespace, "sysctl", "-qw", f"net.ipv4.{setting}"])


def host_namespace(lab: str, index: int) -> str:
    """Return the namespace of the `index`-th host."""
    return f"{lab}-h{index}"


def make_bridged(lab: str, network: LabNetwork) -> None:
    """Connect the hosts of `network`, a tree, by bridges in a namespace of their own and shape each direction."""
    fabric = f"{lab}-fabric"
    ip("netns", "add", fabric)
    for number in range(len(network.switches)):
        ip("-n", fabric, "link", "add", f"br{number}", "type", "bridge")
        ip("-n", fabric, "link", "set", f"br{number}", "up")
    segment = min([65536, *(int(burst_bytes(wire.rate) * SEGMENT_SHARE) for wire in network.wires)])
    wires = {(wire.source, wire.target): wire for wire in network.wires}
    ends = {host.name: (host_namespace(lab, i), "eth0", None) for i, host in enumerate(network.hosts)}
    cables = [(a, b) for a, b in wires if (b, a) not in wires or a < b]
    for number, (a, b) in enumerate(cables):
        ports = [
            ends.get(name) or (fabric, f"p{number}{side}", f"br{network.switches.index(name)}")
            for side, name in (("a", a), ("b", b))
        ]
        _make_cable(ports, segment)
        for (namespace, device, _), wire in zip(ports, (wires.get((a, b)), wires.get((b, a))), strict=True):
            if wire is not None:
                _shape(namespace, device, wire)
    for index in range(len(network.hosts)):
        address_device(host_namespace(lab, index), network.address(index))


def address_device(namespace: str, address: str) -> None:
    """Give `eth0` of `namespace` its address and bring it up."""
    ip("-n", namespace, "addr", "add", f"{address}/24", "dev", "eth0")
    ip("-n", namespace, "link", "set", "eth0", "up")


def burst_bytes(rate: float) -> int:
    """Return the bytes a shaper of `rate` may send at once."""
    return max(int(rate * BURST_S), MIN_BURST_BYTES)


def _make_cable(ports: Sequence[tuple[str, str, str | None]], segment_bytes: int) -> None:
    (near, near_device, _), (far, far_device, _) = ports
    ip("-n", near, "link", "add", near_device, "type", "veth", "peer", "name", far_device, "netns", far)
    for namespace, device, bridge in ports:
        if bridge is not None:
            ip("-n", namespace, "link", "set", device, "master", bridge)
        ip("-n", namespace, "link", "set", device, "gso_max_size", str(segment_bytes), "up")
        _keep_order(namespace, device)


def _keep_order(namespace: str, device: str) -> None:
    """Let one processor receive all packets of a connection, where the kernel can (receive packet steering).

    Else each packet is received by the processor that sent it, two overtake each other, and TCP takes that for loss.
    """
    processors = (1 << (os.cpu_count() or 1)) - 1
    words = [f"{processors >> shift & 0xFFFFFFFF:x}" for shift in range(0, processors.bit_length(), 32)]
    queue = f"/sys/class/net/{device}/queues/rx-0/rps_cpus"
    steer = f"[ ! -w {queue} ] || echo {','.join(reversed(words))} > {queue}"
    _run(["ip", "netns", "exec", namespace, "sh", "-c", steer])


def _shape(namespace: str, device: str, wire: LinkDirection) -> None:
    burst = burst_bytes(wire.rate)
    tc = ["tc", "-n", namespace, "qdisc", "add", "dev", device]
    rate = ["rate", f"{wire.rate * 8:.0f}bit", "burst", str(burst), "latency", f"{QUEUE_S * 1e3:.0f}ms"]
    _run([*tc, "root", "handle", "1:", "tbf", *rate])
    if wire.delay_s > 0:
        _run([*tc, "parent", "1:1", "handle", "2:", "netem", "delay", f"{wire.delay_s * 1e6:.0f}us", "limit", "100000"])


def _run(command: list[str]) -> None:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise InputError(
            f"`{' '.join(command)}` failed: {result.stderr.strip()}",
            place="netlab",
            remedy="check that this kernel has namespaces, veth, bridges and the tbf scheduler",
        )
