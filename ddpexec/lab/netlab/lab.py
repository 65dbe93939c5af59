"""Build a lab network of namespaces, bridges and veth pairs, and take it down whatever happens.

The kernel shapes it: `tbf` for rates, `netem` for delays; a forwarder in user space takes over where the kernel has no
netem. Names and locks tell which namespaces belong to a lab, and which labs have died and left theirs behind.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ddpexec.groups.environment import module_environment
from ddpexec.lab.netlab import probe, support
from ddpexec.lab.netlab.forwarder import describe, open_tun
from ddpexec.lab.netlab.network import LabNetwork, LinkDirection
from ddpsim.common.errors import InputError
from ddpsim.common.parent import die_with_parent
from ddpsim.common.stopping import ignore_signals

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


PREFIX = "ddplab"
LOCKS = Path("/run/ddpexec-netlab")


@contextlib.contextmanager
def claim_name() -> Iterator[str]:
    """Yield a lab's name, held by a lock that dies with this process; remove the leftovers of dead labs first."""
    name = f"{PREFIX}-{os.getpid()}"
    path = LOCKS / f"{name}.lock"
    with contextlib.ExitStack() as stack:
        with _hold_lock():
            _remove_dead()
            lock = stack.enter_context(path.open("w"))
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        try:
            yield name
        finally:
            with ignore_signals():
                remove_namespaces(name)
                path.unlink(missing_ok=True)


def remove_leftovers() -> list[str]:
    """Remove the namespaces of labs whose process is gone, with all that still runs in them; return the labs' names.

    Only namespaces that carry this project's prefix and whose lock nobody holds are touched.
    """
    with _hold_lock():
        return _remove_dead()


def remove_namespaces(name: str) -> None:
    """Kill what runs in the namespaces of lab `name` and delete them; the devices in them go with them."""
    for namespace in namespaces():
        if namespace.startswith(f"{name}-"):
            pids = subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, text=True, check=False)
            for pid in pids.stdout.split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            subprocess.run(["ip", "netns", "delete", namespace], capture_output=True, check=False)


def namespaces() -> list[str]:
    """Return the names of all network namespaces of this machine."""
    result = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False)
    return [line.split()[0] for line in result.stdout.splitlines() if line.strip()]


