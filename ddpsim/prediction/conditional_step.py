"""The step under a condition that no file of a machine tells, as a second band, and without the job beside.

Whether peer-to-peer works over PCIe is a matter of a switch's settings (ACS), a hypervisor or the kernel; how fast
cards reach host memory, of containers and virtual machines too. One band that held both cases would say nothing of
either.
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
"""Share of a step from which on the other case is worth a word."""


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
        said = {"condition": self.condition, "setting": self.setting}
        return {**said, "step_s": step_s, "step_low_s": low_s, "step_high_s": high_s}


def predict_other_reach(prediction: Prediction) -> ConditionalStep | None:
    """Return the step where cards reach each other the other way; None where that is known, or changes nothing.

    It is known where NVLinks join them, where their driver or the machine's file says, and where a calibration measured
    the machine.
    """
    placement = prediction.placement
    found = None if _is_known(prediction) else find_other_reach(placement)
    if found is None:
        return None
    condition, setting, changed = found
    gpus, options = placement.all_gpus_per_node, prediction.options
    job = Job(prediction.workload, changed, prediction.nodes, gpus, options, prediction.calibration)
    step_s = predict(job, local_s=prediction.local_s).step_s
    moved = abs(step_s[0] / prediction.step_s[0] - 1)
    return ConditionalStep(condition, setting, step_s) if moved >= _MATTERS else None


def predict_slow_host(prediction: Prediction) -> ConditionalStep | None:
    """Return the step where host memory is as slow as on the slowest published machine; None where none is used.

    A calibration that measured the machine knows it.
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
    """A step beside another job, and without it.

    Attributes:
        workload: of the other job.
        nodes: of the machine, that it has.
        alone_s: the step of the optimizer of the job asked about, with the fabric to itself.
        other_s: what an optimizer's step of the other took meanwhile; None where it ended none.
    """

    workload: str
    nodes: tuple[int, ...]
    alone_s: float
    other_s: float | None

    @classmethod
    def of(cls, prediction: Prediction) -> StepBeside | None:
        """Return what the job beside costs the step of `prediction`; None where there is none."""
        asked, seen = prediction.options.beside, prediction.summarised_trace.beside
        if asked is None or seen is None:
            return None
        other_s = None if seen.iteration_s is None else asked.job.accumulate * seen.iteration_s
        return cls(seen.workload, seen.nodes, without_beside(prediction).step_s[0], other_s)

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
