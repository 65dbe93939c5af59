"""What a tuner stamps of a module under a schedule: its steps as any wrapper's, and when forward uses parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch.distributed as dist

from ddpexec.ddp.parameters import ModelParameters
from ddpexec.schedules.forward_points import ForwardPoints
from ddpexec.schedules.wrapper import ScheduledDataParallel
from ddpexec.timing.clock import Moment
from ddpexec.timing.observe import Note, Observer
from ddpexec.tuning.observed import Seconds
from ddpsim.bucketing import BucketPlan


class ScheduledSubject:
    """Our wrapper that carries out schemes, which tells an observer by itself; a `TracedModule`."""

    implementation = "ddpexec"

    def __init__(self, module: ScheduledDataParallel, observer: Observer) -> None:
        self.module: Any = module
        self._observer, self._before = observer, module.observer
        self.model: ModelParameters = module.model
        self.group: dist.ProcessGroup | None = module.process_group
        self.scheme: str = module.schedule.scheme

    def attach(self) -> None:
        """Let the wrapper tell our observer."""
        self.module.observe(self._observer)

    def detach(self) -> None:
        """Let the wrapper tell whom it told before."""
        self.module.observe(self._before)

    def begin(self) -> None:
        """Do nothing: the wrapper has hooks of its own."""

    def is_synced(self) -> bool:
        """Return that its gradients will be reduced, except under `no_sync`."""
        return bool(self.module.require_backward_grad_sync)

    def name_buckets(self, note: Note) -> None:
        """Do nothing: the launcher has named them."""

    def plan(self) -> BucketPlan | None:
        """Return the buckets in force."""
        plan: BucketPlan = self.module.plan
        return plan

    def options(self) -> dict[str, object]:
        """Return the flags of the constructor."""
        return self.module.flags()  # type: ignore[no-any-return]


class ForwardUseStamps:
    """Takes when forward first uses each parameter, while a tuner stamps steps.

    Args:
        module: that is wrapped.
        model: its parameters.
        now: the clock's moment.
    """

    def __init__(self, module: Any, model: ModelParameters, now: Callable[[], Moment]) -> None:
        self._now, self._count = now, len(model.tensors)
        self._uses: dict[int, dict[int, Moment]] = {}
        self._latest: dict[int, Moment] = {}
        self._points: ForwardPoints | None = ForwardPoints(module, model, self._announce)

    def begin(self, note: Note) -> None:
        """The forward of a stamped iteration begins."""
        self._latest = self._uses[id(note)] = {}
        if self._points is not None:
            self._announce(self._points.at_start)

    def end_forward(self) -> None:
        """It has returned."""
        if self._points is not None:
            self._points.learn()

    def end(self) -> None:
        """Take no more, and leave the module as it was."""
        if self._points is not None:
            self._points.remove()
            self._points = None

    def rows(self, notes: Sequence[Note], at: Callable[[Moment], float]) -> Seconds:
        """Return the seconds from the module's start until each use, a row a note; NaN where there is none."""
        found = np.full((len(notes), self._count), np.nan)
        for row, note in zip(found, notes, strict=True):
            start_s = at(note.module[0] if note.module is not None else note.start)
            for index, moment in self._uses[id(note)].items():
                row[index] = max(0.0, at(moment) - start_s)
        return found

    def _announce(self, indices: Sequence[int]) -> bool:
        if self._points is not None and indices:
            now = self._now()
            for index in indices:
                self._latest.setdefault(index, now)
        return False
