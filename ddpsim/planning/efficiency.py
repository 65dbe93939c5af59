"""The scaling efficiency with its band: what makes one rank alone slower too does not lower it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from functools import lru_cache

from ddpsim.bucketing import BucketCaps
from ddpsim.prediction.doubts import join
from ddpsim.prediction.predict import local_period_s
from ddpsim.prediction.prediction import Band, Prediction
from ddpsim.simulation import Options
from ddpsim.simulation.jobs.job_options import RECORDED_INPUT
from ddpsim.workload import Workload


def efficiency_of(prediction: Prediction) -> Band:
    """Return share of one rank's speed without DDP that each rank keeps, every doubt drawn for both."""
    middle = prediction.scaling_efficiency
    effects = []
    for ends in prediction.ends:
        alone = [_local_s(prediction, *pair, load) for pair, load in zip(ends.factors, ends.loads, strict=True)]
        shares = [local_s / step_s for local_s, step_s in zip(alone, ends.steps_s, strict=True)]
        effects.append(join.effect(ends, middle, shares))
    low, high = join.band(middle, effects)
    return middle, max(low, 0.0), min(high, max(1.0, middle))


def _local_s(prediction: Prediction, compute: float, host: float, load: float) -> float:
    """Return one rank's period without DDP, with these factors on its device's, its host's and its loader's time."""
    if compute == host == load == 1.0:
        return prediction.local_s
    options, workload = prediction.options, prediction.workload
    if load != 1 and (stage := options.input_of(workload)) is not None:
        workload = replace(workload, input_stage=stage.scale(load))
        options = replace(options, input_stage=RECORDED_INPUT)
    scaled = replace(options, scale_compute=options.scale_compute * compute, scale_host=options.scale_host * host)
    return local_s(workload, scaled)


def local_s(workload: Workload, options: Options) -> float:
    """Return one rank's period without DDP; each is found once in a process, for machines and node counts share it."""
    return _find_once(_Once(_digest(workload, options), workload, options))


@dataclass(frozen=True, slots=True)
class _Once:
    key: bytes
    workload: Workload = field(compare=False)
    options: Options = field(compare=False)


@lru_cache(maxsize=4096)
def _find_once(what: _Once) -> float:
    return local_period_s(what.workload, what.options)


def _digest(workload: Workload, options: Options) -> bytes:
    """Return what tells apart workloads and options that may differ in the period."""
    phases = (workload.forward, workload.backward, workload.optimizer)
    arrays = [each for phase in phases for each in (phase.host_s, phase.device_s)]
    arrays += [workload.gradient_hook_s, workload.gradient_ready_s]
    told = hashlib.blake2b(b"".join(array.tobytes() for array in arrays))
    named = (
        workload.name,
        workload.device_label,
        workload.synchronises,
        workload.input_stage,
        replace(options, plan=None, caps=BucketCaps()),
    )
    told.update(repr(named).encode())
    return told.digest()
