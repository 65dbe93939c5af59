"""A network in user space: packets between TUN devices, each wire with its rate, its delay and one queue.

It gives any topology, and delays where the kernel has no netem. Runs as a process of its own: `python -m
ddpexec.lab.netlab.forwarder` reads the network as JSON from stdin.

A TUN device gives the packets of a network namespace as bytes of a file descriptor. With segmentation offload the
kernel hands over TCP segments of many packets at once, and a Python forwarder keeps up with a gigabit.
"""

from __future__ import annotations

import contextlib
import fcntl
import heapq
import json
import os
import select
import struct
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ddpexec.lab.netlab.network import TCP_HEADER_BYTES, LabNetwork, LinkDirection

HEADER_BYTES = 10
"""struct virtio_net_hdr: flags, gso_type (u8), hdr_len, gso_size, csum_start, csum_offset (u16)."""
MAX_PACKET_BYTES = HEADER_BYTES + 65536

_TUNSETIFF = 0x400454CA
_TUNSETOFFLOAD = 0x400454D0
_IFF_TUN_NO_PI_VNET_HDR = 0x0001 | 0x1000 | 0x4000
_OFFLOAD_CSUM_TSO4 = 0x01 | 0x02
"""Of Linux' `include/uapi/linux/if_tun.h`: requests, flags of a device, and what may be left to it."""
_ETHERNET_BYTES = 14
"""The header of an Ethernet frame: two addresses of 6 bytes and a type of 2."""
_IP_DESTINATION_LAST = HEADER_BYTES + 19
_GSO_SIZE = struct.Struct("=xxxxH")


def open_tun(name: str) -> int:
    """Make the TUN device `name` and return its descriptor, not blocking; the device goes when that is closed."""
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TUN_NO_PI_VNET_HDR))
    fcntl.ioctl(descriptor, _TUNSETOFFLOAD, _OFFLOAD_CSUM_TSO4)
    return descriptor


def destination(packet: bytes) -> int:
    """Return the index of the host an IPv4 packet is for, -1 for any other packet."""
    if packet[HEADER_BYTES] >> 4 != 4:
        return -1
    return packet[_IP_DESTINATION_LAST] - 1


def size_on_wire(packet: bytes) -> int:
    """Return the bytes that a packet, or the packets a segment will be cut into, take on an Ethernet wire."""
    segment: int = _GSO_SIZE.unpack_from(packet)[0]
    body = len(packet) - HEADER_BYTES
    if segment == 0:
        return body + _ETHERNET_BYTES
    headers = TCP_HEADER_BYTES - _ETHERNET_BYTES
    pieces = -(-(body - headers) // segment)
    return body - headers + pieces * TCP_HEADER_BYTES


FRAME_BYTES = 1514
"""The largest Ethernet frame, without its check sequence: 1500 bytes and a header of 14."""
QUEUE_S = 0.5
"""A packet that would wait longer than this for a wire is dropped, as a switch with that much memory would."""
READS_AT_ONCE = 4
"""Packets read from one host before the next host has its turn; chosen by hand."""


@dataclass(slots=True)
class LinkQueues:
    """When packets leave each wire: a queue a wire, first come first served, cut through from wire to wire.

    Attributes:
        wires: of the network.
        free_s: when each wire will have sent all it accepted so far.
    """

    wires: Sequence[LinkDirection]
    free_s: list[float] = field(init=False)

    def __post_init__(self) -> None:
        self.free_s = [0.0] * len(self.wires)

    def send(self, wire: int, first_s: float, last_s: float, size_bytes: int) -> tuple[float, float] | None:
        """Send a segment whose first frame came at `first_s` and whose last came at `last_s`.

        Returns:
            when its first and its last frame arrive at the other end; None where the queue is full.
        """
        rate, delay_s = self.wires[wire].rate, self.wires[wire].delay_s
        start_s = max(first_s, self.free_s[wire])
        if start_s - first_s > QUEUE_S:
            return None
        frame_s = min(size_bytes, FRAME_BYTES) / rate
        end_s = max(start_s + size_bytes / rate, last_s + frame_s)
        self.free_s[wire] = end_s
        return end_s - (size_bytes / rate - frame_s) + delay_s, end_s + delay_s


class Forwarder:
    """Moves packets between descriptors, host `i`'s at `descriptors[i]`, in the time the wires take.

    Args:
        descriptors: of the hosts' TUN devices.
        wires: of the network.
        routes: the wires from host to host.
        clock: seconds, rising.
    """

    def __init__(
        self,
        descriptors: Sequence[int],
        wires: Sequence[LinkDirection],
        routes: Mapping[tuple[int, int], tuple[int, ...]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._descriptors, self._routes, self._clock = list(descriptors), routes, clock
        self._wires = LinkQueues(wires)
        self._hosts = {descriptor: host for host, descriptor in enumerate(descriptors)}
        self._events: list[tuple[float, int, float, int, tuple[int, ...], bytes]] = []
        self._count = 0

    def step(self) -> None:
        """Wait for the next packet or the next time due, and act on all there is."""
        wait_s = max(0.0, self._events[0][0] - self._clock()) if self._events else None
        readable, _, _ = select.select(self._descriptors, [], [], wait_s)
        for descriptor in readable:
            for _ in range(READS_AT_ONCE):
                try:
                    packet = os.read(descriptor, MAX_PACKET_BYTES)
                except BlockingIOError:
                    break
                self._accept(self._hosts[descriptor], packet)
        now_s = self._clock()
        while self._events and self._events[0][0] <= now_s:
            self._advance(*heapq.heappop(self._events))

    def _accept(self, source: int, packet: bytes) -> None:
        path = self._routes.get((source, destination(packet)))
        if path is not None:
            now_s = self._clock()
            self._push(now_s, now_s, size_on_wire(packet), path, packet)

    def _push(self, first_s: float, last_s: float, size_bytes: int, path: tuple[int, ...], packet: bytes) -> None:
        times = self._wires.send(path[0], first_s, last_s, size_bytes)
        if times is None:
            return
        self._count += 1
        due_s = times[1] if len(path) == 1 else times[0]
        heapq.heappush(self._events, (due_s, self._count, times[1], size_bytes, path, packet))

    def _advance(
        self, due_s: float, _count: int, last_s: float, size_bytes: int, path: tuple[int, ...], packet: bytes
    ) -> None:
        if len(path) > 1:
            self._push(due_s, last_s, size_bytes, path[1:], packet)
            return
        with contextlib.suppress(BlockingIOError):
            os.write(self._descriptors[destination(packet)], packet)


def describe(network: LabNetwork, descriptors: Sequence[int]) -> str:
    """Return the JSON that `main` reads."""
    wires = [[wire.source, wire.target, wire.rate, wire.delay_s] for wire in network.wires]
    routes = [[source, target, path] for (source, target), path in network.routes.items()]
    return json.dumps({"descriptors": list(descriptors), "wires": wires, "routes": routes})


def main() -> None:
    """Forward until killed, ahead of ordinary processes where the system allows it."""
    document = json.loads(sys.stdin.readline())
    wires = [LinkDirection(*wire) for wire in document["wires"]]
    routes = {(source, target): tuple(path) for source, target, path in document["routes"]}
    forwarder = Forwarder(document["descriptors"], wires, routes)
    with contextlib.suppress(PermissionError, OSError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(10))
    print("ready", flush=True)
    while True:
        forwarder.step()


if __name__ == "__main__":
    main()
