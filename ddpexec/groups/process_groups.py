"""How gradients leave the process: one process group, several in turn, or none at all."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from ddpexec.errors import OptionError
from ddpexec.groups.lost import Place, here, lost, naming_the_lost


class Work(Protocol):
    """What a collective in flight offers: torch's `Work`."""

    def wait(self) -> object:
        """Block the host (CPU) or the current stream (GPU) until the collective has finished."""

    def is_completed(self) -> bool:
        """Return whether it has finished, without waiting."""


class FinishedWork:
    """The work of `comm="noop"`: nothing was sent, nothing is to be waited for."""

    def wait(self) -> bool:
        """Return at once."""
        return True

    def is_completed(self) -> bool:
        """Return that it has."""
        return True


class Communicator:
    """Sums gradients over one process group, or over several in turn.

    With k groups the i-th collective of an iteration goes to group i modulo k: every rank launches in the same order,
    so every rank picks the same group. A gloo group keeps two collectives in flight, an NCCL group one, so k groups
    keep 2k and k (Li et al., VLDB 2020, section 5.4).

    Args:
        groups: at least one; all with the same ranks.
        noop: send nothing: gradients stay local, which gives the compute-only floor.

    Attributes:
        places: machine and process of each rank, once `introduce` has told.
    """

    def __init__(self, groups: Sequence[dist.ProcessGroup], *, noop: bool = False) -> None:
        if not groups:
            raise OptionError("process_group is an empty list", remedy="give one process group, or leave it out")
        if len(groups) > 1:
            _check_same_ranks(groups)
        self.groups = tuple(groups)
        self._sends = [group.allreduce for group in groups]
        self.noop = noop
        self.rank: int = groups[0].rank()
        self.world_size: int = groups[0].size()
        self.backend: str = dist.get_backend(groups[0])
        self._finished = FinishedWork()
        self.places: list[Place] = []

    @property
    def main(self) -> dist.ProcessGroup:
        """The group of everything that is not a gradient: verification, buffers, consensus."""
        return self.groups[0]

    def all_reduce(self, tensor: Tensor, number: int) -> Work:
        """Start summing `tensor` in place over the ranks; `number` counts the collectives of this iteration."""
        if self.noop:
            return self._finished
        if tensor.is_complex():
            tensor = torch.view_as_real(tensor)
        work: Work = self._sends[number % len(self._sends)]([tensor])
        return work

    def introduce(self, device: torch.device, *values: int) -> Tensor:
        """Tell all ranks where this one runs, and `values`; return theirs, a row a rank. Every rank calls this."""
        mine = torch.tensor([*here(), *values], dtype=torch.int64, device=self.device_for(device))
        rows = [torch.empty_like(mine) for _ in range(self.world_size)]
        with naming_the_lost(self, "the exchange of parameters' names and types"):
            dist.all_gather(rows, mine, group=self.main)
        table = torch.stack(rows)
        self.places = [(machine, process) for machine, process in table[:, :2].tolist()]
        return table[:, 2:]

    def device_for(self, device: torch.device) -> torch.device:
        """Return the device on which this group's small control tensors must live."""
        return device if self.backend == "nccl" else torch.device("cpu")


def wait(work: Work, communicator: Communicator, what: str) -> None:
    """Wait for `work`; a failure becomes a `LostRankError` that says what was being sent and who is gone."""
    try:
        work.wait()
    except RuntimeError as error:
        raise lost(communicator, what, error) from error


def round_robin(count: int, timeout: timedelta | None = None) -> list[dist.ProcessGroup]:
    """Return `count` process groups of all ranks: the default group and `count - 1` new ones.

    Every rank must call this, with the same count.
    """
    if count < 1:
        raise OptionError(f"process_groups={count} is not a number of groups", remedy="give 1 or more")
    default = dist.group.WORLD
    if default is None:
        raise OptionError("no default process group", remedy="call torch.distributed.init_process_group first")
    return [default, *(dist.new_group(timeout=timeout) for _ in range(count - 1))]


def _check_same_ranks(groups: Sequence[dist.ProcessGroup]) -> None:
    first, *others = (dist.get_process_group_ranks(group) for group in groups)
    for number, ranks in enumerate(others, 1):
        if ranks != first:
            raise OptionError(
                f"process group 0 has the ranks {first}, process group {number} the ranks {ranks}",
                remedy="give groups of the same ranks",
            )
