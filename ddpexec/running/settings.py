"""What a user may ask of a real run beside what any job may be asked."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from ddpexec.errors import OptionError
from ddpsim.bucketing import BucketCaps, BucketPlan, Parameter, plan_buckets
from ddpsim.job import Job, at_least_one, one_of

IMPLEMENTATIONS = ("ddpexec", "torch")
DISCARDED = 5
"""Iterations run first, in which buckets are rebuilt and caches filled, and not counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(Job):
    """Options of one run; `scale_compute` may be below 1 for timed layers, where the machine can replay them so fast.

    Attributes:
        implementation: `ddpexec` or `torch`.
        iterations: that count, after `DISCARDED` others.
        batch_size: samples an iteration and rank; None is the model's own.
        timeout: of the process group: how long to wait for a rank that does not come.
        observe: take moments; without, only whole iterations are timed.

    Raises:
        InputError: where an option is out of range or contradicts another; both are named.
    """

    implementation: str = "ddpexec"
    iterations: int = 20
    batch_size: int | None = None
    timeout: timedelta = timedelta(minutes=5)
    observe: bool = True

    def __post_init__(self) -> None:
        Job.__post_init__(self)
        one_of("--impl", self.implementation, IMPLEMENTATIONS)
        at_least_one("--iterations", self.iterations)
        for rank, factor in self.stragglers.items():
            if factor < 1:
                remedy = "give 1 or more; to make one rank faster, make all others slower"
                raise OptionError(f"{factor!r} makes no straggler", place=f"--straggler {rank}", remedy=remedy)
        if self.implementation == "torch":
            self._check_torch()

    def slowness(self, rank: int) -> float:
        """Return the factor on `rank`'s computation."""
        return self.scale_compute * self.stragglers.get(rank, 1.0)

    def plan(self, parameters: tuple[Parameter, ...], given: BucketPlan | None) -> BucketPlan | None:
        """Return the fixed plan to run, or None where buckets are rebuilt in arrival order as torch does."""
        if given is not None and self.caps != BucketCaps():
            raise OptionError("--plan and a bucket cap are both given", remedy="keep one")
        if given is not None or self._natural:
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

    @property
    def _natural(self) -> bool:
        """Whether the assignment is what the constructor's other options give anyway."""
        return self.assignment in ("rebuilt", "unused" if self.find_unused_parameters else "rebuilt")

    def _check_torch(self) -> None:
        """Refuse what stock torch cannot do, and what cannot be observed in it: a hook sends where nobody looks."""
        refused = {
            f"--process-groups {self.process_groups}": self.process_groups > 1,
            f"--assignment {self.assignment}": not self._natural,
            f"--order {self.order}": self.order is not None,
            "--drop": bool(self.drop),
            f"--compression {self.compression}": self.compression != "none" and self.observe,
        }
        for what, given in refused.items():
            if given:
                raise OptionError(f"--impl torch has no {what}", remedy="use --impl ddpexec, or leave it out")


def _call(text: str) -> dict[str, Any]:
    """Return the keyword arguments of the constructor call in a plan."""
    if text.startswith("#"):
        raise OptionError(f"stock torch cannot run this plan: {text.lstrip('# ')}", remedy="use --impl ddpexec")
    call = ast.parse(text, mode="eval").body
    keywords = call.keywords if isinstance(call, ast.Call) else []
    return {keyword.arg: ast.literal_eval(keyword.value) for keyword in keywords if keyword.arg is not None}
