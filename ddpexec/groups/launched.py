"""This process as one rank of those that torchrun or mpirun started."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import NoReturn

import torch
import torch.distributed as dist

from ddpexec.errors import LostRankError
from ddpexec.groups.environment import adopt_mpirun, is_under_mpirun
from ddpexec.groups.lost import termination_error
from ddpexec.groups.mpi_group import NAME as MPI_NAME
from ddpexec.groups.mpi_group import ProcessGroupMpi, register
from ddpexec.groups.mpi_world import abandon, meeting_point
from ddpexec.groups.notes import leave_words
from ddpexec.groups.process_groups import Communicator
from ddpexec.groups.termination import Terminated, ignore_from_now_on, raise_on_sigterm
from ddpexec.groups.threads import call_within
from ddpsim.common.errors import InputError

_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_SHARING = "NCCL_MULTI_RANK_GPU_ENABLE"
_MARGIN_S = 2.0
"""How much longer than the timeout joining may take, and how long leaving after a failure."""
_LINGER_S = 1.0
"""How long the keeper of the store stays after a failure, so that others can read there who has failed and why."""
_aborting = threading.Lock()


@dataclass(frozen=True, slots=True)
class Launched:
    """A rank that has joined its process group, with its device.

    Attributes:
        communicator: over the default group.
        device: where its tensors live: `cpu`, or the GPU of its local rank; ranks may share one.
        nodes: machines the ranks are on, as torchrun or mpirun counts them.
    """

    communicator: Communicator
    device: torch.device
    nodes: int


@contextmanager
def join_launched(
    command: str, backend: str | None = None, device: str | None = None, timeout_s: float = 300.0, devices: int = 1
) -> Iterator[Launched]:
    """Join the process group of torchrun's environment, or mpirun's; leave it at the end.

    Args:
        command: named in the error where neither started this process.
        backend: `gloo`, `nccl` or `mpi`; None is nccl where each local rank has a GPU of its own, else gloo.
        device: `cpu` or `cuda`; None is cuda for nccl, cpu for the others.
        timeout_s: after which a collective without its peers fails.
        devices: GPUs of a rank, consecutive ones; its device is the first.

    Raises:
        InputError: not under torchrun or mpirun, or a backend or device that this machine does not have.
        LostRankError: another rank did not come.
    """
    adopt_mpirun()
    if "MASTER_ADDR" not in os.environ and is_under_mpirun():
        os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = meeting_point()
    if missing := [name for name in _VARIABLES if name not in os.environ]:
        remedy = f"start it as `torchrun --standalone --nproc-per-node 2 -m ddpexec {command} ...`"
        raise InputError(f"{missing[0]} is not set", place=f"ddpexec {command}", remedy=remedy)
    local_size = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    backend = backend or _backend(device, local_size if devices == 1 else 1)
    if backend not in ("gloo", "nccl", "mpi"):
        raise InputError(f"unknown backend {backend!r}", place="backend", remedy="use gloo, nccl or mpi")
    place = _place(backend, device, local_size) if devices == 1 else _first_of(devices, device, local_size)
    if place.type == "cuda":
        torch.cuda.set_device(place)
    # A group that is bound to one device refuses tensors of the rank's others.
    bound = place if backend == "nccl" and devices == 1 else None
    with raise_on_sigterm(abort_groups) as termination:
        if backend == "mpi":
            register()
        _join(MPI_NAME if backend == "mpi" else backend, bound, timeout_s)
        group = dist.group.WORLD
        assert group is not None
        communicator = Communicator([group])
        try:
            communicator.introduce(place)
            yield Launched(communicator, place, max(1, dist.get_world_size() // local_size))
        except BaseException as error:
            _give_up(communicator, termination.find_cause(error))
        if dist.is_initialized():
            dist.destroy_process_group()


def _join(backend: str, bound: torch.device | None, timeout_s: float) -> None:
    def join() -> None:
        dist.init_process_group(backend, timeout=timedelta(seconds=timeout_s), device_id=bound)

    rank, size, host, port = (os.environ[name] for name in _VARIABLES)
    try:
        if rank != "0":
            _wait_for_listener(host, port, timeout_s)
        # By itself it hangs where the keeper of the store does.
        call_within(timeout_s + _MARGIN_S, join, "init_process_group")
    except (RuntimeError, TimeoutError) as error:
        reason = " ".join(str(error).split())[:300]
        raise LostRankError(
            f"rank {rank}: the {size} ranks did not all meet at {host}:{port} within {timeout_s:g} s: {reason}",
            remedy="see the output of the others; start as many ranks as WORLD_SIZE says, where MASTER_ADDR is rank 0",
        ) from error


def _wait_for_listener(host: str, port: str, timeout_s: float) -> None:
    """Wait until somebody listens where rank 0 is to; torch's client would log each vain attempt with its C++ stack.

    Raises:
        TimeoutError: nobody does within `timeout_s`.
    """
    until = time.monotonic() + timeout_s
    while True:
        try:
            socket.create_connection((host, int(port)), timeout=max(0.1, until - time.monotonic())).close()
            return
        except OSError as error:
            if time.monotonic() > until:
                raise TimeoutError(f"rank 0 does not listen there ({error.strerror or error})") from error
        time.sleep(0.05)


def _give_up(communicator: Communicator, error: BaseException) -> NoReturn:
    """Raise `error`, or better why SIGTERM came, with the process groups gone; what is this rank's own is noted."""
    ignore_from_now_on()
    # The order matters. From `abandon` on nothing here waits for MPI; the note is left while the store is there; then
    # the groups go, whose calls wait for ranks that are gone; the error comes last.
    abandon()
    why = termination_error(communicator) if isinstance(error, Terminated) else None
    if isinstance(error, Exception) and not isinstance(error, LostRankError):
        leave_words(str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}")
    # Held until this function ends, as the server of the store ends with its last name, and others still read there who
    # failed.
    store = dist.distributed_c10d._get_default_store() if _keeps_store() else None
    abort_groups()
    # Even the end of a group may wait for a rank that is gone, so it gets a thread and a limit.
    with suppress(TimeoutError):
        if dist.is_initialized():
            call_within(_MARGIN_S, dist.destroy_process_group, "destroy_process_group")
    if store is not None:
        time.sleep(_LINGER_S)
    raise error if why is None else why


