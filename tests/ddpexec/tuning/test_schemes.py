"""A module under a scheme is tuned: schemes are predicted, tried and kept, and weights are those without tuning."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

import ddpexec
from ddpexec.ddp.scheduled_wrapper import ScheduledDataParallel
from ddpexec.running.timed import make_timed_model
from ddpexec.tuning import tuner as tuner_module
from ddpexec.tuning.observation import Observed, ObservedJob
from ddpexec.tuning.observing import Watch
from ddpexec.tuning.plan import TrialPlan, call_of
from ddpexec.tuning.ranking import Candidate, CapRanking, choose, neighbours, rank_caps
from ddpexec.tuning.rewrapping import refusal
from ddpsim.bucketing import BucketCaps, Parameter
from ddpsim.explaining.tuned import read_tuning
from ddpsim.schedules.schemes import SAME_SUMS
from ddpsim.workload.profile import ForwardUse, Phase
from tests.ddpexec.groups import ranks
from tests.ddpexec.small import small_workload
from tests.ddpexec.tuning.test_judging import rank_of
from tests.ddpexec.tuning.test_rounds import listening
from tests.ddpexec.tuning.test_tuner import BATCH, CAP, WIDTH, AtOnce, network

OPTIMIZER = lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9)  # noqa: E731


def job(**given: Any) -> ObservedJob:
    parameters = tuple(Parameter(f"p{number}", (1 << 20,)) for number in range(6))
    return ObservedJob(parameters, "cpu", "gloo", 2, schemes=SAME_SUMS, **given)


def seen() -> Observed:
    """Return steps whose communication does not fit under backward, and whose forward needs parameters one by one."""
    one = rank_of([4 << 20, 4 << 20, 4 << 20, 12 << 20])
    ready = np.tile(np.linspace(0.1, 0.02, 6), (4, 1))
    uses = np.tile(np.linspace(0.0, 0.08, 6), (4, 1))
    one = replace(one, hook_s=ready, ready_s=ready, groups=[(5,), (4,), (3,), (2, 1, 0)], use_s=uses, use_device_s=uses)
    return Observed(job(), 0.49, [[one, one]])


def test_schemes_are_predicted_beside_caps_each_with_the_schedule_that_it_was_predicted_with() -> None:
    found = rank_caps(seen())
    schemes = {each.plan.scheme for each in found.candidates}
    assert schemes == set(SAME_SUMS)
    for each in found.candidates:
        assert (each.plan.schedule is None) == (each.plan.scheme == "ddp")
        if each.plan.schedule is not None:
            carried = {index for message in each.plan.schedule for index in message.parameters}
            assert carried == set(range(6))
    best = found.candidates[0]
    assert best.plan.scheme in ("priority", "dear")  # half of their bytes go under the next forward
    by_ddp = next(each for each in found.candidates if each.plan.scheme == "ddp")
    assert best.gain > by_ddp.gain


def test_a_gain_is_held_against_the_scheme_in_force() -> None:
    under_ddp, observed = rank_caps(seen()), seen()
    best = under_ddp.candidates[0]
    under_best = rank_caps(Observed(job(scheme=best.plan.scheme), observed.step_s, observed.plans))
    assert under_best.step_s != under_ddp.step_s
    assert {each.plan.key: each.step_s for each in under_best.candidates} == {
        each.plan.key: each.step_s for each in under_ddp.candidates
    }
    for found in (under_ddp, under_best):
        first = found.candidates[0]
        assert first.gain == pytest.approx((found.step_s - first.step_s) / observed.step_s)


def test_one_scheme_with_other_buckets_is_another_plan_and_its_neighbour() -> None:
    def candidate(scheme: str, buckets: int, gain: float) -> Candidate:
        schedule: Any = None if scheme == "ddp" else SimpleNamespace(scheme=scheme)
        groups = tuple((number,) for number in range(buckets))
        return Candidate(TrialPlan(BucketCaps(bucket_cap_mb=buckets), groups, schedule), 1 - gain, gain, 0.0, gain)

    made = [candidate("dear", 4, 0.2), candidate("dear", 2, 0.19), candidate("ddp", 4, 0.1), candidate("ddp", 8, 0.05)]
    ranking = CapRanking(1.0, 1.0, None, tuple(made))  # type: ignore[arg-type]
    assert choose(ranking, made[2].plan) == [made[0], made[1], made[3]]
    assert choose(ranking, made[0].plan)[:2] == [made[1], made[2]]
    assert neighbours(ranking, made[0], [each.plan.key for each in (made[0], made[2])]) == [made[1]]


def test_the_line_of_a_scheme_is_our_wrapper_s() -> None:
    line = call_of(BucketCaps(bucket_cap_mb=5), "dear")
    assert line == 'ScheduledDataParallel(model, "dear", make_optimizer, caps=BucketCaps(bucket_cap_mb=5), learn=3)'
    assert call_of(BucketCaps(), "ddp") == 'ScheduledDataParallel(model, "ddp", make_optimizer, learn=3)'


def wrapped(scheme: str = "ddp", **options: Any) -> ScheduledDataParallel:
    return ScheduledDataParallel(network(), scheme, OPTIMIZER, **{"caps": BucketCaps(bucket_cap_mb=CAP), **options})


def train(model: Any, steps: int, rank: int, between: Any = lambda number: None) -> list[Any]:
    rates = torch.optim.lr_scheduler.StepLR(model.optimizer, step_size=10, gamma=0.9)
    generator = torch.Generator().manual_seed(rank)
    for number in range(steps):
        model(torch.randn(BATCH, WIDTH, generator=generator)).square().mean().backward()
        model.optimizer.step()
        rates.step()
        between(number)
        model.optimizer.zero_grad()
    model.complete()
    return [parameter.detach().clone() for parameter in model.parameters()]


class Liking(AtOnce):
    """Such a predictor by which plans of one scheme alone gain."""

    scheme = "dear"

    def worth(self, found: CapRanking) -> tuple[Candidate, ...]:
        liked = [each for each in found.candidates if each.plan.scheme == self.scheme][:1]
        return tuple(Candidate(each.plan, found.step_s / 2, 0.5, 0.4, 0.6) for each in liked)


def tuned(rank: int, begins: str, likes: str, slow: str, folder: str) -> dict[str, Any]:
    """Tune from one scheme while another is liked, by a clock on which steps under `slow` are longer."""
    mock.patch.object(tuner_module, "PredictingProcess", Liking).start()
    now = [0.0]
    mock.patch.object(tuner_module, "time", SimpleNamespace(perf_counter=lambda: now[0])).start()
    mock.patch.object(Liking, "scheme", likes).start()
    plain = train(wrapped(begins), 120, rank)
    model = wrapped(begins)
    ports = listening()
    tuner = ddpexec.Tuner(model, out=folder)
    ran: list[str] = []

    def between(_: int) -> None:
        ran.append(model.schedule.scheme)
        now[0] += 0.03 if model.schedule.scheme == slow else 0.02
        tuner.step()

    found = train(model, 120, rank, between)
    (decision,) = tuner.decisions
    tuner.close()
    return {
        "apart": max(float((a - b).abs().max()) for a, b in zip(plain, found, strict=True)),
        "scheme": model.schedule.scheme,
        "kept": decision.kept,
        "present": decision.present,
        "reason": decision.reason,
        "steps": decision.steps,
        "ran": ran,
        "ports": (ports, listening()),
    }


def test_the_kept_plan_is_a_scheme_and_weights_are_those_without_tuning(tmp_path: Path) -> None:
    for found in ranks.run(2, tuned, "ddp", "dear", "ddp", str(tmp_path)):
        assert found["scheme"] == "dear", found["reason"]
        assert found["apart"] == 0.0
        assert found["steps"] <= 100
        assert found["kept"].startswith('ScheduledDataParallel(model, "dear", make_optimizer')
        assert found["ran"][-1] == "dear"
    (only,) = read_tuning(tmp_path).rounds
    assert only.present.startswith('ScheduledDataParallel(model, "ddp", make_optimizer')
    assert only.kept == only.plans[0].call
    assert only.plans[0].measured_steps > 0


def test_a_scheme_that_is_slower_goes_and_leaves_no_port(tmp_path: Path) -> None:
    for found in ranks.run_own(2, tuned, "ddp", "dear", "dear", str(tmp_path)):
        assert "dear" in found["ran"]
        assert found["scheme"] == "ddp"
        assert found["apart"] == 0.0
        assert found["ports"][0] == found["ports"][1]


def test_a_job_that_began_with_a_scheme_is_observed_as_ddp_and_keeps_what_it_had(tmp_path: Path) -> None:
    for found in ranks.run(2, tuned, "priority", "dear", "dear", str(tmp_path)):
        assert {"priority", "ddp", "dear"} <= set(found["ran"])
        assert found["scheme"] == "priority"
        assert found["kept"] == found["present"]
        assert found["apart"] == 0.0


def test_four_ranks_keep_one_scheme_and_weights_differ_by_rounding_alone(tmp_path: Path) -> None:
    found = ranks.run(4, tuned, "ddp", "dear", "ddp", str(tmp_path))
    assert {each["scheme"] for each in found} == {"dear"}
    assert max(each["apart"] for each in found) < 1e-6


@ranks.on(2)
def test_what_a_scheme_forbids_is_refused_with_the_reason(rank: int) -> None:
    model = wrapped(learn=20)
    tuner = ddpexec.Tuner(model)
    train(model, 8, rank, lambda _: tuner.step())
    assert refusal(wrapped()) is refusal(wrapped("dear")) is None
    assert "zero1" in str(refusal(wrapped("zero1")))
    assert ["learn=4" in str(each.reason) for each in tuner.decisions] == [True]
    tuner.close()


@ranks.on(2)
def test_forward_s_uses_are_stamped_and_layers_that_announce_themselves_are_asked_again(rank: int) -> None:
    known = small_workload()
    uses = np.linspace(0.0, 0.05, len(known.parameters))
    timed = make_timed_model(
        replace(known, forward=Phase(np.array([0.06]), np.array([0.06])), forward_use_s=ForwardUse(uses, uses))
    )
    model = ScheduledDataParallel(timed.model.module, "dear", timed.make_optimizer, caps=BucketCaps(bucket_cap_mb=0.02))
    batch = timed.model.make_batch(None, model.device, torch.Generator())
    present = tuple(map(tuple, model.plan.groups()))
    schedule = model.schedule

    def step() -> None:
        timed.model.loss(model(*batch.inputs), batch).backward()
        model.optimizer.step()

    step()
    model.use_schedule(model.caps, present)
    watch = Watch(model)
    watch.begin()
    begin_s = time.perf_counter()
    for _ in range(3):
        step()
        watch.step()
    took_s = time.perf_counter() - begin_s
    seen = watch.end()
    model.use_schedule(model.caps, present, schedule)
    step()
    step()
    assert seen is not None
    parameters = seen.use_s.shape[1]
    assert (seen.use_s >= np.linspace(0.0, 0.05, parameters)).all()  # no layer is used before it is due
    assert (np.diff(seen.use_s, axis=1) >= 0).all()
    assert seen.use_s.max() < took_s
    assert len(model.reducer.stepper.pending) == parameters
    model(*batch.inputs)
    assert len(model.reducer.stepper.pending) == 0
