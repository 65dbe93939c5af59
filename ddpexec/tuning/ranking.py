"""Predict each bucket cap and each scheme of an observed step, rank them by gain, and choose which to try. No torch.

Start with `rank_caps`: it makes a workload, a machine and a calibration from what ranks observed, and predicts plans
with them. `choose` takes the plans worth a trial from the ranking, `neighbours` those next to a plan that won.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ddpexec.tuning.observation import Observed, ObservedJob, RankSteps, Seconds
from ddpexec.tuning.plan import DDP, Groups, TrialPlan
from ddpexec.tuning.wires import Wire, wire_of
from ddpsim.bucketing import BucketCaps
from ddpsim.bucketing.plan import custom_plan
from ddpsim.collectives.calibration import Calibration, Curve, CurvePoint
from ddpsim.common.errors import InputError
from ddpsim.common.units import MIB
from ddpsim.explaining.machine import TracedMachine, machine_of
from ddpsim.explaining.predicted import with_costs
from ddpsim.planning.best_buckets import CAPS_MB, pipeline_plan
from ddpsim.planning.worth import is_list_worth_it, may_gain
from ddpsim.prediction.answers import Answers
from ddpsim.prediction.predict import gain_band, with_band
from ddpsim.prediction.prediction import Prediction
from ddpsim.schedules.schemes import WITHOUT_BUCKETS
from ddpsim.simulation.job import Job
from ddpsim.simulation.jobs.simulated import Options
from ddpsim.simulation.jobs.torch_line import caps_giving
from ddpsim.simulation.scheduling import schedule_of
from ddpsim.topology.processes import lab_topology
from ddpsim.workload import Phase, Workload
from ddpsim.workload.profile import ForwardUse

TRIED = 4
"""Plans that are tried beside the present one, before neighbours of one that wins."""
NEAR = 0.04
"""Share of the step by which a neighbour may be predicted slower than the best and be tried: predictions of single caps
are off by that much from each other (`python -m studies.tuning`)."""


def choose(ranking: CapRanking, present: TrialPlan) -> list[Candidate]:
    """Return the plans worth a trial, the best predicted first: those whose band reaches a gain of 1 %.

    Tried are the best two, and by DDP the best with more buckets than the present plan and with fewer: what a
    prediction has wrong of latency or of bandwidth moves all caps of one side.
    """
    others = [each for each in ranking.candidates if each.plan.key != present.key]
    by_ddp = [each for each in others if each.plan.scheme == DDP]
    smaller = [each for each in by_ddp if len(each.groups) > len(present.groups)]
    larger = [each for each in by_ddp if len(each.groups) < len(present.groups)]
    picked = (*others[:2], *smaller[:1], *larger[:1])
    worth = {each.plan.key: each for each in picked if may_gain(each.gain_high or 0.0)}
    return sorted(worth.values(), key=lambda each: -each.gain)[:TRIED]


def neighbours(ranking: CapRanking, winner: Candidate, tried: Collection[tuple[str, Groups]]) -> list[Candidate]:
    """Return the plans next to one that has won, of its scheme with more buckets and with fewer, that were not tried.

    Args:
        tried: the keys of those that were.
    """
    best, scheme = max(each.gain for each in ranking.candidates), winner.plan.scheme
    near = [each for each in ranking.candidates if each.gain >= best - NEAR and each.plan.scheme == scheme]
    count = len(winner.groups)
    more = sorted((each for each in near if len(each.groups) > count), key=lambda each: len(each.groups))
    fewer = sorted((each for each in near if len(each.groups) < count), key=lambda each: -len(each.groups))
    untried = [each for each in (*more[:1], *fewer[:1]) if each.plan.key not in tried]
    return sorted(untried, key=lambda each: -each.gain)


CAPS_OFF = 0.02
"""Share of a step within which nine of ten predicted differences between a plan near the best and the default come out,
whatever the constants leave open; `python -m studies.tuning` prints it of its sweeps."""
BANDED = 0.05
"""Share of the step by which a plan may be predicted slower than the best and have its band told: beyond, no trial."""
_LEAST_RATE = 1e3
"""Bytes a second of a network that carries nothing to speak of: a rate that a topology can have."""
_MOST_RATE = 1e12
_NO_STEP_S = 1e-9
"""Of a step around the ring: what a message takes without bytes is in its latency."""
_POINTS = 24
"""Sizes at which the fitted line is told to the simulator, from one byte a rank to all gradients."""
SCHEMES_ON = 3
"""Sets of buckets, the best of DDP's, on which schemes are predicted. By hand: a prediction takes a tenth of a second,
and is waited for in steps."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A plan with what it is predicted to be worth.

    Attributes:
        plan: a cap, a list of caps, or a scheme.
        step_s: predicted.
        gain: share of the present step that it saves; with its band where that was told.
    """

    plan: TrialPlan
    step_s: float
    gain: float
    gain_low: float | None = None
    gain_high: float | None = None

    @property
    def groups(self) -> Groups:
        """Its buckets."""
        return self.plan.groups


@dataclass(frozen=True, slots=True)
class CapRanking:
    """What was predicted.

    Attributes:
        step_s: of the present plan, as predicted.
        measured_s: as it was observed.
        wire: of the collectives seen.
        candidates: the best first.
    """

    step_s: float
    measured_s: float
    wire: Wire
    candidates: tuple[Candidate, ...]


PredictedPlan = tuple[TrialPlan, Prediction]


def rank_caps(observed: Observed) -> CapRanking:
    """Return every cap, and scheme where they may be tried, ranked by predicted step; near the best, the gain's band.

    A gain is as far off as the present step is predicted wrong and as plans are from each other, beside what the
    constants leave open.

    Raises:
        InputError: nothing was sent, or the step cannot be predicted.
    """
    job, present = observed.job, observed.plans[0]
    wire = wire_of(observed.plans, observed.small)
    if wire is None:
        raise InputError("no bucket was seen on its way", place="tuning", remedy="train with more than one rank")
    workload = workload_of(job, present)
    machine = _machine(job, wire, workload)
    calibration = with_costs(machine.calibration, machine.library(job.backend), _costs(job, present))
    flags = dict(job.flags)
    options = Options(
        backend=job.backend,
        broadcast_buffers=True,
        gradient_as_bucket_view=flags.get("gradient_as_bucket_view", False),
        find_unused_parameters=flags.get("find_unused_parameters", False) and not flags.get("static_graph", False),
        keep_pace=True,
    )

    # A whole scan is of one job with other buckets: what does not rest on these is found once.
    answers = Answers()

    def predicted(chosen: Options) -> Prediction:
        question = Job(workload, machine.topology, machine.nodes, machine.gpus_per_node, chosen, calibration)
        return answers.predict(question, local_s=0.0, band=False)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        seen_by = replace(options, plan=custom_plan(job.parameters, present[0].groups))
        seen = predicted(seen_by)
        now = seen if job.scheme == DDP else predicted(replace(seen_by, scheme=job.scheme))
        plans = _predict_under_ddp(seen, options, job, calibration, predicted)
        plans += _predict_schemes(plans, options, job, calibration, predicted)
        ranked = sorted(plans, key=lambda each: each[1].iteration_s)
        candidates = [
            Candidate(plan, each.iteration_s, (now.iteration_s - each.iteration_s) / observed.step_s)
            for plan, each in ranked
        ]
        # Only near the best is a band worth its time. To what the constants leave open comes what the present step is
        # predicted wrong by, and what plans differ by from each other: independent, so their squares add.
        sure, missed = with_band(now), math.hypot(seen.iteration_s / observed.step_s - 1, CAPS_OFF)
        for place, (candidate, (_, each)) in enumerate(zip(candidates, ranked, strict=True)):
            if candidate.gain >= candidates[0].gain - BANDED:
                low, high = (side * now.iteration_s / observed.step_s for side in gain_band(sure, with_band(each)))
                below, above = math.hypot(candidate.gain - low, missed), math.hypot(high - candidate.gain, missed)
                candidates[place] = replace(
                    candidate, gain_low=candidate.gain - below, gain_high=candidate.gain + above
                )
    return CapRanking(now.iteration_s, observed.step_s, wire, tuple(candidates))


def _predict_under_ddp(
    now: Prediction,
    options: Options,
    job: ObservedJob,
    calibration: Calibration,
    predicted: Callable[[Options], Prediction],
) -> list[PredictedPlan]:
    """Return DDP under torch's default, each cap and the list of caps that the simulator thinks best."""
    total_mb = now.workload.gradient_bytes / MIB
    sizes = [*(cap for cap in CAPS_MB if cap < total_mb), float(np.ceil(total_mb))]
    # Below a few MiB in all, caps between the gradients' own sizes are what is left to choose.
    sizes += [round(total_mb * share, 3) for share in (0.1, 0.25, 0.5) if total_mb * share < CAPS_MB[0]]
    caps = [BucketCaps(), *(BucketCaps(bucket_cap_mb=size) for size in sorted(set(sizes)))]
    by_groups: dict[Groups, PredictedPlan] = {}

    def look_at(each: BucketCaps, least_s: float | None = None) -> Prediction:
        prediction = predicted(replace(options, caps=each))
        plan = TrialPlan(each, tuple(tuple(group) for group in prediction.plan.groups()))
        if least_s is None or is_list_worth_it(prediction.iteration_s, least_s, default.iteration_s):
            by_groups.setdefault(plan.groups, (plan, prediction))
        return prediction

    default, *single = map(look_at, caps)
    listed = pipeline_plan(now, calibration)
    if listed is not None:
        caps_of_list = caps_giving(listed, job.parameters, find_unused=options.find_unused_parameters)
        if caps_of_list is not None and caps_of_list not in caps:
            look_at(caps_of_list, min(each.iteration_s for each in (default, *single)))
    return list(by_groups.values())


