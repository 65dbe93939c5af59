"""What another job on the same fabric costs a step, and that job."""

from __future__ import annotations

from dataclasses import dataclass

from ddpsim.prediction.predict import without_beside
from ddpsim.prediction.prediction import Prediction
from ddpsim.units import format_count, format_time


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
