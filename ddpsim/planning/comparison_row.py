"""One row of a comparison: a machine, a rate, a node count and a model, what it takes and what it costs.

`comparison_row` makes it; `efficiency_of` is the scaling efficiency with its band, in which what makes one rank alone
slower too lowers nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from ddpsim.bucketing import BucketCaps
from ddpsim.common.tables.cells import format_rate
from ddpsim.planning.bound import Bound, bound_of, describe_bound
from ddpsim.planning.prices import Price
from ddpsim.prediction.answers import Answers, name_job
from ddpsim.prediction.document import describe_row, flat
from ddpsim.prediction.doubts import join
from ddpsim.prediction.predict import local_period_s
from ddpsim.prediction.prediction import Band, Prediction
from ddpsim.simulation.job import Job
from ddpsim.simulation.jobs.job_options import RECORDED_INPUT
from ddpsim.simulation.jobs.simulated import Options
from ddpsim.workload import Workload

LabelledJob = tuple[Job, Mapping[str, Any]]
"""A job, and the fields of its row that say how it was asked for: `machine`, `model`, `link`, `link_rate`."""


@dataclass(frozen=True, slots=True)
class ComparisonRow:
    """One machine, link rate, node count, workload and bucket cap.

    Attributes:
        prediction: of its step, with its band.
        machine: as it was asked for.
        model: the workload as it was asked for, `resnet50`.
        link, link_rate: the link whose rate was set, and that rate in bytes per second; None where all are as declared.
        efficiency: share of one rank's speed without DDP that each keeps, with its band.
        bound: what binds the step, and which link its collectives.
        price: of one node; None where none was given.
        samples_per_epoch: None where it was not given.
        pareto: whether no other row of the model is both faster and cheaper.
    """

    prediction: Prediction
    machine: str
    model: str
    efficiency: Band
    bound: Bound
    link: str | None = None
    link_rate: float | None = None
    price: Price | None = None
    samples_per_epoch: float | None = None
    pareto: bool = False

    def __repr__(self) -> str:
        return f"<ComparisonRow: {self.prediction!r}, {self.samples_per_s[0]:.4g} samples/s>"

    @property
    def nodes(self) -> int:
        """How many nodes take part."""
        return self.prediction.nodes

    @property
    def ranks(self) -> int:
        """How many GPUs take part."""
        return self.prediction.placement.world_size

    @property
    def batch_size(self) -> int:
        """Samples a rank and step."""
        return self.prediction.workload.batch_size

    @property
    def step_s(self) -> Band:
        """The time between two steps of the optimizer with its band, in seconds."""
        return self.prediction.step_s

    @property
    def samples_per_s(self) -> Band:
        """Samples a second of all ranks that train, with their band."""
        return self.prediction.samples_per_s_band

    @property
    def fits(self) -> bool | None:
        """Whether it fits the GPUs' memory; None where that cannot be told."""
        memory = self.prediction.memory
        return None if memory is None else memory.fits

    @property
    def per_hour(self) -> float | None:
        """What an hour of all its nodes costs."""
        return None if self.price is None else self.price.per_hour * self.nodes

    @property
    def per_million_samples(self) -> Band | None:
        """What a million samples cost, with the step's band."""
        return self._cost(1e6)

    @property
    def per_epoch(self) -> Band | None:
        """What an epoch costs, with the step's band; None without a price or the samples of an epoch."""
        return None if self.samples_per_epoch is None else self._cost(self.samples_per_epoch)

    @property
    def epoch_s(self) -> Band | None:
        """Seconds of an epoch, with the step's band; None where its samples are not known."""
        return None if self.samples_per_epoch is None else self._seconds(self.samples_per_epoch)

    @property
    def rate(self) -> str | None:
        """The rate that was set, and of which link where that is no NIC, in words; None where all are as declared."""
        if self.link is None or self.link_rate is None:
            return None
        return ("" if self.link == "nic" else f"{self.link} ") + format_rate(self.link_rate)

    def record(self) -> dict[str, object]:
        """Return the row of the `compare` document, flat: what it costs stands under `cost_per_hour` and so on."""
        return flat(self._with_costs())

    def describe(self) -> dict[str, object]:
        """Return the row as tables show it: as `record`, the rate that was set, cap and what binds in words."""
        cap = self.prediction.options.caps.bucket_cap_mb
        return {
            **describe_row(self._with_costs()),
            "rate": self.rate,
            "cap": "default" if cap is None else f"{cap:g}",
            "binds": describe_bound(self.bound, self.prediction.workload),
        }

    def _with_costs(self) -> dict[str, object]:
        return self.document() | {f"cost_{key}": value for key, value in (self._cost_document() or {}).items()}

    def document(self) -> dict[str, object]:
        """Return one row of the `compare` document."""
        p = self.prediction
        _, low, high = self.samples_per_s
        efficiency, efficiency_low, efficiency_high = self.efficiency
        epoch = self.epoch_s or (None, None, None)
        return {
            "machine": self.machine,
            "link": self.link,
            "link_rate_Bps": self.link_rate,
            "gpus_per_node": p.placement.gpus_per_node,
            "model": self.model,
            "precision": p.workload.precision,
            "batch_size": self.batch_size,
            "bucket_cap_mb": p.options.caps.bucket_cap_mb,
            **p.step_document(),
            "samples_per_s_low": low,
            "samples_per_s_high": high,
            "scaling_efficiency": efficiency,
            "scaling_efficiency_low": efficiency_low,
            "scaling_efficiency_high": efficiency_high,
            **self.bound.document(),
            "fits": self.fits,
            "epoch_s": epoch[0],
            "epoch_low_s": epoch[1],
            "epoch_high_s": epoch[2],
            "cost": self._cost_document(),
            "pareto": self.pareto,
        }

    def _cost_document(self) -> dict[str, object] | None:
        if self.price is None:
            return None
        costs: dict[str, object] = {**self.price.document(), "per_hour": self.per_hour}
        for name, band in (("per_million_samples", self.per_million_samples), ("per_epoch", self.per_epoch)):
            middle, low, high = band or (None, None, None)
            costs |= {name: middle, f"{name}_low": low, f"{name}_high": high}
        return costs

    def _seconds(self, samples: float) -> Band:
        middle, low, high = (samples / rate for rate in self.samples_per_s)
        return middle, high, low

    def _cost(self, samples: float) -> Band | None:
        if self.per_hour is None:
            return None
        middle, low, high = (seconds / 3600 * self.per_hour for seconds in self._seconds(samples))
        return middle, low, high


