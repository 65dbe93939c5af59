"""What ranks exchange about a trace, on a thread and through the process group's store: never by a collective.

Start with `Exchange`, one thread a rank. A store that hangs, a rank that is gone or one that is not traced at all holds
up nothing but this thread, which ends with its process.

`serve_clock` and `offset_to` align the clocks of ranks on different machines. The server listens on one address alone,
that of the interface by which the group's ranks reach each other, and answers only callers that begin with a token,
which ranks read from the group's store.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import queue
import secrets
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch.distributed as dist

from ddpexec.groups.notes import connection, find_place

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
    """Return an unguessable token."""
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
            # A thread a caller: one that never answers must not keep the next one out.
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
        answer = fcntl.ioctl(probe.fileno(), _GET_ADDRESS, struct.pack("256s", name[:15].encode()))
        return socket.inet_ntoa(answer[20:24])
    return None


ALIGN_S = 3.0
"""How long a rank waits, once, for the first rank's clock; chosen by hand: all ranks begin about together."""
PATIENCE_S = 5.0
"""How long rank 0 waits, on its thread, for the others' words of an interval; chosen by hand."""
LEAVE_S = 2.0
"""How long the end of a trace waits for the thread at most; chosen by hand."""
_POLL_S = 0.05
_QUEUED = 16
"""Intervals that wait for a slow store; later ones go untold to the others."""
_ERRORS = (RuntimeError, ValueError, KeyError, TypeError, OSError)

_ROOT = "ddpexec/trace"
_followed = set[str]()
"""Names of the traces that this process has taken part in: of two loops, the first may still be the one of rank 0."""

Document = Mapping[str, Any]
Listener = Callable[[int, Document, Mapping[int, Document]], None]
"""Called on the thread with an interval, this rank's words of it and, on rank 0, those of the others that came."""