def _predict_schemes(
    by_ddp: Sequence[PredictedPlan],
    options: Options,
    job: ObservedJob,
    calibration: Calibration,
    predicted: Callable[[Options], Prediction],
) -> list[PredictedPlan]:
    """Return other schemes on the buckets that are best under DDP, with the schedules that they were predicted with."""
    best = sorted(by_ddp, key=lambda each: each[1].iteration_s)[:SCHEMES_ON]
    plans: list[PredictedPlan] = []
    for scheme in job.schemes:
        if scheme == DDP:
            continue
        for plan, of_ddp in best[:1] if scheme in WITHOUT_BUCKETS else best:
            with contextlib.suppress(InputError):  # an option that this scheme does not go with
                prediction = predicted(replace(options, plan=custom_plan(job.parameters, plan.groups), scheme=scheme))
                schedule = schedule_of(
                    prediction.options, prediction.workload, of_ddp.plan, prediction.placement, job.backend, calibration
                )
                plans.append((replace(plan, schedule=schedule), prediction))
    return plans


def workload_of(job: ObservedJob, ranks: Sequence[RankSteps]) -> Workload:
    """Return the usual step of all ranks: each gradient when the last rank has it, the median over steps.

    A collective begins with the last rank: where ranks are not alike, what counts of each gradient is the latest.
    """
    steps = min(len(rank.forward_s) for rank in ranks)

    def phase(host: str, device: str) -> Phase:
        both = [np.max([getattr(rank, name)[:steps] for rank in ranks], axis=0) for name in (host, device)]
        host_s, device_s = (np.array([float(np.median(each))]) for each in both)
        return Phase(np.maximum(host_s, 0.0), np.maximum(device_s, 0.0))

    forward = phase("forward_s", "forward_device_s")
    backward = phase("backward_s", "backward_device_s")

    def gradients(name: str, forwards: str, forward_s: float) -> Seconds:
        moments = np.stack([getattr(r, name)[:steps] + getattr(r, forwards)[:steps, None] for r in ranks])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a parameter without a gradient has none anywhere
            latest = np.nanmedian(np.nanmax(moments, axis=0), axis=0)
        since_forward: Seconds = np.maximum(latest - forward_s, 0.0)[None, :]
        return since_forward

    hook_s = gradients("hook_s", "forward_s", float(forward.host_s[0]))
    ready_s = gradients("ready_s", "forward_device_s", float(forward.device_s[0]))
    return Workload(
        name="observed",
        forward_use_s=_uses(ranks),
        device=job.device,
        precision="fp32",
        batch_size=1,
        threads=1 if job.device == "cpu" else None,
        estimated=False,
        parameters=job.parameters,
        frozen=job.frozen,
        buffers=(),
        forward=forward,
        backward=Phase(
            np.maximum(backward.host_s, np.nanmax(hook_s)), np.maximum(backward.device_s, np.nanmax(ready_s))
        ),
        optimizer=phase("optimizer_s", "optimizer_device_s"),
        gradient_hook_s=hook_s,
        gradient_ready_s=ready_s,
    )


