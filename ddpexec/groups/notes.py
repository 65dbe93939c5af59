"""Notes in the default group's store, for when a collective fails: where each rank runs, that it failed, and why.

With a rank's place (machine and process id) ranks of the same machine see in `/proc` whether its process has ended or
is stopped. The store may live in the very rank that is gone, and then hang: notes are read on a thread, over a
connection of its own, and nothing here waits for it longer than it says.
"""

from __future__ import annotations

import os
import threading
import time
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch.distributed as dist

from ddpexec.groups.threads import call_within

Place = tuple[int, int]
"""The machine (and its process namespace) as a number, and the process on it."""
Places = Mapping[int, Place]
"""The places of ranks, by rank; those that are not known are missing."""


def find_place() -> Place:
    """Return where this process is."""
    return zlib.crc32(_machine().encode()), os.getpid()


def find_ended_ranks(places: Places) -> list[int]:
    """Return the ranks on this machine whose process has ended."""
    return [rank for rank, process in _neighbours(places) if _state(process) in ("Z", "X", "")]


def find_stopped_ranks(places: Places) -> list[int]:
    """Return the ranks on this machine whose process is stopped, by a signal or by a debugger."""
    return [rank for rank, process in _neighbours(places) if _state(process) in ("T", "t")]


def _neighbours(places: Places) -> list[tuple[int, int]]:
    machine, _ = find_place()
    return [(rank, process) for rank, (where, process) in sorted(places.items()) if where == machine]


def _state(process: int) -> str:
    """Return the letter of a process's state as in `proc(5)`, empty where it is gone, `?` where it is unknown."""
    try:
        with open(f"/proc/{process}/stat") as file:
            return file.read().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "" if os.path.isdir("/proc/self") else "?"
    except OSError:
        return "?"


def _machine() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip() + os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


WORDS_S = 1.0
"""How long to try to leave one's last words."""
_PAUSE_S = 0.05
"""Between two rounds of reading all notes; chosen by hand: at once to people, and the store idles."""
_LONGEST = 500
"""Characters of one's last words."""
_LATE, _BROKEN = "late", "broken"
_CANNOT = (RuntimeError, ValueError, KeyError, TypeError)
"""What a store, or the lack of one, raises."""


def leave_place() -> None:
    """Note where this rank runs; without a default group, do nothing."""
    if dist.is_initialized():
        with suppress(*_CANNOT):
            machine, process = find_place()
            dist.distributed_c10d._get_default_store().set(_place(dist.get_rank()), f"{machine} {process}")


def leave_words(words: str) -> None:
    """Note why this rank gives up, for those that will miss it."""
    with suppress(*_CANNOT, TimeoutError):
        rank = dist.get_rank()
        call_within(WORDS_S, lambda: connection().set(_words(rank), words[:_LONGEST]), "the store")


class Notes:
    """What the ranks of a group have noted, read again and again from construction to `close`.

    Args:
        group: whose collective has failed.
        late: this rank's collective timed out; None where no collective of its own failed.

    Attributes:
        members: the group's ranks in the default group.
        failed: the ranks of the group that have noted that a collective of theirs failed too.
        late: whether this rank or one of those timed out.
        places, words: what ranks of the group have noted, by rank in the group.
        reached: how often all notes were read; 0 where the store does not answer.
    """

    def __init__(self, group: dist.ProcessGroup, late: bool | None) -> None:
        self.failed: set[int] = set()
        self.late = bool(late)
        self.places: dict[int, Place] = {}
        self.words: dict[int, str] = {}
        self.reached = 0
        self.members: Sequence[int] = ()
        self._mine = None if late is None else _LATE if late else _BROKEN
        self._closed = False
        self._thread = threading.Thread(target=self._read, args=(group,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Read no more."""
        self._closed = True

    def renew(self, seconds: float) -> None:
        """Wait until all notes have been read once more, but no longer than `seconds`."""
        until, before = time.monotonic() + seconds, self.reached
        # The round under way may have passed what is wanted already.
        while self.reached < before + 2 and self._thread.is_alive() and time.monotonic() < until:
            time.sleep(_PAUSE_S / 5)

    def _read(self, group: dist.ProcessGroup) -> None:
        # A store that is gone ends the thread, and what was read counts.
        with suppress(*_CANNOT):
            self.members = dist.get_process_group_ranks(group)
            # By group, for one that has failed is of no more use, and its notes are none of the next one's.
            failures = [f"ddpexec/failed/{group.group_name}/{member}" for member in self.members]
            store, own = connection(), group.rank()
            if self._mine is not None:
                store.set(failures[own], self._mine)
            while not self._closed:
                for rank, member in enumerate(self.members):
                    if rank != own:
                        self._read_rank(store, rank, member, failures[rank])
                self.reached += 1
                time.sleep(_PAUSE_S)

    def _read_rank(self, store: Any, rank: int, member: int, failure: str) -> None:
        if rank not in self.failed and store.check([failure]):
            self.late |= store.get(failure).decode() == _LATE
            self.failed.add(rank)
        if rank not in self.words and store.check([_words(member)]):
            self.words[rank] = store.get(_words(member)).decode()
        if rank not in self.places and store.check([_place(member)]):
            machine, process = store.get(_place(member)).decode().split()
            self.places[rank] = int(machine), int(process)


def connection() -> Any:
    """Return the default store over a new connection: if it hangs, other users of the store do not."""
    store: Any = dist.distributed_c10d._get_default_store()
    with suppress(*_CANNOT, AttributeError, NotImplementedError):
        return store.clone()
    return store


def _place(member: int) -> str:
    return f"ddpexec/place/{member}"


def _words(member: int) -> str:
    return f"ddpexec/words/{member}"
