"""Options on the job that `predict`, `sweep` and `plan` share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from ddpsim.cli.options import PlanOptions
from ddpsim.cli.values import stragglers

if TYPE_CHECKING:
    from ddpsim.collectives.calibration import Calibration
    from ddpsim.simulation import Options
    from ddpsim.workload import Workload


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How the job runs."""

    backend: Annotated[
        str | None,
        typer.Option(metavar="nccl|gloo", help="Process group backend. [nccl for a GPU's workload, gloo for a CPU's]"),
    ] = None
    algorithm: Annotated[str, typer.Option(metavar="auto|ring|tree|...", help="Allreduce algorithm.")] = "auto"
    fidelity: Annotated[str, typer.Option(metavar="flow|steps|closed", help="Detail of the network simulation.")] = (
        "flow"
    )
    no_sync_every: Annotated[
        int, typer.Option("--no-sync-every", metavar="K", help="Reduce gradients in every K-th iteration only.")
    ] = 1
    gradient_as_bucket_view: Annotated[
        bool,
        typer.Option("--gradient-as-bucket-view", help="Gradients live in their bucket; no copy out."),
    ] = False
    no_broadcast_buffers: Annotated[
        bool, typer.Option("--no-broadcast-buffers", help="Do not broadcast rank 0's buffers.")
    ] = False
    process_groups: Annotated[int, typer.Option(metavar="K", help="Round-robin process groups.")] = 1
    straggler: Annotated[
        list[str] | None,
        typer.Option(metavar="RANK:F", help="Rank and factor on its compute time; may be repeated."),
    ] = None
    comm: Annotated[
        str,
        typer.Option(metavar="real|noop", help="noop: hooks and copies without communication."),
    ] = "real"
    scale_compute: Annotated[float, typer.Option(metavar="F", help="Factor on device time; 0.5 is twice as fast.")] = (
        1.0
    )
    scale_host: Annotated[float, typer.Option(metavar="F", help="Factor on host time.")] = 1.0
    iterations: Annotated[
        int | None,
        typer.Option(metavar="N", help="Simulated iterations that count. [20; fewer where all are alike]"),
    ] = None
    seed: Annotated[int, typer.Option(metavar="S", help="Seed of the draw of recorded iterations.")] = 0
    calibration: Annotated[str | None, typer.Option(metavar="C", help="Calibration file of `ddpsim calibrate`.")] = None

    def calibration_in_force(self) -> Calibration | None:
        """Return the calibration that --calibration names; None without one."""
        from ddpsim.simulation.costs import load_calibration

        return None if self.calibration is None else load_calibration(self.calibration)

    def options(self, plan: PlanOptions, workload: Workload) -> Options:
        """Return the options of one simulation.

        Raises:
            InputError: options out of range or in contradiction.
        """
        from ddpsim.simulation import Options

        return Options(
            caps=plan.caps(),
            plan=plan.plan_of(workload.parameters),
            assignment=plan.assignment,
            backend=self.backend,
            algorithm=self.algorithm,
            fidelity=self.fidelity,
            no_sync_every=self.no_sync_every,
            find_unused_parameters=plan.find_unused_parameters,
            gradient_as_bucket_view=self.gradient_as_bucket_view,
            broadcast_buffers=not self.no_broadcast_buffers,
            process_groups=self.process_groups,
            stragglers=stragglers(self.straggler),
            comm=self.comm,
            scale_compute=self.scale_compute,
            scale_host=self.scale_host,
            iterations=self.iterations,
            seed=self.seed,
        )
