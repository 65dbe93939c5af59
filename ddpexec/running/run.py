"""Train a model for real on this process's rank, and return a trace of it.

Start with `Run.train` and `Run._step`, one iteration. The constructor makes the subject, its wrapper and its observer;
`trace` turns the observer's notes into records, and works where training broke off too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, dataclass, replace
from statistics import fmean, median
from typing import Any

import torch
import torch.distributed as dist

from ddpexec.capturing.models import TrainingModel, flush_denormals
from ddpexec.capturing.own_step import name_errors
from ddpexec.ddp.parameter_servers import ServerStatistics
from ddpexec.ddp.parameters import ModelParameters, collect
from ddpexec.ddp.wrapper import DistributedDataParallel
from ddpexec.errors import OptionError
from ddpexec.groups.lost import name_lost_ranks
from ddpexec.groups.process_groups import Communicator, round_robin
from ddpexec.groups.send_rate import limit_send_rate
from ddpexec.running.batches import Batches
from ddpexec.running.demand import check_capacity
from ddpexec.running.devices import rank_devices
from ddpexec.running.own import OwnStamps, OwnTraining
from ddpexec.running.replicated import Replicated
from ddpexec.running.settings import DISCARDED, RunSettings
from ddpexec.running.slower import SlowedModule
from ddpexec.running.stock import StockWatch, buckets_of, hook_cost_s
from ddpexec.running.subject import subject_of
from ddpexec.running.wrapping import Wrapping
from ddpexec.timing.clock import clock_of, drain, offset_to_rank_zero
from ddpexec.timing.observe import Note, Observer, note_backward
from ddpexec.timing.records import Records
from ddpexec.timing.stamping import stamping_s
from ddpsim.bucketing import BucketPlan
from ddpsim.bucketing.plan import custom_plan
from ddpsim.common.options.input_stage import input_stage
from ddpsim.common.other_work import ProcessorClock, find_other_work
from ddpsim.simulation.jobs.job_options import NO_INPUT, RECORDED_INPUT
from ddpsim.trace.records import Iteration, Trace
from ddpsim.workload import Workload

Progress = Callable[[int, int, float], None]


@dataclass(frozen=True, slots=True)
class Turn:
    """What one round of runs that take turns took: seconds of a step of one process, and of the run."""

    local_s: float
    step_s: float


class Run:
    """One rank's part of a run: construct, `train`, and take `trace` even where training broke off.

    Args:
        settings: what to run.
        device: of this rank.
        model: name of a shipped model; or
        step: `package.module:function` of one's own, as `capture_step` takes it; or
        workload: timed layers instead of a model.
        plan: the buckets to use instead of caps.

    Raises:
        InputError: a model that is to be faster than it is, a workload that this machine cannot replay at its pace, or
            a straggler that is no rank.
    """

    def __init__(
        self,
        settings: RunSettings,
        device: torch.device,
        *,
        model: str | None = None,
        step: str | None = None,
        workload: Workload | None = None,
        plan: Callable[[ModelParameters], BucketPlan | None] = lambda parameters: None,
    ) -> None:
        if workload is None and settings.scale_compute < 1:
            remedy = "give 1 or more; a model cannot be made faster, timed layers (`workload`) and a prediction can"
            raise OptionError(f"{settings.scale_compute!r} is below 1", place="scale_compute", remedy=remedy)
        self.settings = settings
        self.device = device
        groups = round_robin(settings.process_groups, settings.timeout)
        # From here on most lines are collectives, or make groups: every rank passes them in this order.
        self.communicator = Communicator(groups)
        self.rank, self.world_size = self.communicator.rank, self.communicator.world_size
        settings.check_ranks(self.world_size)
        self.devices = rank_devices(settings.devices, device)
        self.communicator.introduce(device)
        torch.manual_seed(settings.seed)
        if workload is not None and self.device.type == "cpu":
            check_capacity(workload, settings.scale_compute, self.communicator)
        self.subject = subject_of(model, step, workload, self.devices, settings, self.rank)
        self.parameters = collect(self.subject.model.module)
        self.observer = Observer(clock_of(self.devices, self.communicator.backend, settings.process_groups))
        self.records = Records(
            self.rank,
            self.observer.clock,
            self.communicator.backend,
            groups=settings.process_groups,
            offset_s=offset_to_rank_zero(self.communicator),
        )
        self.slower = self._make_slower()
        self.batches = self._batches(workload)
        fixed = settings.plan(self.parameters.policy, plan(self.parameters))
        self.watch: StockWatch | None = None
        wrapping = Wrapping(settings, self.subject, self.parameters, self.communicator, groups, fixed, self.observer)
        drain(self.device)
        begin = time.perf_counter()
        self.ddp: Any = wrapping.make()
        drain(self.device)
        self.construction_s = time.perf_counter() - begin
        if isinstance(self.ddp, torch.nn.parallel.DistributedDataParallel) and settings.observe:
            self.watch = StockWatch(self.ddp, self.parameters, self.observer)
        if settings.send_rate is not None:
            limit_send_rate(settings.send_rate, self.communicator.backend)
        self.alone: list[Note] = []
        self.turns: Sequence[Turn] = ()
        self.served: ServerStatistics | None = None
        if isinstance(self.subject.model, OwnTraining):
            self.subject.model.wrap(self.ddp)
        self.provenance: dict[str, object] = {}
        self.processors = ProcessorClock()

    def train(self, progress: Progress = lambda done, total, seconds: None) -> None:
        """Run the discarded iterations, those that count, and the `local_iterations` without communication.

        Raises:
            LostRankError: another rank died, raised or did not come within the timeout.
            InputError: the user's own step raised; it says where.
        """
        if isinstance(self.ddp, DistributedDataParallel) and self.ddp.serves:
            self.served = self.ddp.serve()
            return
        self.processors = ProcessorClock()
        step = self._make_step(self.subject.model)
        total = DISCARDED + self.settings.iterations
        with name_lost_ranks(self.communicator, "a collective", others_code=True), ExitStack() as stack:
            if isinstance(self.subject.model, OwnTraining):
                stack.callback(self.subject.model.close)
            else:
                stack.enter_context(flush_denormals())
            if self.batches is not None:
                stack.callback(self.batches.close)
            for index in range(total):
                begin = time.perf_counter()
                step(index)
                progress(index + 1, total, time.perf_counter() - begin)
            self.observer.close()
            if isinstance(self.ddp, DistributedDataParallel):
                self.served = self.ddp.end()
            drain(self.device)
            self._train_alone(self._make_step(self.subject.model, local=True))

    def warm_up(self) -> None:
        """Train the discarded iterations alone, before the first of the blocks of a run that takes turns.

        Raises:
            LostRankError: another rank died, raised or did not come within the timeout.
        """
        self.processors = ProcessorClock()
        self._train_block(range(DISCARDED), local=False)

    def train_block(self, steps: int, *, local: bool = False) -> float:
        """Train `steps` optimizer steps after one that does not count; return the mean seconds of those that do.

        What came before a block still shows in its first step: caches, and ranks that were apart.

        Args:
            local: without communication, as one process trains; the trace does not have these.

        Raises:
            LostRankError: another rank died, raised or did not come within the timeout.
        """
        notes, every = self.observer.notes, self.settings.accumulate
        before = len(notes)
        self._train_block(range(DISCARDED, DISCARDED + (1 + steps) * every), local=local)
        seconds = sum(self.records.iteration(note, 0).iteration_s for note in notes[before + every :]) / steps
        # The first step of a block never counts; steps without communication are measured and leave no trace.
        del notes[before : None if local else before + every]
        return seconds

    def _train_block(self, indices: range, *, local: bool) -> None:
        step = self._make_step(self.subject.model, local=local)
        self.communicator.barrier()
        with name_lost_ranks(self.communicator, "a collective"), flush_denormals():
            for index in indices:
                step(index)
            self.observer.close()
            if isinstance(self.ddp, DistributedDataParallel):
                self.ddp.complete()
            drain(self.device)

    def trace(self) -> Trace:
        """Return the trace of this rank: the iterations that count, or of a run that broke off what there is."""
        if self.watch is not None and self.observer.notes:
            self.watch.name_buckets()
        notes = self.observer.notes[DISCARDED:] or self.observer.notes
        iterations = [self.records.iteration(note, index) for index, note in enumerate(notes)]
        spans = [s for note, it in zip(notes, iterations, strict=True) for s in self.records.spans(note, it)]
        return Trace(self.world_size * self._replicas, self.communicator.backend, iterations, spans, self.provenance)

    def first(self) -> dict[str, object]:
        """Return what constructing the wrapper took this rank, and the iterations that do not count, in seconds."""
        notes = self.observer.notes[:DISCARDED]
        seconds = [self.records.iteration(note, index).iteration_s for index, note in enumerate(notes)]
        return {"construction_s": self.construction_s, "iterations_s": seconds}

    def gather(self, trace: Trace) -> Trace | None:
        """Return on rank 0 the trace of all ranks without spans and gradients, enough for the numbers; else None."""
        mine = [replace(iteration, gradients=()) for iteration in trace.iterations]
        gathered: list[Any] | None = [None] * self.world_size if self.rank == 0 else None
        with name_lost_ranks(self.communicator, "the gathering of the ranks' traces"):
            own = mine, self.local_s(), self.served, self.processors.since()
            dist.gather_object(own, gathered, group_dst=0, group=self.communicator.main)
        if gathered is None:
            return None
        everything: list[Iteration] = [iteration for part, *_ in gathered for iteration in part]
        known = [local_s for _, local_s, *_ in gathered if local_s is not None]
        servers = [served.document() for *_, served, _ in gathered if served is not None]
        other = find_other_work([use for *_, use in gathered])
        provenance = {
            **trace.provenance,
            **({"local_s": median(known)} if known else {}),
            **({"servers": servers[0]} if servers else {}),
            **({"turns": [asdict(turn) for turn in self.turns]} if self.turns else {}),
            **({} if other is None else other.document()),
        }
        return Trace(trace.world_size, trace.backend, everything, (), provenance)

    def local_s(self) -> float | None:
        """Return this rank's period without communication: the median over cycles of accumulated gradients.

        None where no such iterations were asked for, or where the rank is a straggler, or serves. Of a run that took
        turns it is the median over them.
        """
        if self.turns:
            return median(turn.local_s for turn in self.turns)
        if not self.settings.local_iterations or self.rank in self.settings.stragglers or not self.alone:
            return None
        every = self.settings.accumulate
        periods = [self.records.iteration(note, index).iteration_s for index, note in enumerate(self.alone)][every:]
        return median(fmean(periods[begin : begin + every]) for begin in range(0, len(periods), every))

    def plan_in_force(self) -> BucketPlan:
        """Return the buckets that the last iteration used."""
        if self.settings.scheduled or isinstance(self.ddp, DistributedDataParallel):
            plan: BucketPlan = self.ddp.plan
            return plan
        return custom_plan(self.parameters.policy, buckets_of(self.ddp, self.parameters))

    @property
    def _replicas(self) -> int:
        """GPUs of this process, each with a batch of its own."""
        return self.ddp.replicas if isinstance(self.ddp, Replicated) else 1

    def stamping_s(self) -> float:
        """Return what taking moments cost a step: the measured cost of one, times how many the last step took.

        Beside stock torch the hooks that take them count too; our reducer has its hooks anyway.
        """
        last = self.observer.notes[-1]
        hooks_s = len(last.hooks) * hook_cost_s() if self.watch is not None else 0.0
        return hooks_s + stamping_s(self.observer.clock, last)

    def _train_alone(self, step: Callable[[int], None]) -> None:
        """Run iterations without communication and note them apart; the first cycle is not counted.

        They are DDP's own local steps: the ranks compute at the same time, as they do in those that count.
        """
        if not self.settings.local_iterations:
            return
        counted = len(self.observer.notes)
        for index in range((1 + self.settings.local_iterations) * self.settings.accumulate):
            step(DISCARDED + index)
        self.observer.close()
        drain(self.device)
        self.alone = self.observer.notes[counted:]
        del self.observer.notes[counted:]

    def _make_step(self, model: TrainingModel | OwnTraining, *, local: bool = False) -> Callable[[int], None]:
        """Return what trains the iteration of a number, without communication where `local`."""
        seed = self.settings.seed + self.rank
        if isinstance(model, OwnTraining):
            torch.manual_seed(seed)
            return lambda index: self._run_own_step(index, model)
        generator = torch.Generator(self.device).manual_seed(seed)
        samples = (self.settings.batch_size or model.batch_size) * self._replicas
        batch = model.make_batch(samples, self.device, generator)
        return lambda index: self._step(index, model, batch, local=local)

    def _run_own_step(self, index: int, model: OwnTraining) -> None:
        """Train once by the user's step; its work before forward counts with `input_stage=recorded` alone."""
        loads = self.settings.input_stage == RECORDED_INPUT
        stamps = OwnStamps(self.observer, self.slower, index, loads=loads)
        with name_errors(model.path), name_lost_ranks(self.communicator, "a collective", others_code=True):
            model.step(stamps)
        stamps.end()

    def _step(self, index: int, model: TrainingModel, batch: Any, *, local: bool = False) -> None:
        observer, optimizer = self.observer, self.subject.optimizer
        number = index - DISCARDED + 1
        optimises = number % self.settings.accumulate == 0
        synced = number % self.settings.sync_every == 0 and not local
        note = observer.begin(index, synced=synced, stepped=optimises)
        if self.batches is not None:
            self.batches.take()
            note.loaded = note.start, observer.now()
        with nullcontext() if synced else self.ddp.no_sync():
            output = self.ddp(*batch.inputs)
            note.returned = observer.now()
            loss = model.loss(output, batch)
            self._backward(note, loss)
        begin = observer.now()
        if self.slower is not None:
            self.slower.begin()
        if optimises:
            optimizer.step()
            optimizer.zero_grad()
        if self.slower is not None:
            self.slower.end()
        note.optimizer = begin, observer.now()

    def _backward(self, note: Note, loss: torch.Tensor) -> None:
        begin = self.observer.now()
        if self.slower is not None:
            self.slower.begin()
        loss.backward()  # type: ignore[no-untyped-call]
        note_backward(note, begin, self.observer.now())

    def _batches(self, workload: Workload | None) -> Batches | None:
        """Return what loads batches; None where they are there, or the user's own step loads them."""
        stage_name = self.settings.input_stage
        if stage_name == NO_INPUT:
            return None
        if isinstance(self.subject.model, OwnTraining):
            if stage_name != RECORDED_INPUT:
                remedy = "write `input_stage=recorded`: what it does before forward counts then"
                raise OptionError("a step of one's own loads its batches itself", place="input_stage", remedy=remedy)
            return None
        if workload is None and stage_name == RECORDED_INPUT:
            remedy = "write e.g. load=12ms,workers=4,copy=38MB"
            raise OptionError(f"{self.subject.model.name} has none recorded", place="input_stage", remedy=remedy)
        stage = input_stage(stage_name) if workload is None else self.settings.input_of(workload)
        return None if stage is None else Batches(stage, self.device)

    def _make_slower(self) -> SlowedModule | None:
        factor = self.settings.slowness(self.rank)
        if factor == 1 or self.subject.timed:
            return None
        if self.device.type != "cpu":
            raise OptionError(
                "a model on a GPU cannot be made slower", place="straggler", remedy="run timed layers: `workload`"
            )
        return SlowedModule(self.subject.model.module, self.parameters.tensors, self.observer, factor)
