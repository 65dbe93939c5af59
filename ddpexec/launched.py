"""This process as one rank of those that torchrun started."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from ddpexec.process_groups import Communicator
from ddpsim.errors import InputError

_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True, slots=True)
class Launched:
    """One rank with its process group.

    Attributes:
        communicator: over the default group.
        device: where its tensors live: `cpu`, or the GPU of its local rank.
        nodes: machines the ranks are on, as torchrun counts them.
    """

    communicator: Communicator
    device: torch.device
    nodes: int


@contextmanager
def launched(command: str, backend: str | None = None, timeout_s: float = 300.0) -> Iterator[Launched]:
    """Join the process group of torchrun's environment; leave it at the end.

    Args:
        command: named in the error where torchrun did not start this process.
        backend: `gloo` or `nccl`; None is nccl where each local rank has a GPU, else gloo.
        timeout_s: after which a collective without its peers fails.

    Raises:
        InputError: not under torchrun, or a backend that this machine cannot run.
    """
    if missing := [name for name in _VARIABLES if name not in os.environ]:
        remedy = f"start it as `torchrun --standalone --nproc-per-node 2 -m ddpexec {command} ...`"
        raise InputError(f"{missing[0]} is not set", place=f"ddpexec {command}", remedy=remedy)
    local_size = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    backend = backend or ("nccl" if torch.cuda.device_count() >= local_size else "gloo")
    device = torch.device("cpu")
    if backend == "nccl":
        if not torch.cuda.is_available() or not dist.is_nccl_available():
            raise InputError("nccl needs GPUs, this machine has none", place="--backend", remedy="use gloo")
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    elif backend != "gloo":
        raise InputError(f"unknown backend {backend!r}", place="--backend", remedy="use gloo or nccl")
    dist.init_process_group(backend, timeout=timedelta(seconds=timeout_s))
    try:
        group = dist.group.WORLD
        assert group is not None
        yield Launched(Communicator([group]), device, max(1, dist.get_world_size() // local_size))
    finally:
        dist.destroy_process_group()
