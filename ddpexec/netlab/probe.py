"""Measure what a forwarder sustains: TCP streams round the ring of hosts, as an allreduce makes them."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Sequence

from ddpexec.netlab.signals import die_with_parent
from ddpexec.netlab.support import module_environment

PORT = 29400
SECONDS = 0.6


def measure(namespaces: Sequence[str], addresses: Sequence[str]) -> float:
    """Return the bytes/s that all hosts together receive while each sends to the next without pause."""
    return sum(streams(namespaces, addresses))


def streams(namespaces: Sequence[str], addresses: Sequence[str]) -> list[float]:
    """Return the bytes/s that each host receives from the one before it while all send."""

    def start(namespace: str, *arguments: str) -> subprocess.Popen[str]:
        environment = module_environment()
        command = ["ip", "netns", "exec", namespace, sys.executable, "-m", __name__, *arguments]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, preexec_fn=die_with_parent)

    processes = receivers = [start(namespace, "receive", str(SECONDS)) for namespace in namespaces]
    try:
        for receiver in receivers:
            read_line(receiver)
        following = [*addresses[1:], addresses[0]]
        senders = [start(namespace, "send", to) for namespace, to in zip(namespaces, following, strict=True)]
        processes = receivers + senders
        return [float(read_line(receiver)) for receiver in receivers]
    finally:
        for process in processes:
            process.kill()
            process.wait()


def read_line(process: subprocess.Popen[str]) -> str:
    """Return the next line that `process` prints; raise where it ends instead."""
    line = process.stdout.readline() if process.stdout else ""
    if not line:
        raise ChildProcessError(f"the network probe ended with exit code {process.wait()}")
    return line


def receive(seconds: float) -> None:
    """Accept one stream, read it for `seconds`, print its bytes/s."""
    with socket.create_server(("", PORT)) as server:
        print("listening", flush=True)
        stream, _ = server.accept()
    buffer = bytearray(1 << 18)
    warm_s = time.monotonic() + seconds / 3
    while time.monotonic() < warm_s:
        stream.recv_into(buffer)
    start_s, received = time.monotonic(), 0
    while (now_s := time.monotonic()) < start_s + seconds:
        received += stream.recv_into(buffer)
    print(received / (now_s - start_s), flush=True)


def send(address: str) -> None:
    """Send to `address` until it hangs up."""
    with socket.create_connection((address, PORT)) as stream:
        block = bytes(1 << 18)
        with contextlib.suppress(ConnectionError):
            while True:
                stream.sendall(block)


if __name__ == "__main__":
    send(sys.argv[2]) if sys.argv[1] == "send" else receive(float(sys.argv[2]))
