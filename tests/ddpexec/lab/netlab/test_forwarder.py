from __future__ import annotations

import os
import socket
import struct
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpexec.lab.netlab.forwarder import (
    FRAME_BYTES,
    HEADER_BYTES,
    QUEUE_S,
    Forwarder,
    LinkQueues,
    destination,
    size_on_wire,
)
from ddpexec.lab.netlab.network import SEGMENT_BYTES, TCP_HEADER_BYTES, LinkDirection


def packet(target: int, payload_bytes: int, segment_bytes: int = 0) -> bytes:
    """Return an IPv4 TCP packet for host `target` behind a virtio header."""
    header = struct.pack("=BBHHHH", 1, 1 if segment_bytes else 0, 52, segment_bytes, 20, 16)
    address = bytes([0x45]) + bytes(15) + bytes([10, 77, 0, target + 1])
    return header + address + bytes(32 + payload_bytes)


def test_a_segment_costs_the_wire_what_its_packets_would() -> None:
    payload = 20 * SEGMENT_BYTES + 100
    assert size_on_wire(packet(1, payload, SEGMENT_BYTES)) == payload + 21 * TCP_HEADER_BYTES
    assert size_on_wire(packet(1, 100)) == 100 + TCP_HEADER_BYTES
    assert destination(packet(3, 10)) == 3
    assert destination(bytes([*bytes(HEADER_BYTES), 0x60, *bytes(60)])) == -1


@given(
    st.lists(st.tuples(st.floats(0, 1e-3), st.integers(60, 65000)), min_size=1, max_size=30),
    st.floats(1e7, 1e9),
    st.floats(0, 5e-3),
)
def test_a_wire_is_a_queue_that_loses_no_time(arrivals: list[tuple[float, int]], rate: float, delay_s: float) -> None:
    wires, now_s, last_s, busy_s = LinkQueues([LinkDirection("a", "b", rate, delay_s)]), 0.0, 0.0, 0.0
    for gap_s, size in arrivals:
        now_s += gap_s
        busy_s = max(busy_s, now_s) + size / rate
        times = wires.send(0, now_s, now_s, size)
        assert times is not None
        first_s, end_s = times
        assert end_s == pytest.approx(busy_s + delay_s, rel=1e-9)
        assert now_s + delay_s <= first_s <= end_s
        assert end_s >= last_s
        last_s = end_s


def test_a_long_segment_flows_through_wires_as_a_stream_does() -> None:
    size, rates = 64000, [1e8, 1e8, 2e7, 1e8]
    wires = LinkQueues([LinkDirection(f"{i}", f"{i + 1}", rate, 1e-4) for i, rate in enumerate(rates)])
    first_s = last_s = 0.0
    for wire in range(len(rates)):
        times = wires.send(wire, first_s, last_s, size)
        assert times is not None
        first_s, last_s = times
    stream_s = size / min(rates) + len(rates) * 1e-4
    frames_s = sum(FRAME_BYTES / rate for rate in rates)
    assert stream_s <= last_s <= stream_s + frames_s


def test_a_full_queue_drops() -> None:
    wires = LinkQueues([LinkDirection("a", "b", 1e6)])
    sent = [wires.send(0, 0.0, 0.0, 50_000) for _ in range(20)]
    kept = [times for times in sent if times is not None]
    assert 0 < len(kept) < len(sent)
    assert kept[-1][1] <= QUEUE_S + 50_000 / 1e6


class Clock:
    """A clock that moves when told."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_packets_come_out_at_their_host_in_order_and_not_before_their_time() -> None:
    pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(2)]
    for ours, theirs in pairs:
        ours.setblocking(False)
        theirs.setblocking(False)
    clock = Clock()
    forwarder = Forwarder(
        [ours.fileno() for ours, _ in pairs], [LinkDirection("a", "b", 1e6, 0.5)], {(0, 1): (0,)}, clock
    )
    sent = [packet(1, size) for size in (400, 300, 200)]
    for each in sent:
        pairs[0][1].send(each)
    pairs[0][1].send(packet(7, 10))
    forwarder.step()
    due_s = [0.5 + sum(map(size_on_wire, sent[: i + 1])) / 1e6 for i in range(3)]
    assert all(earlier < later for earlier, later in pairwise(due_s))
    received = []
    for time_s in (due_s[0] - 1e-6, due_s[0], due_s[1], due_s[2]):
        clock.now_s = time_s
        os.write(pairs[1][1].fileno(), packet(9, 0))
        forwarder.step()
        try:
            received.append(pairs[1][1].recv(1 << 16))
        except BlockingIOError:
            received.append(b"")
    for ours, theirs in pairs:
        ours.close()
        theirs.close()
    assert received == [b"", *sent]