def _keeps_store() -> bool:
    """Return whether the store ends with this process: with that of rank 0, unless torchrun's agent keeps it."""
    agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return os.environ["RANK"] == "0" and os.environ["WORLD_SIZE"] != "1" and not agent and dist.is_initialized()


def abort_groups() -> None:
    """End what NCCL is in the middle of, and with it all process groups, and what MPI is; nothing with gloo.

    Their calls wait for a rank that is gone as long as they are let, and everything behind NCCL's on the device waits
    too, and so would a group's own end.
    """
    with _aborting:
        if not dist.is_initialized():
            return
        if dist.get_backend() == "nccl":
            dist.distributed_c10d._abort_process_group()
        for group in list(dist.distributed_c10d._world.pg_map):
            if isinstance(group, ProcessGroupMpi):
                group.abort()


def _backend(device: str | None, local_size: int) -> str:
    return "nccl" if device != "cpu" and torch.cuda.device_count() >= local_size else "gloo"


def _first_of(devices: int, device: str | None, local_size: int) -> torch.device:
    """Return the first of this rank's GPUs, of which each rank has as many.

    Raises:
        InputError: a rank on a CPU, or fewer GPUs than the ranks of this machine need.
    """
    remedy = "predict it: `ddpsim workload split`, then `ddpsim predict`"
    if device == "cpu":
        what = f"a rank of {devices} devices computes on GPUs, `device=cpu` is given"
        raise InputError(what, place="devices", remedy=remedy)
    gpus, needed = torch.cuda.device_count(), devices * local_size
    if gpus < needed:
        what = f"ranks of {devices} devices need {needed} GPUs on this machine, it has {gpus}"
        raise InputError(what, place="devices", remedy=f"start fewer, or {remedy}")
    return torch.device("cuda", devices * int(os.environ.get("LOCAL_RANK", "0")))


def _place(backend: str, device: str | None, local_size: int) -> torch.device:
    """Return the device of this rank: the CPU, or a GPU, the same for several ranks where there are fewer."""
    if backend == "nccl" and (not torch.cuda.is_available() or not dist.is_nccl_available()):
        raise InputError("nccl needs GPUs, this machine has none", place="backend", remedy="use gloo")
    if backend == "nccl" and device == "cpu":
        raise InputError("nccl does not sum what lies on a CPU", place="device=cpu", remedy="use `backend=gloo`")
    if device not in (None, "cpu", "cuda"):
        raise InputError(f"unknown device {device!r}", place="device", remedy="use cpu or cuda")
    if backend == "mpi" and device == "cuda":
        raise InputError("MPI is used for what lies on a CPU", place="device=cuda", remedy="use gloo or nccl")
    if (device is None and backend != "nccl") or device == "cpu":
        return torch.device("cpu")
    gpus = torch.cuda.device_count()
    if backend == "nccl" and gpus < local_size and os.environ.get(_SHARING) != "1":
        raise InputError(
            f"nccl takes a GPU for each rank; {local_size} ranks on this machine share {gpus}",
            place="backend=nccl",
            remedy=f"start {gpus} ranks, use `backend=gloo` `device=cuda`, or set {_SHARING}=1 (NCCL 2.30 or newer)",
        )
    if not torch.cuda.is_available():
        raise InputError("torch sees no GPU on this machine", place="device=cuda", remedy="use cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % gpus)
