"""What is traced of one loop once its module is known: its steps' records, its files, and what other ranks are told."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from ddpexec.groups.process_groups import backend_for
from ddpexec.running.provenance import describe_training, utc
from ddpexec.timing.clock import clock_of, drain
from ddpexec.timing.observe import Note, Observer
from ddpexec.timing.records import Records
from ddpexec.tracing.exchange import Exchange, Words
from ddpexec.tracing.iterations import Iterations
from ddpexec.tracing.rotation import SUMMARY, BufferedIterations, Rotation
from ddpexec.tracing.settings import TraceSettings
from ddpexec.tracing.subjects import subject_of
from ddpexec.tracing.summary import Watcher, describe_interval
from ddpsim.trace.records import Iteration


class Session:
    """What there is once the traced module is known."""

    def __init__(self, folder: Path, settings: TraceSettings, root: nn.Module, inputs: tuple[Any, ...]) -> None:
        self._folder, self._settings = folder, settings
        known = dist.is_available() and dist.is_initialized()
        self.rank, self.world_size = (dist.get_rank(), dist.get_world_size()) if known else (0, 1)
        self.device = next(root.parameters()).device
        self._backend = backend_for(dist.group.WORLD if known else None, self.device)
        self.observer = Observer(clock_of([self.device], self._backend, 1))
        self.subject = subject_of(root, self.observer)
        self.iterations = Iterations(self.subject, self.observer, settings, self._forward)
        self._rotation = Rotation(folder, self.rank, self.world_size, self._backend, settings.files)
        self._recorded, self._pending = BufferedIterations(), list[Note]()
        self._in_interval, self._step_s = list[Iteration](), list[float]()
        self._first_step, self._steps_in_file = 0, 0
        self._due: tuple[int, int] | None = None
        self._watcher = Watcher()
        self.exchange = Exchange(self.rank, self.world_size, self._write_line)
        offset_s = self.exchange.align()
        self._records = Records(self.rank, self.observer.clock, self._backend, offset_s=offset_s or 0.0)
        self._batch_size = next((int(i.shape[0]) for i in inputs if isinstance(i, Tensor) and i.dim() > 0), None)
        self._aligned = offset_s is not None
        self._began = time.time()

    def _forward(self, first: bool) -> None:
        """Make records of earlier iterations where the one that has begun is not stamped, or must."""
        if first and self.iterations.step > 0:
            self._step_s.append(self.iterations.step_s)
            self._step_over()
        if not self.iterations.stamping or len(self.iterations.closed) > 1:
            self._record(keep=1 if self.iterations.stamping else 0)
        if self._due is not None and all(note.index >= self._due[0] for note in self.iterations.closed):
            self._tell(*self._due)

    def end(self, *, broken_off: bool) -> None:
        """Write what is there."""
        self.iterations.end()
        if not broken_off:
            drain(self.device)
        self._record(keep=0)
        self._write()
        if self._due is not None:
            self._tell(*self._due)
        if self._step_s:
            self._tell(self.iterations.index + 1, self.iterations.step)
        self.exchange.close()

    def _step_over(self) -> None:
        """A step is over: write the file that is full, and tell the interval that is."""
        over = self.iterations.step
        if self._settings.is_stamped(over) and self._steps_in_file >= self._settings.steps_per_file:
            self._record(keep=0)
            self._write()
        self._steps_in_file += self._settings.is_stamped(over)
        if self._due is None and over - self._first_step >= self._settings.interval:
            self._due = self.iterations.index, over

    def _record(self, keep: int) -> None:
        """Make records of the iterations that are over, but for the last `keep`, whose collectives may still end."""
        closed = self.iterations.closed
        while len(closed) > keep:
            note = closed.pop(0)
            self.subject.name_buckets(note)
            iteration = self._records.iteration(note, note.index)
            self._recorded.iterations.append(iteration)
            self._recorded.spans += self._records.spans(note, iteration)
            self._in_interval.append(iteration)

    def _write(self) -> None:
        self._rotation.write(self._recorded, self._provenance())
        self._steps_in_file = 0

    def _tell(self, index: int, step: int) -> None:
        """Tell of the interval that ends before the iteration `index`, the first of `step`."""
        number, first = self._first_step // self._settings.interval, self._first_step
        mine = [it for it in self._in_interval if it.index < index]
        told = describe_interval(number, first, max(1, step - first), self._step_s[: step - first], mine)
        self.exchange.tell(number, {**told, "time": utc(time.time())})
        self._first_step, self._due = step, None
        del self._step_s[: step - first]
        del self._in_interval[: len(mine)]

    def _write_line(self, interval: int, words: Words, others: Mapping[int, Words]) -> None:
        """Write the line of an interval; on the exchange's thread."""
        line: dict[str, object] = {**words, "rank": self.rank}
        if self.rank == 0 and self.world_size > 1:
            line["heard_ranks"] = 1 + len(others)
            line["ranks_not_heard"] = sorted(set(range(1, self.world_size)) - others.keys())[:16]
        line["events"] = self._watcher.events(words, others, self.rank)
        self._folder.mkdir(parents=True, exist_ok=True)
        with open(self._folder / SUMMARY.format(self.rank), "a") as file:
            file.write(json.dumps(line) + "\n")

    def _provenance(self) -> dict[str, object]:
        plan, subject = self.subject.plan(), self.subject
        model = type(getattr(subject.module, "module", subject.module)).__name__
        return {
            "made_by": "ddpexec.trace",
            "command": list(sys.argv),
            **describe_training(self._began, subject.implementation, model, self._batch_size, self.device),
            "local_world_size": int(os.environ.get("LOCAL_WORLD_SIZE", "0")) or None,
            "clock_aligned": self._aligned,
            "every": self._settings.every,
            "parameters": [[p.name, list(p.shape), p.dtype] for p in subject.model.policy],
            **(
                {"frozen": [[p.name, list(p.shape), p.dtype] for p in frozen]}
                if (frozen := subject.model.frozen)
                else {}
            ),
            **({} if plan is None else {"plan": plan.document(), "plan_fingerprint": plan.fingerprint()}),
            "options": {"scheme": self.subject.scheme, **self.subject.options()},
        }
