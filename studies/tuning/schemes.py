"""One rank of a training under our wrapper of schemes: tuned, then its plans measured beside what was kept.

`python -m ddpexec netlab --ranks 2 --rate 2gbit -- python -m studies.tuning.schemes --workload resnet50 --scale 2` as
root, on a quiet machine; rank 0 prints a table: of each scheme the plan predicted best, the first one, what was kept.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
import torch.distributed as dist

import ddpexec
from ddpexec.ddp.scheduled_wrapper import ScheduledDataParallel
from ddpexec.groups.launched import join_launched
from ddpexec.running.timed import make_timed_model
from ddpexec.tuning.plan import TrialPlan
from ddpexec.tuning.racing import compare
from ddpexec.tuning.switching import PlanSwitch
from ddpexec.tuning.tuner import STEPS
from ddpsim import load_workload
from studies.tuning.job import tuned

BLOCK, PASSES = 4, 6
"""Steps of a plan in a pass, and passes over all plans, forth and back in turn."""


def main() -> None:
    """Train on this rank."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--workload", required=True)
    parser.add_argument("--scale", type=float, required=True)
    given = parser.parse_args()
    with join_launched("tuning") as here, tempfile.TemporaryDirectory() as folder:
        rank = here.communicator.rank
        timed = make_timed_model(
            load_workload(given.workload), device=here.device, rank=rank, seed=0, scale_compute=given.scale
        )
        model = ScheduledDataParallel(timed.model.module, "ddp", timed.make_optimizer, learn=3)
        batch = timed.model.make_batch(None, here.device, torch.Generator(here.device))

        def step() -> float:
            begin = time.perf_counter()
            timed.model.loss(model(*batch.inputs), batch).backward()
            model.optimizer.step()
            model.optimizer.zero_grad()
            return time.perf_counter() - begin

        for _ in range(4):  # it learns when gradients come
            step()
        begun = TrialPlan(model.caps, tuple(map(tuple, model.plan.groups())))
        tuner = ddpexec.Tuner(model, out=Path(folder) if rank == 0 else None)
        seconds = tuned(tuner, step, 1, STEPS)
        (decision,) = tuner.decisions
        schedule = None if model.schedule.scheme == "ddp" else model.schedule
        kept = TrialPlan(model.caps, tuple(map(tuple, model.plan.groups())), schedule)
        tuner.close()
        box: list[Any] = [_best_of_each([] if decision.ranking is None else decision.ranking.candidates)]
        dist.broadcast_object_list(box, 0)
        predicted = {each.plan.key: each for each in box[0]}
        plans = list({plan.key: plan for plan in (begun, kept, *(each.plan for each in box[0]))}.values())
        steps = _measured(model, kept, plans, step)
        if rank == 0:
            print(f"of {len(seconds)} steps: lost {sum(seconds) / len(seconds) / fmean(steps[0]) - 1:+.1%}")
            for plan, taken in zip(plans, compare(steps), strict=True):
                told = predicted.get(plan.key)
                gain = "" if told is None else f", predicted {told.gain:+.1%}"
                said = f"{plan.scheme}, {plan.messages} messages: {taken.step_s * 1e3:.1f} ms"
                saved = f"{taken.saved_s / fmean(steps[0]):+.1%} of the first{gain}"
                print(f"{said}, {saved}{'  <- kept' if plan.key == kept.key else ''}")


def _best_of_each(candidates: Sequence[Any]) -> list[Any]:
    """Return the first of each scheme, and the first three."""
    first = {each.plan.scheme: each for each in reversed(candidates)}
    return list({each.plan.key: each for each in (*candidates[:3], *first.values())}.values())


def _measured(model: Any, kept: TrialPlan, plans: Sequence[TrialPlan], step: Any) -> list[list[float]]:
    switch = PlanSwitch(model, kept)
    steps: list[list[float]] = [[] for _ in plans]
    for turn in range(PASSES):
        numbers = range(len(plans)) if turn % 2 == 0 else range(len(plans))[::-1]
        for number in numbers:
            for _ in range(switch.use(plans[number])):
                step()
            steps[number] += [step() for _ in range(BLOCK)]
    return steps


if __name__ == "__main__":
    main()
