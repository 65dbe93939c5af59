"""A device that ranks compute on, with the ways to start ranks there."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from ddpexec.timing.waiting import spinner
from tests import forked
from tests.ddpexec.groups import ranks
from tests.docs.refresh import as_typed

NO_GPU = "torch sees no GPU"
ROOT = Path(__file__).parents[2]
BUSY_S = 0.5


@dataclass(frozen=True)
class Place:
    """Where ranks compute, and the backend of one that has the device for itself."""

    device: str
    backend: str

    def run(self, function: Callable[..., Any], *arguments: Any, world_size: int = 1) -> list[Any]:
        """Call `function(rank, device, *arguments)` on each rank, which all share the device; return the results.

        One rank has the device's own backend; several share it over gloo. CUDA does not survive a fork, so there ranks
        are spawned, with what can be pickled; on the CPU they need not import torch again.
        """
        backend = self.backend if world_size == 1 else "gloo"
        pickle.dumps((function, arguments))
        start = "fork" if self.device == "cpu" else "spawn"
        options = {"start": start, "backend": backend, "timeout_s": 110, "group_timeout_s": 60}
        return ranks.run_own(world_size, _on_device, self.device, function, arguments, **options)

    def ddpexec(self, *arguments: object, world_size: int = 1) -> str:
        """Run a command of ddpexec under torchrun on this device; return what it printed."""
        backend = self.backend if world_size == 1 else "gloo"
        torchrun = ["--standalone", "--nproc-per-node", world_size, "-m", "ddpexec"]
        words = [*map(str, [*torchrun, *arguments]), "--device", self.device, "--backend", backend]
        environment = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        run = forked.command if self.device == "cpu" else as_typed
        done = run(["torchrun", *words], Path.cwd(), environment)
        assert done.returncode == 0, done.stderr
        return done.stdout


GPU = Place("cuda", "nccl")
CPU = Place("cpu", "gloo")


def _on_device(rank: int, name: str, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # products of matrices come out the same each time
    device = torch.device("cuda", 0) if name == "cuda" else torch.device(name)
    return function(rank, device, *arguments)


@contextmanager
def no_waits(device: torch.device) -> Iterator[None]:
    """Raise where anything within makes the host wait for the device."""

    def refused(*_: Any, **__: Any) -> None:
        raise AssertionError("the host waits for the device")

    waiting = mock.patch.multiple(torch.cuda, synchronize=refused)
    event, stream = (mock.patch.object(each, "synchronize", refused) for each in (torch.cuda.Event, torch.cuda.Stream))
    with waiting, event, stream, sync_debug_mode(device, "error"):
        yield


@contextmanager
def sync_debug_mode(device: torch.device, mode: str) -> Iterator[None]:
    """Let torch warn of, or refuse, operators that make the host wait for the device; nothing on a CPU."""
    if device.type == "cuda":
        torch.cuda.set_sync_debug_mode(mode)
    try:
        yield
    finally:
        if device.type == "cuda":
            torch.cuda.set_sync_debug_mode("default")


def goes_ahead(step: Callable[[], object], device: torch.device, clock: Callable[[], float]) -> bool:
    """Return whether the host is through `step` well before a device that is busy when it begins.

    This sees every kind of waiting, but a step of more kernels than the device queues (about a thousand) waits too.
    """
    spin = spinner(device)
    torch.cuda.synchronize(device)
    begin = clock()
    spin(BUSY_S)
    step()
    host_s = clock() - begin
    torch.cuda.synchronize(device)
    return host_s < BUSY_S / 2
