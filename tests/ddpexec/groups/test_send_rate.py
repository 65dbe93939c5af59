"""Connections that send no faster than they are told."""

from __future__ import annotations

import socket
import sys
import threading
import time

import pytest

pytest.importorskip("torch")

from ddpexec.errors import OptionError
from ddpexec.groups.send_rate import SO_MAX_PACING_RATE, limit_send_rate

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux paces connections")
RATE = 20e6


def paced_seconds() -> tuple[int, float]:
    """Return the rate of a new connection's socket, and how long two megabytes took on it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        sender = socket.create_connection(server.getsockname())
        receiver, _ = server.accept()
    limit_send_rate(RATE, "gloo")
    rate = int.from_bytes(sender.getsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, 8), sys.byteorder)
    begin_s = time.perf_counter()
    sending = threading.Thread(target=sender.sendall, args=(bytes(2_000_000),))
    sending.start()
    left = 2_000_000
    while left:
        left -= len(receiver.recv(left))
    sending.join()
    return rate, time.perf_counter() - begin_s


def test_a_connection_sends_no_faster_than_the_limit() -> None:
    rate, seconds = paced_seconds()
    assert rate == RATE
    assert seconds > 0.8 * 2_000_000 / RATE  # the first segments of a connection are not held back


def test_other_backends_have_no_connections_that_can_be_paced() -> None:
    with pytest.raises(OptionError, match="connections of nccl cannot be paced"):
        limit_send_rate(RATE, "nccl")