def _uses(ranks: Sequence[RankSteps]) -> ForwardUse | None:
    """Return when forward first uses each parameter, the median of ranks and steps; None where it was not observed."""
    if any(rank.use_s is None or rank.use_device_s is None for rank in ranks):
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a parameter that forward uses nowhere
        host_s = np.nanmedian(np.concatenate([rank.use_s for rank in ranks]), axis=0)
        device_s = np.nanmedian(np.concatenate([rank.use_device_s for rank in ranks]), axis=0)
    return ForwardUse(host_s, device_s)


def _costs(job: ObservedJob, ranks: Sequence[RankSteps]) -> dict[str, float]:
    """Return DDP's own host costs as stamped: a hook without its copy, and what a launch adds to one."""
    plain_s = float(np.median([rank.plain_hook_s for rank in ranks]))
    launch_s = float(np.median([rank.launching_hook_s for rank in ranks])) - plain_s
    if job.device == "cpu":
        bytes_each = sum(each.size_bytes for each in job.parameters) / len(job.parameters)
        plain_s -= bytes_each / Calibration.priors(job.backend)[f"{job.backend}.ddp.copy_Bps"]
    return {"hook_s": max(0.0, plain_s), "launch_s": max(0.0, launch_s)}


def _machine(job: ObservedJob, wire: Wire, workload: Workload) -> TracedMachine:
    """Return a network whose allreduces take what was seen: one port a rank on the CPU, the GPU's machine else."""
    sizes = np.unique(np.geomspace(64, max(workload.gradient_bytes, 128), _POINTS).astype(np.int64))
    times = {int(size): wire.time_s(int(size)) for size in sizes}
    points = tuple(CurvePoint(size, seconds) for size, seconds in sorted(times.items()) if seconds > 0)
    if job.device != "cpu":
        return machine_of(
            job.world_size, job.device, [CurvePoint(*each) for each in sorted(times.items())], job.backend
        )
    share = 2 * (job.world_size - 1) / job.world_size
    # Several under way may carry more than one by itself: the link has what all do, sums and threads what one does.
    alone = share / wire.per_byte_s if wire.per_byte_s > 0 else _MOST_RATE
    rate = float(np.clip(alone * wire.together, _LEAST_RATE, _MOST_RATE))
    known = lab_topology(job.world_size, rate, name="observed")
    curve = Curve(known.fingerprint(), job.world_size, 1, points)
    calibration = replace(Calibration.priors(job.backend), curves=(curve,))
    if job.backend == "gloo":
        calibration = _fit_calibration(calibration, wire.latency_s, alone / 2)
    return TracedMachine(known, job.world_size, 1, calibration)


def _fit_calibration(calibration: Calibration, latency_s: float, summed: float) -> Calibration:
    """Return gloo's constants that give a message its latency before its bytes, when it takes no link from others.

    The curve alone would have a longer latency than the constants' take the links for as long.

    Args:
        summed: bytes a second that one message's sums keep up with.
    """
    values = {
        "gloo.launch_s": latency_s,
        "gloo.step_s": _NO_STEP_S,
        "gloo.efficiency.network": 1.0,
        "gloo.reduce.bandwidth": float(np.clip(summed, _LEAST_RATE, _MOST_RATE)),
    }
    constants = {name: replace(calibration.constants[name], value=value) for name, value in values.items()}
    return replace(calibration, constants={**calibration.constants, **constants})
