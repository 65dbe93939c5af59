"""What ranks tell each other of a trace, on a thread and through the process group's store: never by a collective.

A store that hangs, a rank that is gone or one that is not traced at all holds up nothing but this thread, which ends
with its process.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch.distributed as dist

from ddpexec.groups.notes import connection
from ddpexec.groups.whereabouts import find_place
from ddpexec.tracing.clock_server import find_own_address, is_local, make_token, offset_to, serve_clock

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

Words = Mapping[str, Any]
Heard = Callable[[int, Words, Mapping[int, Words]], None]
"""Called on the thread with an interval, this rank's words of it and, on rank 0, those of the others that came."""


class Exchange:
    """One rank's thread.

    Rank 0 names the trace, and says so in the store as long as it traces: ranks may have traced other loops before,
    some of them alone.

    Args:
        rank, world_size: in the default process group; one rank alone tells nobody.
        heard: see `Heard`.
    """

    def __init__(self, rank: int, world_size: int, heard: Heard) -> None:
        self._rank, self._world, self._heard = rank, world_size, heard
        self._name: str | None = None
        self._stop_clock: Callable[[], None] = lambda: None
        self._queue: queue.Queue[tuple[int, Words] | None] = queue.Queue(_QUEUED)
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

    def tell(self, interval: int, words: Words) -> None:
        """Have `words` of an interval told; returns at once."""
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
        self._aligned.set()
        while (told := self._queue.get()) is not None:
            others: dict[int, Words] = {}
            if store is not None:
                try:
                    self._say(store, *told)
                    others = self._hear(store, told[0]) if self._rank == 0 else {}
                except _ERRORS:
                    store = None  # its keeper is gone: the lines of this rank go on
            with contextlib.suppress(*_ERRORS):
                self._heard(*told, others)
        self._stop_clock()
        if self._rank == 0 and store is not None:
            with contextlib.suppress(*_ERRORS):
                self._take_back(store)

    def _say(self, store: Any, interval: int, words: Words) -> None:
        if self._name is None and self._follow(store) is None:
            return
        store.set(self._key(interval, self._rank), json.dumps(words))
        with contextlib.suppress(*_ERRORS):
            store.delete_key(self._key(interval - 2, self._rank))

    def _hear(self, store: Any, interval: int) -> dict[int, Words]:
        others: dict[int, Words] = {}
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
        while (told := self._follow(store)) is None:
            if time.monotonic() > until:
                return
            time.sleep(_POLL_S)
        if told["machine"] == find_place()[0]:
            self.offset_s = 0.0
        elif told["port"] is not None:
            self.offset_s = offset_to(told["address"], told["port"], told["token"])

    def _follow(self, store: Any) -> dict[str, Any] | None:
        """Take part in what rank 0 traces, and return where its clock is; None where that has not begun."""
        if not store.check([f"{_ROOT}/clock"]):
            return None
        told: dict[str, Any] = json.loads(store.get(f"{_ROOT}/clock"))
        if told["name"] in _followed:
            return None
        _followed.add(told["name"])
        self._name = told["name"]
        return told

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
