"""How gradients leave the process: one process group, several in turn, or none at all (`Communicator`)."""

from __future__ import annotations

import contextlib
import functools
import pickle
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Literal, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from ddpexec.errors import OptionError
from ddpexec.groups.lost import name_lost_ranks, raise_lost
from ddpexec.groups.mpi_group import NAME as MPI_NAME
from ddpexec.groups.notes import Place, find_place, leave_place
from ddpexec.groups.timeouts import wait_within
from ddpsim.common.errors import InputError


class Work(Protocol):
    """What a collective in flight offers, torch's `Work`."""

    def wait(self, timeout: timedelta = ...) -> object:
        """Block the host (CPU) or the current stream (GPU) until the collective has finished."""


class ReductionWork(Work, Protocol):
    """What an allreduce of gradients in flight offers."""

    def is_completed(self) -> bool:
        """Return whether it has finished, without waiting."""


class FinishedWork:
    """The work of `comm="noop"`: nothing was sent, nothing is to be waited for."""

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Return at once."""
        return True

    def is_completed(self) -> bool:
        """Return that it has."""
        return True


class FutureWork:
    """A collective of a group written in Python: its future, whose value may be another tensor than was sent.

    torch's reducer waits for the future of an allreduce and takes its value; others wait for the work alone.

    Args:
        work: what the group returned.
        tensor: what was sent; holds the value once the work has ended.
    """

    def __init__(self, work: dist.Work, tensor: Tensor) -> None:
        self._future = work.get_future().then(functools.partial(_take, tensor))

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for the future."""
        wait_within(self._future, timeout)
        return True

    def is_completed(self) -> bool:
        """Return whether the future is there."""
        return self._future.done()

    def get_future(self) -> torch.futures.Future[Any]:
        """Return the future of the tensor that was sent, in a list."""
        return self._future


class Communicator:
    """Sums gradients over one process group, or over several in turn.

    With k groups the i-th collective of an iteration goes to group i modulo k: every rank launches in the same order,
    so every rank picks the same group. A gloo group keeps two collectives in flight, one of NCCL or MPI one, so k
    groups keep 2k and k (Li et al., VLDB 2020, section 5.4).

    Args:
        groups: at least one; all with the same ranks.
        noop: send nothing: gradients stay local, which gives the compute-only floor.

    Attributes:
        timeout: of each wait for a message, as `timeout_of` has it.
        places: machine and process of each rank, once `introduce` has told; each rank leaves its own in the store too.
    """

    def __init__(self, groups: Sequence[dist.ProcessGroup], *, noop: bool = False) -> None:
        if not groups:
            raise OptionError("process_group is an empty list", remedy="give one process group, or leave it out")
        if len(groups) > 1:
            _check_same_ranks(groups)
        self.groups = tuple(groups)
        self._sends = [_sender(group) for group in groups]
        self.noop = noop
        self.rank: int = groups[0].rank()
        self.world_size: int = groups[0].size()
        self.backend, self.timeout = backend_name(groups[0]), timeout_of(groups[0])
        self._finished = FinishedWork()
        self.places: dict[int, Place] = {}
        leave_place()

    @property
    def main(self) -> dist.ProcessGroup:
        """The group of everything that is not a gradient: verification, buffers, consensus."""
        return self.groups[0]

    def all_reduce(self, tensor: Tensor, number: int) -> ReductionWork:
        """Start summing `tensor` in place over the ranks; `number` counts the collectives of this iteration."""
        if self.noop:
            return self._finished
        if tensor.is_complex():
            tensor = torch.view_as_real(tensor)
        work: ReductionWork = self._sends[number % len(self._sends)]([tensor])
        return work

    def introduce(self, device: torch.device, *values: int) -> Tensor:
        """Tell all ranks where this one runs, and `values`; return theirs, a row a rank. Every rank calls this."""
        mine = torch.tensor([*find_place(), *values], dtype=torch.int64, device=self.device_for(device))
        what = "the exchange of parameters' names and types" if values else "the first exchange"
        with name_lost_ranks(self, what):
            table = torch.stack(self.gather(mine))
        self.places = {rank: (machine, process) for rank, (machine, process) in enumerate(table[:, :2].tolist())}
        return table[:, 2:]

    def gather(self, mine: Tensor) -> list[Tensor]:
        """Return every rank's tensor, by rank; all have the same shape."""
        rows = [torch.empty_like(mine) for _ in range(self.world_size)]
        # By way of the base class, here and below: torch's reducer calls a group written in Python like that too, with
        # all arguments where the caller leaves some out.
        wait_within(dist.ProcessGroup.allgather(self.main, [rows], [mine]), self.timeout)
        return rows

    def gather_objects(self, mine: object, device: torch.device) -> list[Any]:
        """Return every rank's object, by rank."""
        pickled = torch.frombuffer(bytearray(pickle.dumps(mine)), dtype=torch.uint8)
        device = self.device_for(device)
        lengths = [int(length) for length in self.gather(torch.tensor([len(pickled)], device=device))]
        padded = torch.zeros(max(lengths), dtype=torch.uint8, device=device)
        padded[: len(pickled)] = pickled
        rows = zip(self.gather(padded), lengths, strict=True)
        return [pickle.loads(row[:length].cpu().numpy().tobytes()) for row, length in rows]

    def ask_rank_zero(self, call: Callable[[], Any], what: str) -> Any:
        """Return on every rank what `call` returns on rank 0, or raise the `InputError` that it raises there."""
        box: list[Any] = [None]
        if self.rank == 0:
            try:
                box = [call()]
            except InputError as error:
                box = [error]
        with name_lost_ranks(self, what):
            dist.broadcast_object_list(box, group_src=0, group=self.main)
        if isinstance(box[0], InputError):
            raise box[0]
        return box[0]

    def broadcast(self, tensor: Tensor, source: int) -> None:
        """Overwrite `tensor` with rank `source`'s."""
        wait_within(dist.ProcessGroup.broadcast(self.main, tensor, source), self.timeout)

    def barrier(self) -> None:
        """Wait until every rank is here."""
        with name_lost_ranks(self, "a barrier"):
            wait_within(self.main.barrier(), self.timeout)

    def device_for(self, device: torch.device) -> torch.device:
        """Return where small control tensors live: on the CPU, except for a backend that may not reach it."""
        return torch.device("cpu") if self.backend in _ON_CPU else device


