"""One rank's clock, told to ranks on other machines of its group: a server on the group's interface that wants a token.

The server listens on one address alone, that of the interface by which the group's ranks reach each other, and answers
those alone who begin with the token that it was given: ranks have it from the group's store.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable

PINGS = 15
"""Messages there and back, of which the quickest tells the offset of two clocks; as `ddpexec.timing.clock` has it."""
ANSWER_S = 3.0
"""How long a caller may be silent, and how long one waits for the server; chosen by hand."""
_INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
"""Variables by which a user says over which interface ranks reach each other."""
_GET_ADDRESS = 0x8915
"""Linux's SIOCGIFADDR, which asks for an interface's address (`man 7 netdevice`)."""
_TOKEN = 32
"""Characters of a token: 16 random bytes in hexadecimal."""
_ANY_PORT = 9
"""No packet is sent to it: a socket is bound for an address and a port."""


def make_token() -> str:
    """Return a token that nobody can guess."""
    return secrets.token_hex(_TOKEN // 2)


def find_own_address(peer: str | None = None) -> str | None:
    """Return this machine's address in the group's network, None where that is not known.

    It is that of the interface which the environment names, else the one that a packet to `peer` would leave from;
    None stands for the group's master. An address of this machine alone (127.0.0.1) is returned where that is it.
    """
    for variable in _INTERFACES:
        for name in os.environ.get(variable, "").removeprefix("=").split(","):
            if (address := _interface_address(name)) is not None:
                return address
    return _outgoing(peer or os.environ.get("MASTER_ADDR", ""))


def is_local(address: str) -> bool:
    """Whether no other machine can reach the address."""
    return address.startswith("127.") or address == "::1"


def serve_clock(address: str, token: str) -> tuple[int, Callable[[], None]]:
    """Answer with `time.perf_counter` who begins with `token`, on a thread; return the port, and what ends the thread.

    Raises:
        OSError: `address` is not of this machine.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.create_server((address, 0), family=family)

    def answer(caller: socket.socket) -> None:
        with caller, contextlib.suppress(OSError):
            caller.settimeout(ANSWER_S)
            caller.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if not hmac.compare_digest(_receive(caller, _TOKEN), token.encode()):
                return
            for _ in range(PINGS):
                _receive(caller, 1)
                caller.sendall(struct.pack("!d", time.perf_counter()))

    def accept() -> None:
        with listener, contextlib.suppress(OSError):
            while True:
                caller, _ = listener.accept()
                threading.Thread(target=answer, args=(caller,), daemon=True).start()

    def stop() -> None:
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)

    port = int(listener.getsockname()[1])
    threading.Thread(target=accept, daemon=True, name=f"ddpexec.trace clock {port}").start()
    return port, stop


def offset_to(address: str, port: int, token: str) -> float:
    """Return the seconds to add to this clock to get that of `serve_clock` there, by the quickest of `PINGS` answers.

    Raises:
        OSError: nobody answers within `ANSWER_S`, or the token is not the server's.
    """
    best, offset = float("inf"), 0.0
    with socket.create_connection((address, port), timeout=ANSWER_S) as server:
        server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        server.sendall(token.encode())
        for _ in range(PINGS):
            begin = time.perf_counter()
            server.sendall(b"?")
            answer = _receive(server, 8)
            end = time.perf_counter()
            if end - begin < best:
                best, offset = end - begin, struct.unpack("!d", answer)[0] - (begin + end) / 2
    return offset


def _receive(peer: socket.socket, count: int) -> bytes:
    received = b""
    while len(received) < count:
        part = peer.recv(count - len(received))
        if not part:
            raise OSError("the other side has closed")
        received += part
    return received


def _outgoing(peer: str) -> str | None:
    if not peer:
        return None
    with contextlib.suppress(OSError):
        family, kind, protocol, _, target = socket.getaddrinfo(peer, _ANY_PORT, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(target)
            return str(probe.getsockname()[0])
    return None


def _interface_address(name: str) -> str | None:
    """Return an interface's address, None where there is no such interface, or it has none."""
    if not name or not sys.platform.startswith("linux"):
        return None
    import fcntl

    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        found = fcntl.ioctl(probe.fileno(), _GET_ADDRESS, struct.pack("256s", name[:15].encode()))
        return socket.inet_ntoa(found[20:24])
    return None
