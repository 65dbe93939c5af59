"""What a user may ask of a real run."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from ddpexec.errors import OptionError
from ddpsim.bucketing import BucketCaps, BucketPlan, Parameter, plan_buckets
from ddpsim.bucketing.plan import ASSIGNMENTS

IMPLEMENTATIONS = ("ddpexec", "torch")
DISCARDED = 5
"""Iterations run first, in which buckets are rebuilt and caches filled, and not counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Options of one run; those that `ddpsim.simulation.Options` has too mean the same.

    Attributes:
        implementation: `ddpexec` or `torch`.
        iterations: that count, after `DISCARDED` others.
        batch_size: samples an iteration and rank; None is the model's own.
        timeout: of the process group: how long to wait for a rank that does not come.
        observe: take moments; without, only whole iterations are timed.

    Raises:
        OptionError: where an option is out of range or contradicts another; both are named.
    """

    implementation: str = "ddpexec"
    iterations: int = 20
    batch_size: int | None = None
    caps: BucketCaps = field(default_factory=BucketCaps)
    assignment: str = "rebuilt"
    backend: str | None = None
    no_sync_every: int = 1
    find_unused_parameters: bool = False
    gradient_as_bucket_view: bool = False
    broadcast_buffers: bool = True
    process_groups: int = 1
    stragglers: Mapping[int, float] = field(default_factory=dict)
    comm: str = "real"
    scale_compute: float = 1.0
    seed: int = 0
    timeout: timedelta = timedelta(minutes=5)
    observe: bool = True

    def __post_init__(self) -> None:
        _one_of("--impl", self.implementation, IMPLEMENTATIONS)
        _one_of("--assignment", self.assignment, ASSIGNMENTS)
        _one_of("--comm", self.comm, ("real", "noop"))
        counts = {"--iterations": self.iterations, "--no-sync-every": self.no_sync_every}
        for flag, count in {**counts, "--process-groups": self.process_groups}.items():
            if count < 1:
                raise OptionError(f"{count} is not a count", place=flag, remedy="give 1 or more")
        factors = {f"--straggler {rank}": factor for rank, factor in self.stragglers.items()}
        for flag, factor in {**factors, "--scale-compute": self.scale_compute}.items():
            if not 1 <= factor < float("inf"):
                remedy = "give 1 or more; a real device cannot be made faster, a prediction can"
                raise OptionError(f"{factor!r} is not a factor a run can have", place=flag, remedy=remedy)
        if self.implementation == "torch":
            self._check_torch()

    def slowness(self, rank: int) -> float:
        """Return the factor on `rank`'s computation."""
        return self.scale_compute * self.stragglers.get(rank, 1.0)

    def plan(self, parameters: tuple[Parameter, ...], given: BucketPlan | None) -> BucketPlan | None:
        """Return the fixed plan to run, or None where buckets are rebuilt in arrival order as torch does."""
        if given is not None and self.caps != BucketCaps():
            raise OptionError("--plan and a bucket cap are both given", remedy="keep one")
        natural = "unused" if self.find_unused_parameters else "rebuilt"
        if given is not None or self.assignment in ("rebuilt", natural):
            return given
        return plan_buckets(parameters, self.caps, self.assignment)

    def torch_arguments(self, plan: BucketPlan | None) -> dict[str, Any]:
        """Return the keyword arguments that make stock torch do the same.

        Raises:
            OptionError: where no constructor argument of torch does.
        """
        arguments: dict[str, Any] = dict(self.caps.torch_arguments()) if plan is None else _call(plan.torch)
        return arguments | {
            "find_unused_parameters": self.find_unused_parameters,
            "gradient_as_bucket_view": self.gradient_as_bucket_view,
            **({} if self.broadcast_buffers else {"broadcast_buffers": False}),
        }

    def _check_torch(self) -> None:
        natural = "unused" if self.find_unused_parameters else "rebuilt"
        refused = {
            f"--process-groups {self.process_groups}": self.process_groups > 1,
            f"--assignment {self.assignment}": self.assignment not in ("rebuilt", natural),
        }
        for what, given in refused.items():
            if given:
                raise OptionError(f"--impl torch has no {what}", remedy="use --impl ddpexec, or leave it out")


def _one_of(flag: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise OptionError(f"unknown value {value!r}", place=flag, remedy=f"use one of {', '.join(known)}")


def _call(text: str) -> dict[str, Any]:
    """Return the keyword arguments of the constructor call in a plan."""
    if text.startswith("#"):
        raise OptionError(f"stock torch cannot run this plan: {text.lstrip('# ')}", remedy="use --impl ddpexec")
    call = ast.parse(text, mode="eval").body
    keywords = call.keywords if isinstance(call, ast.Call) else []
    return {keyword.arg: ast.literal_eval(keyword.value) for keyword in keywords if keyword.arg is not None}
