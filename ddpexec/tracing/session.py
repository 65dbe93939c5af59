"""One traced loop, once its module is known: which steps are stamped, the records of those, and the files they go to.

Start with `Session`, which joins the parts: `TraceSettings` says how often a step is stamped, `BufferedIterations`
turns the loop's hooks into an observer's notes, `Rotation` writes the newest stamped steps into the folder itself and
earlier ones into folders beside it, and `tracing.exchange` carries the summary of each interval to the other ranks.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from ddpexec.errors import OptionError
from ddpexec.groups.process_groups import backend_for
from ddpexec.running.provenance import describe_training, utc
from ddpexec.timing.clock import clock_of, drain
from ddpexec.timing.observe import Note, Observer
from ddpexec.timing.records import Records
from ddpexec.tracing.exchange import Document, Exchange
from ddpexec.tracing.loop import LoopStamps
from ddpexec.tracing.subjects import TracedModule, subject_of
from ddpexec.tracing.summary import Watcher, describe_interval
from ddpsim.common.files import remove
from ddpsim.trace.json import discard_trace, write_rank, write_run
from ddpsim.trace.records import Iteration, Span, Trace

_REMEDY = 'give a whole number, e.g. `with ddpexec.trace("out", every=1):`'


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceSettings:
    """Settings of a trace, all counted in steps: a step ends with the optimizer's, however many backwards it has.

    Attributes:
        every: each how-manieth step is stamped; of the others the start alone. 1 for a loop of few steps.
        warm_up: steps at the beginning that are not stamped, as buckets are rebuilt in them.
        steps_per_file: stamped steps in one file of a rank.
        files: how many files of a rank are kept, the one in the making included; older ones are removed.
        interval: steps that one line of the summary tells of.
    """

    every: int = 20
    warm_up: int = 3
    steps_per_file: int = 50
    files: int = 4
    interval: int = 100

    def __post_init__(self) -> None:
        for each in fields(self):
            value, least = getattr(self, each.name), 0 if each.name == "warm_up" else 1
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                what = f"`{each.name}={value!r}` is not a number of {each.name if each.name == 'files' else 'steps'}"
                raise OptionError(f"{what} from {least} on", place="ddpexec.trace", remedy=_REMEDY)

    def is_stamped(self, step: int) -> bool:
        """Return whether the step of that number, from 0 on, is stamped."""
        return step >= self.warm_up and (step - self.warm_up) % self.every == 0


@dataclass(slots=True)
class _Open:
    """What has happened since the last forward began."""

    backward: bool = False
    stepped: bool = False
    loaded: bool = False
    optimizer_end_s: float | None = None


class Iterations(LoopStamps):
    """Stamps the iterations of one subject, those of the steps that settings name.

    An iteration is from one start of forward to the next; several forwards before one backward are one. A step ends
    with the optimizer's; in a loop without one that torch knows, with a backward that reduces.

    Args:
        subject: whose hooks stamp.
        observer: takes the moments.
        settings: which steps are stamped.
        told: called at each forward: is it the first of a step?

    Attributes:
        closed: notes of stamped iterations that are over.
        step: number of the step that the present iteration is of, from 0 on.
        index: number of the present iteration.
        step_s: host seconds of the step that ended last.
        stamping: whether the present step is stamped.
    """

    def __init__(
        self, subject: TracedModule, observer: Observer, settings: TraceSettings, on_step: Callable[[bool], None]
    ) -> None:
        super().__init__(observer)
        self._subject, self._settings, self._on_step = subject, settings, on_step
        self.closed: list[Note] = observer.notes
        self.step, self.index = -1, -1
        self.step_s = 0.0
        self.stamping = False
        self._open = _Open(backward=True, stepped=True)
        self._optimizer_seen = self._synced = False
        self._step_began_s = 0.0

    def on_forward(self) -> None:
        """Forward begins."""
        self._on_step(self._begin())

    def _begin(self) -> bool:
        """Begin an iteration where one is over; return whether it is the first of a step."""
        if not self._open.backward:
            return False
        begin_s, former = time.perf_counter(), self._open
        first = former.stepped or (self._synced and not self._optimizer_seen)
        self._close_step(begin_s, first)
        self.index += 1
        self._open, self._synced = _Open(), self._subject.is_synced()
        if first:
            self.stamping = self._settings.is_stamped(self.step)
        if self.stamping:
            self._subject.attach()
            self._observer.begin(self.index, synced=self._synced, stepped=False)
            self._subject.begin()
        else:
            self._observer.close()
            self._subject.detach()
        return first

    def on_backward_end(self) -> None:
        """Backward is over."""
        self._open.backward = True
        super().on_backward_end()

    def on_optimizer_end(self, inside: bool) -> None:
        """An optimizer's step is over."""
        self._optimizer_seen = self._open.stepped = True
        self._open.optimizer_end_s = time.perf_counter()
        if self._observer.note is not None:
            self._observer.note.stepped = True
        super().on_optimizer_end(inside)

    def on_input(self, begin_s: float, end_s: float) -> None:
        """A batch was waited for."""
        self._open.loaded = True
        if self._observer.note is not None:
            self._observer.note.inputs.append((begin_s, end_s))

    def end(self) -> None:
        """The loop is over: its last iteration ends where its optimizer, or its backward, did."""
        note = self._observer.note
        if note is not None:
            complete = note.backward is not None
            ends = [pair[1] for pair in (note.backward, note.optimizer) if pair is not None]
            self._observer.close(ends[-1] if ends else None)
            if not complete:
                self.closed.pop()
        self._subject.detach()

    def _close_step(self, now_s: float, first: bool) -> None:
        note, former = self._observer.note, self._open
        if note is not None:
            note.stepped |= self._synced and not self._optimizer_seen
            if not former.loaded and former.optimizer_end_s is not None:
                note.inputs.append((former.optimizer_end_s, now_s))
        if first:
            self.step_s = now_s - self._step_began_s if self.step >= 0 else 0.0
            self._step_began_s = now_s
            self.step += 1


