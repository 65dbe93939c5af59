"""The tuner's control channel: a gloo process group of its own, so that its messages never meet those of the training.

Each message is small and sent between two steps. All ranks count the same steps, so all send in the same one.
"""

from __future__ import annotations

import contextlib
import time
from typing import Any

import torch
import torch.distributed as dist

from ddpexec.groups.notes import connection
from ddpexec.groups.process_groups import timeout_of

_KEY = "ddpexec/tuning/{}/{}"
_GROUPS = [0]
"""How many tuners this process has made; ranks make them in the same order."""
_SMALL_MESSAGES = 13
"""Allreduces of a few bytes that are timed: the first aligns the ranks and does not count."""
_CANNOT = (RuntimeError, ValueError, KeyError, TypeError, OSError)


class ControlChannel:
    """The tuner's own process group, over the ranks of `group`, each of which makes it at the same point.

    Args:
        group: that trains.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        ranks = dist.get_process_group_ranks(group)
        _GROUPS[0] += 1
        self._name = _GROUPS[0]
        self._group: Any = dist.new_group(
            ranks, timeout=timeout_of(group), backend="gloo", use_local_synchronization=True
        )
        self._keeper: Any = None
        self.rank, self.world_size = dist.get_rank(group), dist.get_world_size(group)

    @property
    def leads(self) -> bool:
        """Whether this rank leads, and so decides for all."""
        return self.rank == 0

    def gather(self, word: object) -> list[Any]:
        """Return every rank's object on the leading rank, an empty list elsewhere."""
        answers: list[Any] | None = [None] * self.world_size if self.leads else None
        dist.gather_object(word, answers, group_dst=0, group=self._group)
        return answers or []

    def follow(self, word: object) -> Any:
        """Return the leading rank's object on every rank; the arguments of other ranks are ignored."""
        box = [word]
        dist.broadcast_object_list(box, group_src=0, group=self._group)
        return box[0]

    def measure_small_message_s(self, size_bytes: int) -> float:
        """Return what an allreduce of so few bytes takes over gloo, alone on the network; all ranks take part.

        The tuner's group has the same ranks and wires as one of gloo's that trains. The quickest counts: whatever else
        a processor does makes one longer, and beside others that are under way it shows as their share.
        """
        tensor = torch.zeros(size_bytes // 4)
        times = []
        for _ in range(_SMALL_MESSAGES):
            begin_s = time.perf_counter()
            dist.all_reduce(tensor, group=self._group)
            times.append(time.perf_counter() - begin_s)
        return min(times[1:])

    def close(self) -> None:
        """Leave the group; ranks that wait for this one in it get an error."""
        group, self._group = self._group, None  # gloo's port closes with the last who holds it
        if group is not None:  # without a group torch destroys all
            with contextlib.suppress(*_CANNOT):
                dist.destroy_process_group(group)

    # ---- without a message

    def note_shift(self, window: int) -> None:
        """Leave a note in the store that the step of this rank has changed in a window of steps."""
        with contextlib.suppress(*_CANNOT):
            self._store().set(_KEY.format(self._name, window), "1")

    def is_shifted(self, window: int) -> bool:
        """Whether any rank has left that note.

        Ask some synchronised steps after the window: what was noted before them is there for every rank.
        """
        with contextlib.suppress(*_CANNOT):
            return bool(self._store().check([_KEY.format(self._name, window)]))
        return False

    def _store(self) -> Any:
        if self._keeper is None:
            self._keeper = connection()
        return self._keeper