_ON_CPU = "gloo", "mpi"


def backend_name(group: dist.ProcessGroup) -> str:
    """Return what torch calls the backend of `group`, `mpi` for ours; of a group unknown to it, what that calls itself.

    A group that picks a backend by the tensor's device is `cpu:gloo,cuda:nccl`, or `undefined`.
    """
    name: str = dist.get_backend(group) if is_registered(group) else group.name()
    return "mpi" if name == MPI_NAME else name


def backend_for(group: dist.ProcessGroup | None, device: torch.device) -> Literal["nccl", "gloo", "mpi"]:
    """Return what carries tensors of `device`, by the name that records have; without a group that is `gloo`."""
    name = "gloo" if group is None else backend_name(group)
    if name == "mpi":
        return "mpi"
    return "nccl" if "nccl" in name and device.type == "cuda" else "gloo"


def is_registered(group: dist.ProcessGroup) -> bool:
    """Return whether torch.distributed knows the group: its backend, its members' global ranks."""
    return group in dist.distributed_c10d._world.pg_map


def wait(work: Work, communicator: Communicator, what: str) -> None:
    """Wait for `work`; a failure becomes a `LostRankError` that says what was being sent and who is gone."""
    try:
        wait_within(work, communicator.timeout)
    except RuntimeError as error:
        raise_lost(communicator, what, error)


def timeout_of(group: dist.ProcessGroup) -> timedelta | None:
    """Return how long a wait for a message of `group` may take.

    None where CUDA's streams wait, not the host, and for a group written in Python that says none.
    """
    if torch.cuda.is_available() and backend_name(group) not in _ON_CPU:
        return None
    carrier: Any = group
    with contextlib.suppress(RuntimeError):  # a group written in Python is its own backend
        carrier = group._get_backend(torch.device("cpu"))
    timeout: timedelta | None = getattr(getattr(carrier, "options", None), "_timeout", None)
    return timeout


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


def _sender(group: dist.ProcessGroup) -> Callable[[list[Tensor]], ReductionWork]:
    """Return what sums a list of one tensor over `group`."""
    if type(group) is dist.ProcessGroup:
        return group.allreduce
    return lambda tensors: FutureWork(dist.ProcessGroup.allreduce(group, tensors), tensors[0])


def _take(tensor: Tensor, future: torch.futures.Future[Any]) -> list[Tensor]:
    value = future.value()
    reduced = value[0] if isinstance(value, (list, tuple)) else value
    if not isinstance(reduced, Tensor):  # an exception, where the group's Python code has set one
        raise reduced if isinstance(reduced, Exception) else TypeError(f"its future holds {reduced!r}, not a tensor")
    if reduced is not tensor:
        tensor.copy_(reduced)
    return [tensor]


def _ranks(group: dist.ProcessGroup) -> list[int]:
    return dist.get_process_group_ranks(group) if is_registered(group) else list(range(group.size()))


def _check_same_ranks(groups: Sequence[dist.ProcessGroup]) -> None:
    first, *others = (_ranks(group) for group in groups)
    for number, ranks in enumerate(others, 1):
        if ranks != first:
            raise OptionError(
                f"process group 0 has the ranks {first}, process group {number} the ranks {ranks}",
                remedy="give groups of the same ranks",
            )