SUMMARY = "summary-rank{}.jsonl"


@dataclass(slots=True)
class BufferedIterations:
    """Stamped iterations that no file holds yet."""

    iterations: list[Iteration] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)

    def clear(self) -> None:
        """Forget them."""
        self.iterations.clear()
        self.spans.clear()


class Rotation:
    """Writes one rank's files.

    `FOLDER/rank{N}.json.gz` are the newest steps, so that the folder is a trace at any time; before newer ones are
    written it goes to `FOLDER/steps-{first iteration}/`, which is a trace too. Every rank rotates at the same steps, so
    that each folder holds the same iterations of all. Rank 0 writes each `run.json`.

    Args:
        folder: of the trace.
        rank, world_size, backend: as in the files.
        files: how many are kept.

    Raises:
        InputError: an earlier trace that cannot be removed.
    """

    def __init__(self, folder: Path, rank: int, world_size: int, backend: str, files: int) -> None:
        self._folder, self._rank, self._world, self._backend, self._files = folder, rank, world_size, backend, files
        self._newest: int | None = None
        for earlier in self._list_earlier():
            self._remove(earlier)
        discard_trace(folder, rank, world_size)
        remove(folder / SUMMARY.format(rank))

    def write(self, recorded: BufferedIterations, provenance: Mapping[str, object]) -> None:
        """Write what is recorded as the newest file, and clear it.

        Raises:
            InputError: the file cannot be written, or the one before it not be moved.
        """
        if not recorded.iterations:
            return
        if self._newest is not None:
            self._rotate(self._newest)
        self._newest = recorded.iterations[0].index
        trace = Trace(self._world, self._backend, recorded.iterations, recorded.spans, provenance)
        write_rank(trace, self._rank, self._folder)
        if self._rank == 0:
            write_run(trace, self._folder)
        recorded.clear()

    def _rotate(self, first: int) -> None:
        target = self._folder / f"steps-{first:08d}"
        target.mkdir(parents=True, exist_ok=True)
        self._name_own_file(self._folder).rename(self._name_own_file(target))
        if self._rank == 0:
            shutil.copyfile(self._folder / "run.json", target / "run.json")
        folders = self._files - 1
        earlier = self._list_earlier()
        for old in earlier[: max(0, len(earlier) - folders)]:
            self._remove(old)

    def _list_earlier(self) -> list[Path]:
        """Return the folders of earlier files of this rank, oldest first."""
        if not self._folder.is_dir():
            return []
        folders = [each for each in self._folder.iterdir() if re.fullmatch(r"steps-\d{8,}", each.name)]
        return sorted(
            (each for each in folders if self._name_own_file(each).exists()), key=lambda each: int(each.name[6:])
        )

    def _remove(self, earlier: Path) -> None:
        remove(self._name_own_file(earlier))
        if self._rank == 0:
            remove(earlier / "run.json")
        with contextlib.suppress(OSError):  # others' files are still there
            earlier.rmdir()

    def _name_own_file(self, folder: Path) -> Path:
        return folder / f"rank{self._rank}.json.gz"


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
        summary = describe_interval(number, first, max(1, step - first), self._step_s[: step - first], mine)
        self.exchange.tell(number, {**summary, "time": utc(time.time())})
        self._first_step, self._due = step, None
        del self._step_s[: step - first]
        del self._in_interval[: len(mine)]

    def _write_line(self, interval: int, words: Document, others: Mapping[int, Document]) -> None:
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