def comparison_row(answers: Answers, labelled: LabelledJob) -> ComparisonRow:
    """Return the row of a job, without what it costs."""
    job, labels = labelled
    prediction = answers.predict(job)
    efficiency: Band = answers.ask(Band, lambda: efficiency_of(prediction), job, "efficiency")
    bound = answers.ask(Bound, lambda: bound_of(prediction, job.calibration), job, "bound")
    return ComparisonRow(prediction, efficiency=efficiency, bound=bound, **labels)


def name_labelled(labelled: LabelledJob) -> str:
    """Return which job it is, in words."""
    job, labels = labelled
    return f"{labels['model']} on {name_job(job).replace(job.topology.name, labels['machine'], 1)}"


def efficiency_of(prediction: Prediction) -> Band:
    """Return the share of one rank's speed without DDP that each rank keeps, with its band.

    Each doubt is drawn for both: a GPU that is slower than estimated is as slow alone, and the efficiency changes by
    what that leaves. The step at the doubt's ends is known, one rank's period is simulated there.
    """
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
    """Return one rank's period without DDP, cached in the process: machines and node counts share it."""
    return _cached_local_s(_LocalKey(_digest(workload, options), workload, options))


@dataclass(frozen=True, slots=True)
class _LocalKey:
    """Hashed and compared by the digest alone: a workload has arrays."""

    key: bytes
    workload: Workload = field(compare=False)
    options: Options = field(compare=False)


@lru_cache(maxsize=4096)
def _cached_local_s(key: _LocalKey) -> float:
    return local_period_s(key.workload, key.options)


def _digest(workload: Workload, options: Options) -> bytes:
    """Return a digest of all of a workload and its options on which the period depends; buckets are no part of it."""
    phases = (workload.forward, workload.backward, workload.optimizer)
    arrays = [each for phase in phases for each in (phase.host_s, phase.device_s)]
    arrays += [workload.gradient_hook_s, workload.gradient_ready_s]
    digest = hashlib.blake2b(b"".join(array.tobytes() for array in arrays))
    rest = (
        workload.name,
        workload.device_label,
        workload.synchronises,
        workload.input_stage,
        replace(options, plan=None, caps=BucketCaps()),
    )
    digest.update(repr(rest).encode())
    return digest.digest()
