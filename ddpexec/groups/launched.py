"""This process as one rank of those that torchrun started."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from ddpexec.groups.process_groups import Communicator
from ddpsim.errors import InputError

_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_SHARING = "NCCL_MULTI_RANK_GPU_ENABLE"
_aborting = threading.Lock()


@dataclass(frozen=True, slots=True)
class Launched:
    """One rank with its process group.

    Attributes:
        communicator: over the default group.
        device: where its tensors live: `cpu`, or the GPU of its local rank; ranks may share one.
        nodes: machines the ranks are on, as torchrun counts them.
    """

    communicator: Communicator
    device: torch.device
    nodes: int


@contextmanager
def launched(
    command: str, backend: str | None = None, device: str | None = None, timeout_s: float = 300.0
) -> Iterator[Launched]:
    """Join the process group of torchrun's environment; leave it at the end.

    Args:
        command: named in the error where torchrun did not start this process.
        backend: `gloo` or `nccl`; None is nccl where each local rank has a GPU of its own, else gloo.
        device: `cpu` or `cuda`; None is cuda for nccl, cpu for gloo.
        timeout_s: after which a collective without its peers fails.

    Raises:
        InputError: not under torchrun, or a backend or device that this machine does not have.
    """
    if missing := [name for name in _VARIABLES if name not in os.environ]:
        remedy = f"start it as `torchrun --standalone --nproc-per-node 2 -m ddpexec {command} ...`"
        raise InputError(f"{missing[0]} is not set", place=f"ddpexec {command}", remedy=remedy)
    local_size = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    backend = backend or _backend(device, local_size)
    if backend not in ("gloo", "nccl"):
        raise InputError(f"unknown backend {backend!r}", place="--backend", remedy="use gloo or nccl")
    place = _place(backend, device, local_size)
    if place.type == "cuda":
        torch.cuda.set_device(place)
    bound = place if backend == "nccl" else None
    dist.init_process_group(backend, timeout=timedelta(seconds=timeout_s), device_id=bound)
    try:
        group = dist.group.WORLD
        assert group is not None
        yield Launched(Communicator([group]), place, max(1, dist.get_world_size() // local_size))
    except BaseException:
        abort_groups()
        raise
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def abort_groups() -> None:
    """End what NCCL is in the middle of, and with it all process groups; nothing with other backends.

    Its kernels wait for a rank that is gone as long as they are let, and everything behind them on the device waits
    too, and so would a group's own end.
    """
    with _aborting:
        if dist.is_initialized() and dist.get_backend() == "nccl":
            dist.distributed_c10d._abort_process_group()


def _backend(device: str | None, local_size: int) -> str:
    return "nccl" if device != "cpu" and torch.cuda.device_count() >= local_size else "gloo"


def _place(backend: str, device: str | None, local_size: int) -> torch.device:
    """Return the device of this rank: the CPU, or a GPU, the same for several ranks where there are fewer."""
    if backend == "nccl" and (not torch.cuda.is_available() or not dist.is_nccl_available()):
        raise InputError("nccl needs GPUs, this machine has none", place="--backend", remedy="use gloo")
    if backend == "nccl" and device == "cpu":
        raise InputError("nccl does not sum what lies on a CPU", place="--device cpu", remedy="use --backend gloo")
    if device not in (None, "cpu", "cuda"):
        raise InputError(f"unknown device {device!r}", place="--device", remedy="use cpu or cuda")
    if (device is None and backend == "gloo") or device == "cpu":
        return torch.device("cpu")
    gpus = torch.cuda.device_count()
    if backend == "nccl" and gpus < local_size and os.environ.get(_SHARING) != "1":
        raise InputError(
            f"nccl takes a GPU for each rank; {local_size} ranks on this machine share {gpus}",
            place="--backend nccl",
            remedy=f"start {gpus} ranks, use --backend gloo --device cuda, or set {_SHARING}=1 (NCCL 2.30 or newer)",
        )
    if not torch.cuda.is_available():
        raise InputError("torch sees no GPU on this machine", place="--device cuda", remedy="use cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % gpus)
