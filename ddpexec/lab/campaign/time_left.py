"""How long a campaign still takes: what its steps add up to, corrected by how long those done have taken."""

from __future__ import annotations

from collections.abc import Sequence

from ddpexec.lab.campaign import stages
from ddpexec.lab.campaign.spec import Configuration
from ddpexec.running.settings import DISCARDED
from ddpsim.workload.files import load_workload

START_S = 8.0
"""About what a run takes beside its steps, to weigh short steps against long ones; measured time corrects the sum."""


def least_step_s(configuration: Configuration) -> float | None:
    """Return what a step takes at least: one process's time or the wire's; None for a model that computes."""
    if configuration.run.workload is None:
        return None
    workload = stages.stretch_workload(configuration, load_workload(configuration.run.workload))
    phases = (workload.forward, workload.backward, workload.optimizer)
    computing_s = sum(float(phase.device_s.mean()) for phase in phases)
    if configuration.run.options["compression"] != "none" or configuration.run.options["comm"] == "noop":
        return computing_s
    return max(computing_s, stages.wire_s(configuration, workload))


class TimeLeft:
    """Says how long the configurations that are left of a campaign will take.

    Args:
        configurations: those to be run.
        longest_step_s: what a model's step is taken for until it has run.
    """

    def __init__(self, configurations: Sequence[Configuration], longest_step_s: float) -> None:
        self._expected = {each.name: self._run_s(each, longest_step_s) for each in configurations}
        self._taken_s = self._planned_s = 0.0

    def done(self, configuration: Configuration, seconds: float | None) -> None:
        """Note that `configuration` took `seconds`; None where it was found done, which says nothing of time."""
        planned_s = self._expected.pop(configuration.name)
        if seconds is not None:
            self._taken_s += seconds
            self._planned_s += planned_s

    @property
    def seconds(self) -> float:
        """What the configurations not noted will take."""
        factor = self._taken_s / self._planned_s if self._planned_s > 0 else 1.0
        return factor * sum(self._expected.values())

    @staticmethod
    def _run_s(configuration: Configuration, longest_step_s: float) -> float:
        step_s = least_step_s(configuration) or longest_step_s
        steps = DISCARDED + configuration.iterations * int(configuration.run.options["accumulate"])
        return configuration.repeats * (START_S + steps * step_s)


def format_spoken(seconds: float) -> str:
    """Return a duration as people say it: `40 s`, `12 min`, `2 h 5 min`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"
