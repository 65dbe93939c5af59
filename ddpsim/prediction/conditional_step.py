"""The step under another condition than the one predicted, each with a band of its own.

Conditions: peer-to-peer where the prediction has none, or none where it has; a slow host memory; no other job on the
network.

Whether peer-to-peer works over PCIe is a matter of a switch's settings (ACS), a hypervisor or the kernel; how fast
cards reach host memory, of containers and virtual machines too. No file of a machine states either, and one band that
held both cases would say nothing of either.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

from ddpsim.collectives.nccl.paths_taken import find_other_reach
from ddpsim.common.units import format_count, format_time
from ddpsim.prediction.doubts.collectives import THROUGH_HOST, covers, family
from ddpsim.prediction.doubts.spreads import SLOW_HOST, SLOW_HOST_MEDIAN
from ddpsim.prediction.periods import periods_under
from ddpsim.prediction.predict import predict, without_beside
from ddpsim.prediction.prediction import Band, Prediction
from ddpsim.simulation.communication import Assumptions
from ddpsim.simulation.job import Job

_MATTERS = 0.01
"""Share of a step from which on the other case is reported."""


@dataclass(frozen=True, slots=True)
class ConditionalStep:
    """A step under another condition than the one predicted.

    Attributes:
        condition: in words, as in "if peer-to-peer does not work".
        setting: what brings it about.
        step_s: the step of the optimizer, with its band.
    """

    condition: str
    setting: str
    step_s: Band

    def document(self) -> dict[str, object]:
        """Return it as JSON values."""
        step_s, low_s, high_s = self.step_s
        words = {"condition": self.condition, "setting": self.setting}
        return {**words, "step_s": step_s, "step_low_s": low_s, "step_high_s": high_s}


def predict_other_reach(prediction: Prediction) -> ConditionalStep | None:
    """Return the step with peer-to-peer where the prediction has none, or without it where it has.

    None where the way is known, or the step is the same: it is known where NVLinks join the cards, where their driver
    or the machine's file says so, and where a calibration measured the machine.
    """
    placement = prediction.placement
    reach = None if _is_known(prediction) else find_other_reach(placement)
    if reach is None:
        return None
    condition, setting, changed = reach
    gpus, options = placement.all_gpus_per_node, prediction.options
    job = Job(prediction.workload, changed, prediction.nodes, gpus, options, prediction.calibration)
    step_s = predict(job, local_s=prediction.local_s).step_s
    moved = abs(step_s[0] / prediction.step_s[0] - 1)
    return ConditionalStep(condition, setting, step_s) if moved >= _MATTERS else None


def predict_slow_host(prediction: Prediction) -> ConditionalStep | None:
    """Return the step where host memory is as slow as on the slowest published machine.

    None where no collective passes through it, and where a calibration measured the machine.
    """
    placement = prediction.placement
    if _is_known(prediction) or placement.world_size == 1 or placement.nodes > 1:
        return None
    if family(placement, "nccl") != THROUGH_HOST:
        return None
    factors = [math.exp(end) for end in (SLOW_HOST_MEDIAN, SLOW_HOST.low, SLOW_HOST.high)]
    assumed = [Assumptions(prediction.calibration, wire_factor=partial(_constant, factor)) for factor in factors]
    accumulate = prediction.options.accumulate
    middle, low, high = (each.iteration_s * accumulate for each in periods_under(prediction, assumed, None))
    condition = "if allreduces take 4 to 7 times as long, as measured in containers at one site"
    return ConditionalStep(condition, "GPUs in containers (Docker, Kubernetes)", (middle, low, high))


def _constant(factor: float, size_bytes: int) -> float:
    return factor


def _is_known(prediction: Prediction) -> bool:
    """Whether nothing of how NCCL gets between its GPUs is in doubt: it is not NCCL, or was measured there."""
    options = prediction.options
    backend = options.backend_for(prediction.workload)
    return backend != "nccl" or options.comm != "real" or covers(prediction.calibration, prediction.placement, backend)


@dataclass(frozen=True, slots=True)
class StepBeside:
    """A step while another job uses the same network, and without that job.

    Attributes:
        workload: of the other job.
        nodes: of the machine, that it has.
        alone_s: the step of the optimizer of the predicted job, with the fabric to itself.
        other_s: what an optimizer's step of the other took meanwhile; None where it ended none.
    """

    workload: str
    nodes: tuple[int, ...]
    alone_s: float
    other_s: float | None

    @classmethod
    def of(cls, prediction: Prediction) -> StepBeside | None:
        """Return what the job beside costs the step of `prediction`; None where there is none."""
        other, traced = prediction.options.beside, prediction.summarised_trace.beside
        if other is None or traced is None:
            return None
        other_s = None if traced.iteration_s is None else other.job.accumulate * traced.iteration_s
        return cls(traced.workload, traced.nodes, without_beside(prediction).step_s[0], other_s)

    def document(self) -> dict[str, object]:
        """Return it as JSON values."""
        return {
            "workload": self.workload,
            "nodes": list(self.nodes),
            "alone_step_s": self.alone_s,
            "other_step_s": self.other_s,
        }

    def text(self) -> str:
        """Return it as a line."""
        other = "" if self.other_s is None else f", whose step takes {format_time(self.other_s)} meanwhile"
        where = f"{format_count(len(self.nodes), 'node')} ({_ranges(self.nodes)})"
        return f"beside {self.workload} on {where}{other}; on an otherwise idle network {format_time(self.alone_s)}"


def _ranges(numbers: tuple[int, ...]) -> str:
    """Return ascending numbers as a person lists them.

    >>> _ranges((4, 5, 6, 9))
    '4 to 6, 9'
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs)
