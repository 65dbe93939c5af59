"""Measure what a forwarder sustains: TCP streams round the ring of hosts, as an allreduce makes them."""

from __future__ import annotations

import contextlib
import fcntl
import socket
import subprocess
import sys
import termios
import time
from collections.abc import Sequence

from ddpexec.groups.environment import module_environment
from ddpsim.common.errors import InputError
from ddpsim.common.parent import die_with_parent

PORT = 29400
"""The port of a receiver, in a network of its own."""
SECONDS = 0.6
"""How long a stream is counted, after a third of that to warm up; chosen by hand."""
_RECEIVER = "a receiver of the network probe"


def measure(namespaces: Sequence[str], addresses: Sequence[str]) -> float:
    """Return the bytes/s that all hosts together receive while each sends to the next without pause."""
    return sum(streams(namespaces, addresses))


def streams(
    namespaces: Sequence[str], addresses: Sequence[str], pairs: Sequence[tuple[int, int]] | None = None
) -> list[float]:
    """Return the bytes/s of streams that all run at once.

    Args:
        namespaces, addresses: of the hosts.
        pairs: source and target of each stream, no host twice a target; None is from each host to the next.
    """
    count = len(namespaces)
    pairs = pairs or [((target - 1) % count, target) for target in range(count)]

    def start(namespace: str, *arguments: str) -> subprocess.Popen[str]:
        environment = module_environment()
        command = ["ip", "netns", "exec", namespace, sys.executable, "-m", __name__, *arguments]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, preexec_fn=die_with_parent)

    processes = receivers = [start(namespaces[target], "receive", str(SECONDS)) for _, target in pairs]
    try:
        for receiver in receivers:
            read_line(receiver, _RECEIVER)
        senders = [start(namespaces[source], "send", addresses[target]) for source, target in pairs]
        processes = receivers + senders
        return [float(read_line(receiver, _RECEIVER)) for receiver in receivers]
    finally:
        for process in processes:
            process.kill()
            process.wait()


def read_line(process: subprocess.Popen[str], what: str) -> str:
    """Return the next line that `process` prints.

    Raises:
        InputError: it ends instead; `what` names it.
    """
    line = process.stdout.readline() if process.stdout else ""
    if not line:
        raise InputError(
            f"{what} ended with exit code {process.wait()}",
            place="netlab",
            remedy="see what it wrote; a negative code is the signal that killed it, -9 where memory ran out",
        )
    return line


def receive(seconds: float) -> None:
    """Accept one stream, read it for `seconds`, print its bytes/s.

    What came before and is read late, for this process had to wait for a processor, is not counted.
    """
    with socket.create_server(("", PORT)) as server:
        print("listening", flush=True)
        stream, _ = server.accept()
    buffer = bytearray(1 << 18)
    warm_s = time.monotonic() + seconds / 3
    while time.monotonic() < warm_s:
        stream.recv_into(buffer)
    start_s = time.monotonic()
    received = -_count_unread(stream)
    while time.monotonic() < start_s + seconds:
        received += stream.recv_into(buffer)
    received += _count_unread(stream)
    print(received / (time.monotonic() - start_s), flush=True)


def _count_unread(stream: socket.socket) -> int:
    """Return the bytes that have come and wait to be read."""
    return int.from_bytes(fcntl.ioctl(stream, termios.FIONREAD, bytes(4)), sys.byteorder)


def send(address: str) -> None:
    """Send to `address` until it hangs up."""
    with socket.create_connection((address, PORT)) as stream:
        block = bytes(1 << 18)
        with contextlib.suppress(ConnectionError):
            while True:
                stream.sendall(block)


if __name__ == "__main__":
    send(sys.argv[2]) if sys.argv[1] == "send" else receive(float(sys.argv[2]))
