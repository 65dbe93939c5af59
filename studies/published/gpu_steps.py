"""Published data-parallel steps of real GPUs, each beside its prediction and what simpler predictors say."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddpsim.collectives.calibration import Calibration
from ddpsim.collectives.execute import make_transport
from ddpsim.prediction.predict import predict
from ddpsim.prediction.prediction import Prediction
from ddpsim.simulation.ddp_costs import remove_overlap_costs
from ddpsim.simulation.job import Job
from studies.accuracy.systems import machine
from studies.published import gpu_systems
from studies.published.gpu_systems import Row, System, calibration_of, cases


@dataclass(frozen=True, slots=True)
class Judged:
    """A published step beside its prediction and what simpler predictors say.

    Attributes:
        system, dtype: of which table it is a row.
        row: of the CSV.
        measured_s, half_s: the step, and what rounding leaves open.
        one_s: as many steps of one GPU as the step has micro-batches.
        base_s, predicted_base_s: what the overhead is over, measured and predicted.
        predicted: one micro-batch of the step, in the mean.
        comm_s: the allreduce times of all its buckets, one after the other.
        hidden_s: what computing and communicating at once costs the predicted step.
    """

    system: System
    dtype: str
    row: Row
    measured_s: float
    half_s: float
    one_s: float
    base_s: float
    predicted_base_s: float
    predicted: Prediction
    comm_s: float
    hidden_s: float

    @property
    def label(self) -> tuple[str, ...]:
        """What names the row in its table."""
        return tuple(self.row[column] for column in self.system.label)

    @property
    def predicted_s(self) -> float:
        """The predicted step of the optimizer."""
        return _step_s(self.predicted)

    @property
    def band_s(self) -> tuple[float, float] | None:
        """The 80 % band of the step; None where it was not asked for."""
        if not self.predicted.ends:
            return None
        accumulate = self.predicted.options.accumulate
        return accumulate * self.predicted.low_s, accumulate * self.predicted.high_s

    @property
    def inside(self) -> bool:
        """Whether the measured step lies in the band, of a row that has one."""
        return self.band_s is not None and self.band_s[0] <= self.measured_s <= self.band_s[1]

    @property
    def overhead_s(self) -> float:
        """The measured overhead."""
        return self.measured_s - self.base_s

    @property
    def predicted_overhead_s(self) -> float:
        """The predicted overhead."""
        return self.predicted_s - self.predicted_base_s

    @property
    def cap_mb(self) -> float | None:
        """The row's cap in MiB, where it has one."""
        text = self.row.get(self.system.columns.get("cap", ""), "")
        return float(text) if text else None


def judged(system: System, *, band: bool = True, calibration: Calibration | None = None) -> Iterator[Judged]:
    """Yield each row of `system` beside its prediction.

    Args:
        band: whether to predict bands too.
        calibration: constants in place of the priors, for systems without a curve.
    """
    for dtype, row in cases(system):
        yield judge(system, dtype, row, band=band, calibration=calibration)


def judge(system: System, dtype: str, row: Row, *, band: bool = True, calibration: Calibration | None = None) -> Judged:
    """Return one row of `system` beside its prediction; arguments as those of `judged`."""
    options = gpu_systems.options(system, row)
    one_s = options.accumulate * gpu_systems.one_gpu_s(system, row)
    base_s = predicted_base_s = one_s
    in_force = calibration_of(system, row) or calibration
    banded = band and gpu_systems.matches(row, system.banded)
    predicted = prediction(system, dtype, row, band=banded, calibration=in_force)
    free = prediction(system, dtype, row, calibration=remove_overlap_costs("nccl", in_force))
    if system.over:
        base = gpu_systems.row_beside(system, row, system.over)
        base_s = gpu_systems.step_s(system, base)
        alone = calibration_of(system, base) or calibration
        predicted_base_s = _step_s(prediction(system, dtype, base, calibration=alone))
    transport = make_transport(predicted.placement, "nccl", in_force)
    comm_s = sum(transport.allreduce_s(bucket.size_bytes) for bucket in predicted.plan.buckets)
    if (schedule := predicted.trace.schedule) is not None:
        comm_s = sum(transport.time_s(message.op, message.size_bytes) for message in schedule)
    reductions = options.accumulate // options.sync_every
    return Judged(
        system, dtype, row, gpu_systems.step_s(system, row), gpu_systems.half_s(system, row), one_s, base_s,
        predicted_base_s, predicted, comm_s * reductions, max(_step_s(predicted) - _step_s(free), 0.0),
    )  # fmt: skip


def prediction(
    system: System, dtype: str, row: Row, *, calibration: Calibration | None, band: bool = False, local: bool = False
) -> Prediction:
    """Return what is predicted of `row`, by `calibration` or the priors.

    Args:
        local: whether to simulate one rank without communication too; else its step is said to be 1 s.
    """
    nodes, gpus = gpu_systems.place(system, row)
    return predict(
        Job(
            gpu_systems.workload(system, dtype, row),
            machine(system.machine),
            nodes=nodes,
            gpus_per_node=gpus,
            options=gpu_systems.options(system, row),
            calibration=calibration,
        ),
        band=band,
        local_s=None if local else 1.0,
    )


def _step_s(predicted: Prediction) -> float:
    return predicted.options.accumulate * predicted.iteration_s
