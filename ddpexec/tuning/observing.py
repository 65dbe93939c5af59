"""Stamp some steps of one rank and reduce them to plain numbers; between them the training loop runs without stamps.

Start with `Watch`, which the tuner begins and ends. `ForwardUseStamps` notes when forward uses the parameters of a
module under a schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from ddpexec.ddp.hooks import ForwardPoints
from ddpexec.ddp.parameters import ModelParameters
from ddpexec.ddp.wrapper import DistributedDataParallel
from ddpexec.groups.process_groups import backend_for
from ddpexec.timing.clock import Clock, Moment, clock_of, drain
from ddpexec.timing.observe import Note, Observer, Pair
from ddpexec.timing.records import Records
from ddpexec.tracing.loop import LoopHooks, LoopStamps
from ddpexec.tracing.subjects import TracedModule, subject_of
from ddpexec.tuning.observation import ObservedJob, RankSteps, Seconds, Sent
from ddpexec.tuning.rewrapping import Wrapped, device_name, is_scheduled
from ddpsim.schedules.schemes import SAME_SUMS


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
        uses = np.full((len(notes), self._count), np.nan)
        for row, note in zip(uses, notes, strict=True):
            start_s = at(note.module[0] if note.module is not None else note.start)
            for index, moment in self._uses[id(note)].items():
                row[index] = max(0.0, at(moment) - start_s)
        return uses

    def _announce(self, indices: Sequence[int]) -> bool:
        if self._points is not None and indices:
            now = self._now()
            for index in indices:
                self._latest.setdefault(index, now)
        return False


class Watch(LoopStamps):
    """Stamps the steps of one wrapped module from `begin` to `end`, both called between two steps.

    Args:
        wrapped: torch's DDP or ours, or ours under a schedule.

    Attributes:
        job: what does not change from step to step.
    """

    def __init__(self, wrapped: Wrapped) -> None:
        self._wrapped = wrapped
        group: dist.ProcessGroup = wrapped.process_group
        self._device: torch.device = wrapped.device
        backend = backend_for(group, self._device)
        super().__init__(Observer(clock_of([self._device], backend, 1)))
        self._subject: TracedModule = subject_of(wrapped, self._observer)
        self._uses: ForwardUseStamps | None = None
        self._hooks: LoopHooks | None = None
        self._over = True
        self._accumulates = False
        options = self._subject.options()
        flags = tuple((name, value) for name, value in options.items() if isinstance(value, bool))
        self.job = ObservedJob(
            parameters=self._subject.model.policy,
            frozen=self._subject.model.frozen,
            device=device_name(self._device),
            backend=backend,
            world_size=dist.get_world_size(group),
            flags=flags,
            schemes=SAME_SUMS if is_scheduled(wrapped) else (),
        )

    @property
    def unfit(self) -> str | None:
        """Why the loop, as it was seen so far, allows no other buckets; None where it does."""
        anew = is_scheduled(self._wrapped) or not isinstance(self._wrapped, DistributedDataParallel)
        learns = anew and dict(self.job.flags).get("static_graph")
        if self._accumulates and learns:
            return "a new reducer learns a static graph in a step that is synchronised, and no_sync() is used"
        return None

    def begin(self) -> None:
        """Stamp the steps that follow."""
        self._observer.notes.clear()
        self._subject.attach()
        if is_scheduled(self._wrapped):
            self._uses = ForwardUseStamps(self._wrapped.module, self._subject.model, self._observer.now)
        self._hooks, self._over = LoopHooks(lambda *_: (self._wrapped, self)), True
        self._hooks.install()

    def step(self) -> None:
        """A step is over."""
        self._observer.close()

    def end(self) -> RankSteps | None:
        """Stamp no more; return the steps in which gradients were reduced, None where there was none."""
        if self._hooks is None:
            return None
        self._hooks.remove()
        self._hooks = None
        self._observer.close()
        drain(self._device)
        self._accumulates |= not all(note.synced for note in self._observer.notes)
        notes = [note for note in self._observer.notes if note.synced and note.backward and note.hooks and note.buckets]
        for note in notes:
            self._subject.name_buckets(note)
        self._subject.detach()
        self._observer.notes.clear()
        uses, self._uses = self._uses, None
        if uses is not None:
            uses.end()
        if not notes:
            return None
        sizes, clock = [each.size_bytes for each in self.job.parameters], self._observer.clock
        seen = _Stamps(clock, sizes, self.job.backend).steps(notes)
        if uses is None:
            return seen
        return replace(seen, use_s=uses.rows(notes, clock.host_s), use_device_s=uses.rows(notes, clock.device_s))

    # ---- what the loop's hooks tell

    def on_forward(self) -> None:
        """An iteration begins; several forwards before one backward are one."""
        if self._over:
            self._over = False
            note = self._observer.begin(len(self._observer.notes), synced=self._subject.is_synced())
            if self._uses is not None:
                self._uses.begin(note)

    def on_forward_end(self) -> None:
        """Forward has returned."""
        if self._uses is not None:
            self._uses.end_forward()
        super().on_forward_end()

    def on_backward_end(self) -> None:
        """Backward is over."""
        self._over = True
        super().on_backward_end()
        self.on_optimizer()  # one that was given a closure has begun, but updates only now


class _Stamps:
    """Turns notes into numbers: DDP's hooks are taken out of backward and listed by themselves."""

    def __init__(self, clock: Clock, sizes: Sequence[int], backend: str) -> None:
        self._clock, self._sizes, self._records = clock, sizes, Records(0, clock, backend)

    def steps(self, notes: Sequence[Note]) -> RankSteps:
        """Return the steps."""
        gradients = [self._gradients(note) for note in notes]
        plain, launching = self._hook_lengths(notes)
        return RankSteps(
            forward_s=self._forward(notes, self._host),
            forward_device_s=self._forward(notes, self._device),
            backward_s=np.array([each[2] for each in gradients]),
            backward_device_s=np.array([each[3] for each in gradients]),
            optimizer_s=np.array([_length(note.optimizer, self._host) for note in notes]),
            optimizer_device_s=np.array([_length(note.optimizer, self._device) for note in notes]),
            hook_s=np.stack([each[0] for each in gradients]),
            ready_s=np.stack([each[1] for each in gradients]),
            plain_hook_s=plain,
            launching_hook_s=launching,
            sent=[
                [Sent(b.size_bytes, b.started_s, b.finished_s) for b in self._records.buckets(note)] for note in notes
            ],
            groups=[bucket.indices for bucket in notes[-1].buckets],
        )

    def _forward(self, notes: Sequence[Note], at: Any) -> Seconds:
        """Return forward of the module, and what lies between it and backward: the loss."""
        uses = []
        for note in notes:
            loss = 0.0
            if note.returned is not None and note.backward is not None:
                loss = at(note.backward[0]) - at(note.returned)
            uses.append(_length(note.module, at) + max(0.0, loss))
        return np.array(uses)

    def _gradients(self, note: Note) -> tuple[Seconds, Seconds, float, float]:
        """Return when each gradient was there, on host and device, and both ends of backward's computation."""
        assert note.backward is not None
        hook, ready = np.full(len(self._sizes), np.nan), np.full(len(self._sizes), np.nan)
        host_s, device_s = self._host(note.backward[0]), self._device(note.backward[0])
        one_clock = self._device(note.start) == self._host(note.start)
        spent_s = 0.0
        for index, (begin, end) in sorted(note.hooks.items(), key=lambda item: self._host(item[1][0])):
            hook[index] = max(0.0, self._host(begin) - host_s - spent_s)
            ready[index] = hook[index] if one_clock else max(0.0, self._device(begin) - device_s)
            spent_s += self._host(end) - self._host(begin)
        over = note.backward[1] if note.finish is None else note.finish[0]
        whole_s = max(0.0, self._host(over) - host_s - spent_s)
        return hook, ready, whole_s, whole_s if one_clock else max(0.0, self._device(over) - device_s)

    def _hook_lengths(self, notes: Sequence[Note]) -> tuple[float, float]:
        """Return the usual hook that launches nothing, and that with what a launch adds.

        A hook copies its gradient: what is told of a launch is what its hook took beyond one of as many bytes.
        """
        plain, launching = list[tuple[float, int]](), list[tuple[float, int]]()
        for note in notes:
            launches = [self._host(bucket.launched) for bucket in note.buckets]
            for index, (begin, end) in note.hooks.items():
                low, high = self._host(begin), self._host(end)
                launched = any(low <= each <= high for each in launches)
                (launching if launched else plain).append((high - low, self._sizes[index]))
        if not plain:
            usual = float(np.median([seconds for seconds, _ in launching])) if launching else 0.0
            return usual, usual
        seconds, sizes = (np.array(column, dtype=np.float64) for column in zip(*plain, strict=True))
        least, usual = float(np.quantile(seconds, 0.1)), float(np.median(seconds))
        per_byte = float(np.maximum(seconds - least, 0.0).sum() / sizes.sum())
        added = [each - least - per_byte * size for each, size in launching]
        return usual, usual + (max(0.0, float(np.median(added))) if added else 0.0)

    def _host(self, moment: Moment) -> float:
        return self._clock.host_s(moment)

    def _device(self, moment: Moment) -> float:
        return self._clock.device_s(moment)


def _length(pair: Pair | None, at: Any) -> float:
    return 0.0 if pair is None else max(0.0, at(pair[1]) - at(pair[0]))
