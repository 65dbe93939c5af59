"""Options on bucketing that `buckets`, `predict`, `sweep` and `plan` share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from ddpsim.cli.values import number, numbers
from ddpsim.errors import InputError

if TYPE_CHECKING:
    from ddpsim.bucketing import BucketCaps, BucketPlan, Parameter

WorkloadName = Annotated[
    str, typer.Option("--workload", metavar="W", help="Shipped workload, or a file; - is standard input.")
]
TopologyName = Annotated[
    str, typer.Option("--topology", metavar="T", help="Shipped machine, or a YAML file; - is standard input.")
]


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """Which gradients share a bucket."""

    bucket_cap_mb: Annotated[
        str | None,
        typer.Option(
            metavar="C", help="One cap for every bucket, MiB; 0: a bucket a gradient. [torch: first 1, then 25]"
        ),
    ] = None
    bucket_cap_mb_list: Annotated[
        str | None,
        typer.Option(metavar="1,25", help="Caps of the first, second, ... bucket; the last repeats."),
    ] = None
    first_bucket_mb: Annotated[
        str | None,
        typer.Option(metavar="M", help="Cap of the first bucket only, MiB; `plan` takes it with --bucket-cap-mb."),
    ] = None
    plan: Annotated[str | None, typer.Option(metavar="FILE", help="A plan file instead of caps.")] = None
    assignment: Annotated[
        str,
        typer.Option(
            metavar="rebuilt|initial|unused",
            help="torch's assignment: after its rebuild, of its first iteration, or of find_unused_parameters.",
        ),
    ] = "rebuilt"
    find_unused_parameters: Annotated[
        bool,
        typer.Option(
            "--find-unused-parameters",
            help="As torch's option: assignment `unused`, a search and a bitmap each iteration.",
        ),
    ] = False

    def caps(self) -> BucketCaps:
        """Return the cap options as torch takes them.

        Raises:
            PlanError, InputError: options that contradict each other, values that are no caps.
        """
        return self._with_cap(number(self.bucket_cap_mb, "--bucket-cap-mb", "25"))

    def sweep_caps(self) -> list[BucketCaps] | None:
        """Return the caps of `--bucket-cap-mb 1,5,25`, each with --first-bucket-mb; None without that option."""
        if self.bucket_cap_mb is None:
            return None
        return [self._with_cap(value) for value in numbers(self.bucket_cap_mb, "--bucket-cap-mb", "1,5,25")]

    def plan_of(self, parameters: tuple[Parameter, ...]) -> BucketPlan | None:
        """Return the plan in the file that --plan names; None without one."""
        from ddpsim.planning.plan_file import load_plan

        return None if self.plan is None else load_plan(self.plan, parameters)

    def _with_cap(self, bucket_cap_mb: float | None) -> BucketCaps:
        from ddpsim.bucketing import BucketCaps

        self._refuse_contradictions()
        caps = self.bucket_cap_mb_list
        return BucketCaps(
            bucket_cap_mb=bucket_cap_mb,
            first_bucket_mb=number(self.first_bucket_mb, "--first-bucket-mb", "1"),
            bucket_cap_mb_list=None if caps is None else tuple(numbers(caps, "--bucket-cap-mb-list", "1,25")),
        )

    def _refuse_contradictions(self) -> None:
        """Refuse two ways to say which buckets, and what a plan file, being whole, says by itself."""
        given = {
            "--bucket-cap-mb": self.bucket_cap_mb is not None,
            "--bucket-cap-mb-list": self.bucket_cap_mb_list is not None,
            "--plan": self.plan is not None,
            "--first-bucket-mb": self.plan is not None and self.first_bucket_mb is not None,
            f"--assignment {self.assignment}": self.plan is not None and self.assignment != "rebuilt",
        }
        both = [flag for flag, here in given.items() if here]
        if len(both) > 1:
            raise InputError(f"{' and '.join(both)} are both given", remedy="keep one")