@contextlib.contextmanager
def _hold_lock() -> Iterator[None]:
    """Hold the lock under which labs are claimed and dead ones removed.

    A lab that has opened its own lock and not taken it yet would else look dead to another.
    """
    LOCKS.mkdir(parents=True, exist_ok=True)
    with (LOCKS / "claiming.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _remove_dead() -> list[str]:
    owners = {m[1] for n in namespaces() if (m := re.fullmatch(rf"({PREFIX}-\d+)-\w+", n))}
    owners |= {path.stem for path in LOCKS.glob(f"{PREFIX}-*.lock")}
    dead = [name for name in sorted(owners) if not _is_alive(name)]
    for name in dead:
        remove_namespaces(name)
        (LOCKS / f"{name}.lock").unlink(missing_ok=True)
    return dead


def _is_alive(name: str) -> bool:
    try:
        with (LOCKS / f"{name}.lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


SHARE = 0.7
"""The forwarder runs a network of at most this share of what it sustained when measured."""
UNLIMITED = 1e12
"""Bytes per second of a wire that limits nothing, more than any machine moves."""
SEGMENT_S = 5e-4
"""Largest time that one TCP segment may hold a wire of the forwarder."""


@dataclass(frozen=True, slots=True)
class Lab:
    """A network that stands: run processes in `namespaces[i]` to be on host `i`."""

    network: LabNetwork
    namespaces: tuple[str, ...]
    shaper: str
    sustained: float | None = None

    def enter(self, host: int, command: list[str]) -> list[str]:
        """Return `command` as it runs on `host`."""
        return ["ip", "netns", "exec", self.namespaces[host], *command]


def shaper_for(network: LabNetwork) -> str:
    """Return `kernel` where bridges and queueing disciplines give the network, else `forwarder`."""
    if network.is_tree and (not network.delayed or support.has_netem()):
        return "kernel"
    return "forwarder"


@contextlib.contextmanager
def build(network: LabNetwork, shaper: str | None = None) -> Iterator[Lab]:
    """Yield the network as a `Lab`; take it down at the end, also after an exception.

    Args:
        network: what to build.
        shaper: `kernel` or `forwarder`; None takes the kernel where it can.

    Raises:
        InputError: the machine lacks something, or the forwarder does not sustain the network's rates.
    """
    if lacking := support.list_missing():
        raise InputError(f"a lab network needs {'; '.join(lacking)}", place="netlab")
    shaper = shaper or shaper_for(network)
    with claim_name() as name, contextlib.ExitStack() as stack:
        make_hosts(name, network)
        namespaces = tuple(host_namespace(name, index) for index in range(len(network.hosts)))
        if shaper == "kernel":
            make_bridged(name, network)
            yield Lab(network, namespaces, shaper)
        else:
            yield Lab(network, namespaces, shaper, _start_forwarder(stack, name, network, namespaces))


def _start_forwarder(
    stack: contextlib.ExitStack, name: str, network: LabNetwork, namespaces: tuple[str, ...]
) -> float | None:
    if not support.has_tun():
        raise InputError(
            "this kernel has no netem, and the forwarder needs /dev/net/tun, which cannot be opened",
            place="netlab",
            remedy="load the tun module, or leave the delay away",
        )
    descriptors = [_make_tun(name, network, index, stack) for index in range(len(network.hosts))]
    sustained = None
    if len(namespaces) > 1:
        unlimited = replace(network, wires=tuple(replace(w, rate=UNLIMITED, delay_s=0.0) for w in network.wires))
        with _forwarder(unlimited, descriptors):
            sustained = probe.measure(namespaces, [network.address(i) for i in range(len(namespaces))])
        if network.offered_rate() > SHARE * sustained:
            raise InputError(
                f"the network asks for {network.offered_rate() * 8e-9:.3g} Gbit/s in all, and the forwarder sustains "
                f"{sustained * 8e-9:.3g} Gbit/s here, of which {SHARE:.0%} may be used",
                place="netlab",
                remedy=f"lower the rates to {SHARE * sustained / network.offered_rate():.0%}, or use fewer hosts",
            )
    stack.enter_context(_forwarder(network, descriptors))
    return sustained


def _make_tun(name: str, network: LabNetwork, index: int, stack: contextlib.ExitStack) -> int:
    device, namespace = f"dl{os.getpid()}h{index}", host_namespace(name, index)
    descriptor = open_tun(device)
    stack.callback(os.close, descriptor)
    own = [wire.rate for wire in network.wires if wire.source == network.hosts[index].name]
    segment = min(65536, max(16 << 10, int(SEGMENT_S * min(own, default=UNLIMITED))))
    ip("link", "set", device, "netns", namespace, "name", "eth0")
    ip("-n", namespace, "link", "set", "eth0", "txqueuelen", "20000", "gso_max_size", str(segment))
    address_device(namespace, network.address(index))
    return descriptor


@contextlib.contextmanager
def _forwarder(network: LabNetwork, descriptors: list[int]) -> Iterator[None]:
    process = subprocess.Popen(
        [sys.executable, "-m", "ddpexec.lab.netlab.forwarder"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        pass_fds=descriptors,
        env=module_environment(),
        start_new_session=True,
        preexec_fn=die_with_parent,
    )
    try:
        with contextlib.suppress(BrokenPipeError):  # where it has ended, which the next line tells
            print(describe(network, descriptors), file=process.stdin, flush=True)
        probe.read_line(process, "the forwarder")
        yield
    finally:
        process.kill()
        process.wait()
