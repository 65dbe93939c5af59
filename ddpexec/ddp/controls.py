"""What a reducer is told from outside: by which number to divide, what to call, what else to wait for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ddpexec.ddp.averaging import averaging
from ddpexec.ddp.comm_hooks import Hook
from ddpexec.ddp.in_flight import InFlight
from ddpexec.ddp.runtime_stats import RuntimeStats
from ddpexec.ddp.used import UsedMap
from ddpexec.groups.process_groups import Communicator


class Controls:
    """The part of `Reducer` that others set; nobody but its methods writes the fields.

    Args:
        communicator: where allreduces go.
        in_flight: sends the buckets.
        used: which parameters a backward used.
        stats: times of sampled iterations.
    """

    def __init__(self, communicator: Communicator, in_flight: InFlight, used: UsedMap, stats: RuntimeStats) -> None:
        self.communicator, self.in_flight, self.used, self.stats = communicator, in_flight, used, stats
        self.divisor = communicator.world_size
        self.dropped: frozenset[int] = frozenset()
        self.hook_name = ""
        self.failure: Exception | None = None
        self.graph_static = True
        self._averages = False
        self._before_write_back: Callable[[], None] | None = None
        self._futures: list[torch.futures.Future[Any]] = []

    @property
    def hooked(self) -> bool:
        """Whether a communication hook reduces the buckets."""
        return self.in_flight.hook is not None

    def use_hook(self, hook: Hook, state: object, name: str = "") -> None:
        """Let `hook(state, bucket)` reduce each bucket; `name` is what logging data call it, else its own."""
        self.in_flight.hook = hook, state
        self.name_hook(name or getattr(hook, "__qualname__", str(hook)))

    def name_hook(self, name: str) -> None:
        """Call the communication hook `name` in logging data."""
        self.hook_name = name

    def average_after(self, dtype: torch.dtype | None, before_write_back: Callable[[], None] | None = None) -> None:
        """Sum buckets, in `dtype` where given, before they are divided by the number of ranks, as torch's hooks do.

        `before_write_back` is called once all buckets are launched, before the first is written back.
        """
        self.use_hook(averaging(self.communicator, dtype), None)
        self._averages, self._before_write_back = True, before_write_back

    def step_each_bucket(self, step: Callable[[Sequence[nn.Parameter]], None]) -> None:
        """Call `step` with the parameters of each bucket once it is written back, summed and then divided."""
        self.average_after(None)
        self.in_flight.after_bucket = step

    def take_over(self, former: Controls) -> None:
        """Go on with the sampling rate and the user's communication hook of `former`."""
        self.sample_every(former.stats.rate)
        if former.in_flight.hook is not None and not former._averages and not self._averages:
            self.use_hook(*former.in_flight.hook, former.hook_name)

    def divide_by(self, ranks: int) -> None:
        """Divide the sums of the coming backward by `ranks`."""
        self.divisor = ranks

    def leave_out(self, parameters: Collection[int]) -> None:
        """Expect no gradient of `parameters`, registration indices, from the coming backward: on no rank."""
        self.dropped = frozenset(parameters)

    def await_also(self, futures: Iterable[torch.futures.Future[Any]]) -> None:
        """Wait for `futures` at the end of the coming backward."""
        self._futures += futures

    def sample_every(self, iterations: int) -> None:
        """Take the times of one in so many iterations for logging data."""
        self.stats.rate = iterations

    def note_failure(self, error: Exception) -> None:
        """Name `error` in logging data, and where the next backward finds this one broken off."""
        self.failure = error

    # ---- what torch's C++ reducer offers by these names

    def _get_local_used_map(self) -> Tensor | None:
        return self.used.summed

    def _ddp_graph_static(self) -> bool:
        return self.graph_static
