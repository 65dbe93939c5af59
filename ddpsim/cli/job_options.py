"""Options on the job that predictions and real runs share, written once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ddpsim.cli.options import PlanOptions
from ddpsim.cli.values import probabilities, stragglers

if TYPE_CHECKING:
    from ddpsim.job import Job


@dataclass(frozen=True, slots=True)
class JobOptions:
    """How the job runs."""

    backend: Annotated[
        str | None, typer.Option(metavar="nccl|gloo", help="Process group backend. [nccl on GPUs, gloo on CPUs]")
    ] = None
    no_sync_every: Annotated[int, typer.Option(metavar="K", help="Reduce gradients in every K-th iteration only.")] = 1
    gradient_as_bucket_view: Annotated[
        bool, typer.Option("--gradient-as-bucket-view", help="Gradients live in their bucket; no copy out.")
    ] = False
    no_broadcast_buffers: Annotated[
        bool, typer.Option("--no-broadcast-buffers", help="Do not broadcast rank 0's buffers before a forward.")
    ] = False
    process_groups: Annotated[int, typer.Option(metavar="K", help="Round-robin process groups.")] = 1
    straggler: Annotated[
        list[str] | None, typer.Option(metavar="RANK:F", help="Rank and factor on its compute time; may be repeated.")
    ] = None
    comm: Annotated[
        str, typer.Option(metavar="real|noop", help="noop: hooks and copies without communication, the floor.")
    ] = "real"
    compression: Annotated[
        str, typer.Option(metavar="SCHEME", help="none, fp16, bf16, powersgd:RANK, onebit or topk:DENSITY.")
    ] = "none"
    drop: Annotated[
        list[str] | None,
        typer.Option(metavar="LAYER:P", help="Leave a layer out of an iteration with probability P; may be repeated."),
    ] = None
    order: Annotated[
        str | None,
        typer.Option(
            metavar="never|once|drift",
            help="When buckets are rebuilt in arrival order; drift:TAU:EVERY looks every so many backwards. "
            "[as torch, and from the first iteration on]",
        ),
    ] = None
    predictor: Annotated[
        str, typer.Option(metavar="last|mean|exponential", help="With --order: which arrivals a rank expects.")
    ] = "last"
    consensus: Annotated[
        str, typer.Option(metavar="rank0|mean|slowest", help="With --order: whose expectation wins.")
    ] = "rank0"
    scale_compute: Annotated[
        float, typer.Option(metavar="F", help="Factor on device time; 0.5 is twice as fast, in predictions only.")
    ] = 1.0
    seed: Annotated[int, typer.Option(metavar="S", help="Of every draw.")] = 0

    def make(self, kind: type[Job], buckets: PlanOptions, /, **others: Any) -> Any:
        """Return these options as a `kind`, a `Job`, with what `others` says beside.

        Raises:
            InputError: options out of range or in contradiction.
        """
        return kind(
            assignment=buckets.assignment,
            backend=self.backend,
            no_sync_every=self.no_sync_every,
            find_unused_parameters=buckets.find_unused_parameters,
            gradient_as_bucket_view=self.gradient_as_bucket_view,
            broadcast_buffers=not self.no_broadcast_buffers,
            process_groups=self.process_groups,
            stragglers=stragglers(self.straggler),
            comm=self.comm,
            compression=self.compression,
            drop=probabilities(self.drop),
            order=self.order,
            predictor=self.predictor,
            consensus=self.consensus,
            scale_compute=self.scale_compute,
            seed=self.seed,
            **others,
        )
