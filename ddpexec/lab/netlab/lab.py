"""Build a lab network, and take it down whatever happens."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace

from ddpexec.groups.torchrun import module_environment
from ddpexec.lab.netlab import kernel, probe, support
from ddpexec.lab.netlab.forwarder import describe
from ddpexec.lab.netlab.names import claim_name
from ddpexec.lab.netlab.network import LabNetwork
from ddpexec.lab.netlab.tun import open_tun
from ddpsim.common.errors import InputError
from ddpsim.common.parent import die_with_parent

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
        kernel.make_hosts(name, network)
        namespaces = tuple(kernel.host_namespace(name, index) for index in range(len(network.hosts)))
        if shaper == "kernel":
            kernel.make_bridged(name, network)
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
    device, namespace = f"dl{os.getpid()}h{index}", kernel.host_namespace(name, index)
    descriptor = open_tun(device)
    stack.callback(os.close, descriptor)
    own = [wire.rate for wire in network.wires if wire.source == network.hosts[index].name]
    segment = min(65536, max(16 << 10, int(SEGMENT_S * min(own, default=UNLIMITED))))
    kernel.ip("link", "set", device, "netns", namespace, "name", "eth0")
    kernel.ip("-n", namespace, "link", "set", "eth0", "txqueuelen", "20000", "gso_max_size", str(segment))
    kernel.address_device(namespace, network.address(index))
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
