"""Train a model in stages by `torch.distributed.pipelining`, copies of it beside each other, and time its steps."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.pipelining import Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B

from ddpexec.capturing.models import build
from ddpexec.errors import OptionError
from ddpexec.groups.lost import name_lost_ranks
from ddpexec.groups.process_groups import Communicator
from ddpexec.running.pipeline_options import PipelineOptions
from ddpexec.running.pipeline_stages import RankStages, make_timed_stages, model_stages
from ddpexec.running.settings import DISCARDED, RunSettings
from ddpexec.timing.clock import drain
from ddpsim.common.errors import InputError
from ddpsim.common.files import read_json
from ddpsim.workload import Workload

_SCHEDULES: dict[str, Any] = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B, "interleaved": ScheduleInterleaved1F1B}


class PipelineRun:
    """One rank's part of a run in stages.

    Args:
        settings: its backend, batch, iterations and seed.
        options: of the pipeline.
        device: of this rank.
        model: name of a shipped model; or
        workload: timed stages instead.

    Raises:
        InputError: stages that do not divide the ranks, more of them than layers, a model that torch cannot cut, or a
            prediction of another pipeline; on every rank alike.
    """

    def __init__(
        self,
        settings: RunSettings,
        options: PipelineOptions,
        device: torch.device,
        communicator: Communicator,
        *,
        model: str | None = None,
        workload: Workload | None = None,
    ) -> None:
        self._settings, self._device, self._communicator = settings, device, communicator
        self._given = given = options.check(communicator.world_size)
        predicted = None if options.predicted is None else _prediction(options.predicted)
        self._copy, self._place = divmod(communicator.rank, given.stages)
        self._copies = communicator.world_size // given.stages
        own, self._replicas = self._groups()
        torch.manual_seed(settings.seed)
        if workload is not None:
            self.held: RankStages = make_timed_stages(workload, given, self._place, own, device)
            self._name, self._samples = workload.name, workload.batch_size
        else:
            made = build(model or "", device)
            self._name, self._samples = made.name, settings.batch_size or made.batch_size
            cut = None if predicted is None else predicted["stages"]
            _check_cut(cut, given.stages * given.stages_per_rank)
            generator = torch.Generator(device).manual_seed(settings.seed + self._copy)
            batches = [made.make_batch(self._samples, device, generator) for _ in range(given.micro_batches)]
            self.held = model_stages(made, given, self._place, own, batches, cut)
        self._predicted_s = None if predicted is None else float(predicted["step_s"])
        if predicted is not None and [list(stage) for stage in self.held.cut] != predicted["stages"]:
            what = "the prediction's stages are not those of this run"
            raise OptionError(what, place=f"predicted={options.predicted}", remedy="predict this workload, cut so")
        stages: Any = self.held.stages if given.order == "interleaved" else self.held.stages[0]
        schedule = _SCHEDULES[given.order]
        self._schedule = schedule(stages, n_microbatches=given.micro_batches, loss_fn=self._loss)

    def train(self, progress: Callable[[int, int, float], None]) -> dict[str, Any]:
        """Run the discarded steps and those that count; return what they took, as JSON values, times in seconds.

        A period is the longest of all ranks, a loss the mean of its micro-batches, of the first copy; `error` is how
        much longer the predicted step is than the measured one, as a share of it.

        Raises:
            LostRankError: another rank died, raised or did not come within the timeout.
        """
        total, begins, losses = DISCARDED + self._settings.iterations, list[float](), list[float]()
        with name_lost_ranks(self._communicator, "a step of the pipeline", others_code=True):
            self._communicator.barrier()
            for index in range(total):
                begins.append(time.perf_counter())
                losses.append(self._step())
                drain(self._device)
                progress(index + 1, total, time.perf_counter() - begins[-1])
            begins.append(time.perf_counter())
            mine = [
                later - earlier for earlier, later in zip(begins[DISCARDED:-1], begins[DISCARDED + 1 :], strict=True)
            ]
            told = self._communicator.gather_objects((mine, losses[DISCARDED:]), self._device)
        periods = [max(each) for each in zip(*(periods for periods, _ in told), strict=True)]
        step_s, known_s = median(periods), self._predicted_s
        return {
            "model": self._name,
            "pipeline": self._given.order,
            "step_s": step_s,
            "periods_s": periods,
            "samples_per_s": self._copies * self._given.micro_batches * self._samples / step_s,
            "stages": [list(stage) for stage in self.held.cut],
            "ranks_per_pipeline": self._given.stages,
            "copies": self._copies,
            "micro_batches": self._given.micro_batches,
            "losses": told[self._given.stages - 1][1],
            "predicted_step_s": known_s,
            "error": None if known_s is None else known_s / step_s - 1,
        }

    def _step(self) -> float:
        """Train once; return the loss where this rank has the last stage, else 0."""
        held, losses = self.held, list[Tensor]()
        first, last = self._place == 0, self._place == self._given.stages - 1
        arguments = held.batch if first else ()
        if last:
            self._schedule.step(*arguments, target=torch.arange(self._given.micro_batches), losses=losses)
        else:
            self._schedule.step(*arguments)
        if self._copies > 1:
            summed = held.gradients()
            dist.all_reduce(summed, group=self._replicas)
            held.take(summed.div_(self._copies) if held.flat is None else summed)
        held.optimizer.step()
        held.optimizer.zero_grad()
        return float(torch.stack([each.detach() for each in losses]).mean()) if losses else 0.0

    def _loss(self, output: Any, number: Tensor) -> Tensor:
        loss: Tensor = self.held.loss(output, self.held.batches[int(number)])
        return loss

    def _groups(self) -> tuple[dist.ProcessGroup, dist.ProcessGroup]:
        """Return the group of this rank's pipeline, and that of the ranks of its place in all copies."""
        ranks, timeout = range(self._communicator.world_size), self._settings.timeout
        each = self._given.stages
        pipelines = [dist.new_group(list(ranks[k : k + each]), timeout=timeout) for k in ranks[::each]]
        replicas = [dist.new_group(list(ranks[place::each]), timeout=timeout) for place in range(each)]
        return pipelines[self._copy], replicas[self._place]


def _check_cut(cut: Any, count: int) -> None:
    if cut is not None and len(cut) != count:
        what = f"the prediction has {len(cut)} stages, the run {count}"
        raise OptionError(what, place="predicted", remedy="give the `stages` and `stages_per_rank` it was made with")


def _prediction(path: str) -> dict[str, Any]:
    """Return what `ddpsim pipeline --json` wrote.

    Raises:
        InputError: a file without a step and stages.
    """
    remedy = "write it with `ddpsim pipeline ... --json`"
    document = read_json(Path(path), InputError, remedy)
    if not isinstance(document, dict) or not {"step_s", "stages"} <= document.keys():
        raise InputError("no prediction of a pipeline", place=path, remedy=remedy)
    return document


def write_measurement(measured: dict[str, Any], out: Path) -> None:
    """Write `pipeline.json` into a folder."""
    from ddpsim.common.files import json_text, write_whole

    out.mkdir(parents=True, exist_ok=True)
    write_whole(out / "pipeline.json", json_text(measured))
