"""Process groups written in Python, as users write them: over gloo, or of one rank, known to torch or not."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist


class Ended(dist._Work):  # type: ignore[name-defined,misc]
    """A work that has ended; `wait` wants its timeout."""

    later_s = 0.0

    def __init__(self, group: OverGloo, value: Any, failure: Exception | None = None) -> None:
        super().__init__()
        self._group = group
        self._future: torch.futures.Future[Any] = torch.futures.Future()
        if failure is not None:
            self._future.set_exception(failure)
        elif self.later_s:
            threading.Timer(self.later_s, self._future.set_result, [value]).start()
        else:
            self._future.set_result(value)

    def wait(self, timeout: timedelta) -> bool:
        """Count that somebody waits."""
        self._group.waits += 1
        return True

    def get_future(self) -> torch.futures.Future[Any]:
        """Count that somebody asks for the future."""
        self._group.futures += 1
        return self._future


class Later(Ended):
    """Such a work whose future another thread completes later."""

    later_s = 0.003


class Patient(Ended):
    """Such a work that can be waited for without a timeout, which a `join()` of torch's needs."""

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Count that somebody waits."""
        return super().wait(timedelta(0))


class OverGloo(dist.ProcessGroup):
    """A group of the ranks of `inner`, with the three collectives that DDP needs and no argument left out.

    Args:
        inner: does the work.
        work: what is returned of each collective.
        in_place: whether sums lie in what was sent, or in the future's tensors alone.
    """

    def __init__(self, inner: Any, work: type[Ended] = Ended, *, in_place: bool = False) -> None:
        super().__init__(inner.rank(), inner.size())  # type: ignore[call-arg]
        self.inner, self.work, self.in_place = inner, work, in_place
        self.waits = self.futures = 0
        self.failure: Exception | None = None

    def allreduce(self, tensors: Any, opts: Any) -> Any:  # type: ignore[override]
        """Sum the tensors, or copies of them."""
        sums = tensors if self.in_place else [tensor.clone() for tensor in tensors]
        self.inner.allreduce(sums, opts).wait()
        return self.work(self, sums, self.failure)

    def allgather(self, output_tensors: Any, input_tensors: Any, opts: Any) -> Any:  # type: ignore[override]
        """Gather in place."""
        self.inner.allgather(output_tensors, input_tensors, opts).wait()
        return self.work(self, output_tensors)

    def broadcast(self, tensors: Any, opts: Any) -> Any:  # type: ignore[override]
        """Broadcast in place."""
        self.inner.broadcast(tensors, opts).wait()
        return self.work(self, tensors)

    def getBackendName(self) -> str:  # noqa: N802
        """Return its name."""
        return "over-gloo"


def registered(work: type[Ended] = Ended) -> OverGloo:
    """Return a group of all ranks that torch knows, as by its backend's name; every rank calls this."""
    default = dist.group.WORLD

    def create(*_: Any) -> OverGloo:
        return OverGloo(default, work, in_place=True)

    dist.Backend.register_backend("over_gloo", create, devices=["cpu"])
    group = dist.new_group(backend="over_gloo")
    assert isinstance(group, OverGloo)
    return group


def bare(name: str) -> dist.ProcessGroup:
    """Return a group of all ranks with gloo put into it by hand; torch knows it under no name."""
    default = dist.distributed_c10d._get_default_group()
    rank, size, store = default.rank(), default.size(), dist.distributed_c10d._get_default_store()
    group = dist.ProcessGroup(rank, size)  # type: ignore[call-arg]
    gloo = dist.ProcessGroupGloo(dist.PrefixStore(name, store), rank, size, timedelta(seconds=20))
    group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, gloo)
    return group