class Exchange:
    """One rank's thread.

    Rank 0 names the trace, and says so in the store as long as it traces: ranks may have traced other loops before,
    some of them alone.

    Args:
        rank, world_size: in the default process group; one rank alone tells nobody.
        heard: see `Listener`.
    """

    def __init__(self, rank: int, world_size: int, listener: Listener) -> None:
        self._rank, self._world, self._heard = rank, world_size, listener
        self._name: str | None = None
        self._stop_clock: Callable[[], None] = lambda: None
        self._queue: queue.Queue[tuple[int, Document] | None] = queue.Queue(_QUEUED)
        self._aligned = threading.Event()
        self._leaving = False
        self.offset_s: float | None = None
        self.missing = set[int]()
        self._thread = threading.Thread(target=self._run, daemon=True, name="ddpexec.trace")
        self._thread.start()

    def align(self) -> float | None:
        """Return the seconds to add to this rank's clock to get the first rank's; None where it did not answer."""
        self._aligned.wait(ALIGN_S)
        return self.offset_s

    def tell(self, interval: int, words: Document) -> None:
        """Queue this rank's document of an interval for rank 0; returns at once."""
        with contextlib.suppress(queue.Full):
            self._queue.put_nowait((interval, words))

    def close(self) -> None:
        """Tell what is left, but wait no longer than `LEAVE_S`."""
        self._leaving = True
        with contextlib.suppress(queue.Full):
            self._queue.put_nowait(None)
        self._thread.join(LEAVE_S)

    # ---- the thread

    def _run(self) -> None:
        store = None
        with contextlib.suppress(*_ERRORS):
            store = connection() if self._world > 1 and dist.is_initialized() else None
            self._align(store)
        # Set whatever went wrong above: `align` waits for it, in the training's own thread.
        self._aligned.set()
        while (interval_words := self._queue.get()) is not None:
            others: dict[int, Document] = {}
            if store is not None:
                try:
                    self._say(store, *interval_words)
                    others = self._hear(store, interval_words[0]) if self._rank == 0 else {}
                except _ERRORS:
                    store = None  # its keeper is gone: the lines of this rank go on
            with contextlib.suppress(*_ERRORS):
                self._heard(*interval_words, others)
        self._stop_clock()
        if self._rank == 0 and store is not None:
            with contextlib.suppress(*_ERRORS):
                self._take_back(store)

    def _say(self, store: Any, interval: int, words: Document) -> None:
        if self._name is None and self._follow(store) is None:
            return
        store.set(self._key(interval, self._rank), json.dumps(words))
        with contextlib.suppress(*_ERRORS):
            # The interval before may still be read by rank 0, the one before that no longer.
            store.delete_key(self._key(interval - 2, self._rank))

    def _hear(self, store: Any, interval: int) -> dict[int, Document]:
        others: dict[int, Document] = {}
        begin = time.monotonic()
        # Who missed an interval is not waited for in the next, but heard where it has spoken.
        while True:
            for rank in range(1, self._world):
                if rank not in others and store.check([self._key(interval, rank)]):
                    others[rank] = json.loads(store.get(self._key(interval, rank)))
            left = set(range(1, self._world)) - others.keys()
            patience = min(PATIENCE_S, LEAVE_S / 2) if self._leaving else PATIENCE_S
            if not left - self.missing or time.monotonic() > begin + patience:
                self.missing = left
                return others
            time.sleep(_POLL_S)

    def _align(self, store: Any) -> None:
        if store is None or self._rank == 0:
            self.offset_s = 0.0
            if store is not None:
                self._answer(store)
            return
        until = time.monotonic() + ALIGN_S
        if (mine := find_own_address()) is not None:
            store.set(f"{_ROOT}/caller", mine)
        while (clock := self._follow(store)) is None:
            if time.monotonic() > until:
                return
            time.sleep(_POLL_S)
        if clock["machine"] == find_place()[0]:
            self.offset_s = 0.0
        elif clock["port"] is not None:
            self.offset_s = offset_to(clock["address"], clock["port"], clock["token"])

    def _follow(self, store: Any) -> dict[str, Any] | None:
        """Take part in what rank 0 traces, and return where its clock is; None where that has not begun."""
        if not store.check([f"{_ROOT}/clock"]):
            return None
        clock: dict[str, Any] = json.loads(store.get(f"{_ROOT}/clock"))
        # Left by a loop that this process traced before: rank 0 has not begun the present one.
        if clock["name"] in _followed:
            return None
        _followed.add(clock["name"])
        self._name = clock["name"]
        return clock

    def _answer(self, store: Any) -> None:
        """Answer whoever asks for this rank's clock, on a thread of its own; none asks where all share a machine."""
        one_machine = os.environ.get("LOCAL_WORLD_SIZE") == os.environ.get("WORLD_SIZE", "")
        address = None if one_machine else self._address(store)
        token, port = make_token(), None
        if address is not None:
            with contextlib.suppress(OSError):
                port, self._stop_clock = serve_clock(address, token)
        self._name = make_token()
        clock = {"name": self._name, "machine": find_place()[0], "address": address, "port": port, "token": token}
        store.set(f"{_ROOT}/clock", json.dumps(clock))

    def _take_back(self, store: Any) -> None:
        """Tell no more ranks of this trace; another may have begun meanwhile."""
        # A key that is not there is waited for by `get`.
        if store.check([f"{_ROOT}/clock"]) and json.loads(store.get(f"{_ROOT}/clock"))["name"] == self._name:
            store.delete_key(f"{_ROOT}/clock")

    def _address(self, store: Any) -> str | None:
        """Return where to listen; where the master's name means this machine alone, on the way back to another rank."""
        address = find_own_address()
        if address is not None and not is_local(address):
            return address
        until = time.monotonic() + ALIGN_S / 2
        while not store.check([f"{_ROOT}/caller"]):
            if time.monotonic() > until:
                return address
            time.sleep(_POLL_S)
        caller = store.get(f"{_ROOT}/caller").decode()
        return address if is_local(caller) else find_own_address(caller)

    def _key(self, interval: int, rank: int) -> str:
        return f"{_ROOT}/{self._name}/{interval}/{rank}"
