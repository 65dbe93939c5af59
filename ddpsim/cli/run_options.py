"""Options of simulated jobs that `predict`, `sweep` and `plan` share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, cast

import typer

from ddpsim.cli.job_options import JobOptions
from ddpsim.cli.options import PlanOptions

if TYPE_CHECKING:
    from ddpsim.simulation import Options
    from ddpsim.workload import Workload


@dataclass(frozen=True, slots=True)
class RunOptions(JobOptions):
    """How the job runs, and how it is simulated."""

    algorithm: Annotated[str, typer.Option(metavar="auto|ring|tree|...", help="Allreduce algorithm.")] = "auto"
    fidelity: Annotated[str, typer.Option(metavar="flow|steps|closed", help="Detail of the network simulation.")] = (
        "flow"
    )
    scale_host: Annotated[float, typer.Option(metavar="F", help="Factor on host time, of a GPU's workload.")] = 1.0
    iterations: Annotated[
        int | None,
        typer.Option(metavar="N", help="Simulated iterations that count. [20; fewer where all are alike]"),
    ] = None

    def options(self, plan: PlanOptions, workload: Workload) -> Options:
        """Return the options of one simulation.

        Raises:
            InputError: options out of range or in contradiction.
        """
        from ddpsim.simulation import Options

        made = self.make(
            Options,
            plan,
            caps=plan.caps(),
            plan=plan.plan_of(workload.parameters),
            algorithm=self.algorithm,
            fidelity=self.fidelity,
            scale_host=self.scale_host,
            iterations=self.iterations,
        )
        return cast("Options", made)
