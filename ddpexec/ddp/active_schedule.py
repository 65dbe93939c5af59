"""The schedule in force, as an executor carries it out: what DDP's buckets and a scheme's messages have in common."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from ddpexec.ddp.buckets import Eager, ReducerOptions
from ddpexec.ddp.comm_hooks import Hook, make_averaging_hook
from ddpexec.ddp.launcher import Launcher
from ddpexec.ddp.parameters import ModelParameters
from ddpexec.ddp.runtime_stats import RuntimeStats, TimerEvent
from ddpexec.ddp.used_parameters import UsedMap
from ddpexec.groups.lost import name_lost_ranks
from ddpexec.groups.process_groups import Communicator
from ddpexec.groups.timeouts import wait_within
from ddpexec.timing.observe import Observer
from ddpsim.bucketing import BucketPlan, LaunchQueue
from ddpsim.schedules.points import Point


class ActiveSchedule:
    """A schedule in force, as an executor runs it: its queue, its memory, its launcher and its statistics.

    Args:
        model: its parameters, in registration order.
        plan: the buckets.
        communicator: of the ranks.
        options: of the wrapper.

    Attributes:
        launcher: of the messages.
        queue: which messages may be launched at a point, and which are waited for there.
        used: which parameters a backward visited, on this rank and on others.
        eager: by registration index, the place in a bucket of a gradient that is copied in as it comes.
        iteration: how many were begun whose gradients are reduced.
        rebuilds: how often the buckets were made anew.
        in_forward: registration indices at whose use in forward something is launched or waited for.
        pending: registration indices whose update was asked for and not carried out; forward `settle`s those it uses.
        waits_in_forward: whether there can be any of either.
        arrival, unused: registration indices of the last backward: as gradients came, and those that did not.
        dropped: registration indices that the coming backward leaves out on every rank.
        launch_order: numbers of the messages, as the last backward launched them.
        stats: times of sampled iterations.
        hook_name: of the communication hook, in logging data.
    """

    queue: LaunchQueue[Point]
    eager: Sequence[Eager]
    in_forward: Collection[int] = ()
    pending: Collection[int] = ()
    waits_in_forward = False
    rebuilds = 0

    def __init__(
        self, model: ModelParameters, plan: BucketPlan, communicator: Communicator, options: ReducerOptions
    ) -> None:
        self.model, self.plan, self.communicator, self.options = model, plan, communicator, options
        self.launcher, self.iteration = Launcher(communicator), 0
        self.used, self.stats = UsedMap(model, communicator), RuntimeStats(model.devices)
        self.arrival: Sequence[int] = []
        self.unused: Sequence[int] = []
        self.dropped: frozenset[int] = frozenset()
        self.launch_order: list[int] = []
        self.hook_name, self._averages, self._tells_used = "", False, False
        self._hook: tuple[Hook, object] | None = None
        self._futures: list[torch.futures.Future[Any]] = []

    # ---- told from outside

    @property
    def hooked(self) -> bool:
        """Whether a communication hook reduces the buckets."""
        return self._hook is not None

    def use_hook(self, hook: Hook, state: object, name: str = "") -> None:
        """Let `hook(state, bucket)` reduce each bucket; `name` is what logging data call it, else its own.

        Raises:
            OptionError: what is summed is not whole buckets.
        """
        self._hook = hook, state
        self.hook_name = name or getattr(hook, "__qualname__", str(hook))

    def average_after(self, dtype: torch.dtype | None) -> None:
        """Sum buckets, in `dtype` where given, before they are divided by the number of ranks, as torch's hooks do."""
        self.use_hook(make_averaging_hook(self.communicator, dtype), None)
        self._averages = True

    def await_also(self, futures: Iterable[torch.futures.Future[Any]]) -> None:
        """Wait for `futures` at the end of the coming backward."""
        self._futures += futures

    def observe(self, observer: Observer | None) -> None:
        """Let `observer` take the moments of messages from now on; None takes none."""
        self.launcher.observer = observer

    def complete(self) -> None:
        """Carry out what is still to be carried out, so that the parameters are those after the last step."""

    # ---- before backward

    def rebuild(self) -> bool:
        """Make the buckets anew where that is due; return whether it was."""
        return False

    def begin(self, *, local: bool) -> None:
        """Begin an iteration at its forward; a `local` one sends nothing."""
        self.iteration += not local

    def settle(self, indices: Iterable[int]) -> bool:
        """Carry out what is pending of these parameters; return whether anything was."""
        return False

    def check_settled(self, index: int) -> None:
        """Raise where a gradient comes of a parameter whose update is still to be carried out."""

    def expect_backward(self, unused: Sequence[int]) -> None:
        """Expect a backward, in which the parameters of these registration indices will get no gradient."""
        self.stats.note(TimerEvent.BACKWARD)
        self.unused, self.arrival = list(unused), []

    # ---- backward

    def launch(self, numbers: Sequence[int]) -> None:
        """Launch messages, in order; behind the last of DDP's, where graphs are searched, what this rank used."""
        if self.stats.sampling:
            self.stats.note(TimerEvent.COMMUNICATION)
        self.launcher.launch(numbers)
        # The used map goes behind the last bucket, as torch's `Reducer::all_reduce_local_used_map`, at the same place
        # in the order on every rank.
        if self._tells_used and self.queue.launched_all:
            self.used.reduce(len(self.launcher.launched))

    def begin_backward(self, unused: Sequence[int]) -> None:
        """Take it that the first gradient of a backward has come, and that those of `unused` will not."""
        self.unused = list(unused)

    def note_absent(self, indices: Sequence[int]) -> bool:
        """Take it that these gradients did not come although they were expected; return whether backward ends so.

        Where it does not they may still come, and the next forward says if they did not, as torch has it.
        """
        return False

    def end_computation(self, *, counted: bool) -> None:
        """Take it that all gradients have come; `counted` is whether they were taken at once, after a static graph's
        first backward."""
        self.stats.note(TimerEvent.COMPUTED)

    def write_back(self, numbers: Sequence[int]) -> None:
        """Wait for the messages that backward's end waits for, and give the parameters what they summed."""
        raise NotImplementedError

    def end_iteration(self, arrival: Sequence[int], *, counted: bool) -> None:
        """Take it that gradients, which came in the order `arrival`, are written back."""
        self.launch_order = self.launcher.launched
        # A buffer hook's futures are waited for once all buckets are written back, as torch's reducer installs them
        # (`_install_post_backward_futures`).
        with name_lost_ranks(self.communicator, "the buffer hook's synchronisation", others_code=True):
            for future in self._futures:
                wait_within(future, self.communicator.timeout)
        self.arrival, self._futures = arrival, []
        self.stats.note(TimerEvent.COMMUNICATED)

    def list_missing(self) -> Sequence[int]:
        """Return the registration indices for want of whose gradients not all was launched."""
        return [point.parameter for point in self.queue.find_missing() if point.parameter is not None]

    # ---- of torch's C++ reducer, by these names

    def _get_local_used_map(self) -> Tensor | None:
        return self.used.summed
