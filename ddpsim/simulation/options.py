"""What a user may ask of a simulated run: the options that `predict`, `sweep`, `plan` and `run` share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ddpsim.bucketing import BucketCaps, BucketPlan, plan_buckets
from ddpsim.bucketing.plan import ASSIGNMENTS
from ddpsim.errors import InputError
from ddpsim.workload import Workload

BACKENDS = ("nccl", "gloo")
FIDELITIES = ("flow", "steps", "closed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of one run.

    Attributes:
        caps: bucket caps as torch's constructor takes them.
        plan: buckets given outright; excludes caps.
        assignment: which of torch's assignments: `rebuilt`, `initial` or `unused`.
        backend: `nccl` or `gloo`; None is gloo for a CPU's workload and nccl for a GPU's.
        algorithm: `auto` or an algorithm that the backend knows.
        fidelity: `flow`, `steps` or `closed`.
        no_sync_every: gradients are reduced in every n-th iteration only.
        find_unused_parameters: search the graph each forward and reduce a bitmap at the end.
        gradient_as_bucket_view: gradients live in their bucket, so that nothing is copied out.
        broadcast_buffers: rank 0's buffers are broadcast before a forward.
        process_groups: round-robin process groups.
        stragglers: rank to factor on its computing time.
        comm: `real`, or `noop` for hooks and copies without any collective.
        scale_compute: factor on device time; 0.5 is a device twice as fast.
        scale_host: factor on host time.
        iterations: simulated iterations that count; None is 20, or 2 where every recorded iteration is the same.
        seed: of the draw of recorded iterations.

    Raises:
        InputError: where an option is out of range or contradicts another; both are named.
    """

    caps: BucketCaps = field(default_factory=BucketCaps)
    plan: BucketPlan | None = None
    assignment: str = "rebuilt"
    backend: str | None = None
    algorithm: str = "auto"
    fidelity: str = "flow"
    no_sync_every: int = 1
    find_unused_parameters: bool = False
    gradient_as_bucket_view: bool = False
    broadcast_buffers: bool = True
    process_groups: int = 1
    stragglers: Mapping[int, float] = field(default_factory=dict)
    comm: str = "real"
    scale_compute: float = 1.0
    scale_host: float = 1.0
    iterations: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        _one_of("--assignment", self.assignment, ASSIGNMENTS)
        _one_of("--fidelity", self.fidelity, FIDELITIES)
        _one_of("--comm", self.comm, ("real", "noop"))
        if self.backend is not None:
            _one_of("--backend", self.backend, BACKENDS)
        for flag, count in (
            ("--no-sync-every", self.no_sync_every),
            ("--process-groups", self.process_groups),
            ("--iterations", 1 if self.iterations is None else self.iterations),
        ):
            if count < 1:
                raise InputError(f"{count} is not a count", place=flag, remedy="give 1 or more")
        factors = {"--scale-compute": self.scale_compute, "--scale-host": self.scale_host}
        factors |= {f"--straggler {rank}": factor for rank, factor in self.stragglers.items()}
        for flag, factor in factors.items():
            if not 0 < factor < float("inf"):
                raise InputError(f"{factor!r} is not a factor", place=flag, remedy="give a number above 0, e.g. 1.5")
        if self.plan is not None and self.caps != BucketCaps():
            raise InputError("--plan and a bucket cap are both given", place="--plan", remedy="keep one")

    def bucket_plan(self, workload: Workload) -> BucketPlan:
        """Return the plan these options give `workload`, in the arrival order of its first recorded iteration."""
        if self.plan is not None:
            return self.plan
        assignment = "unused" if self.find_unused_parameters and self.assignment == "rebuilt" else self.assignment
        return plan_buckets(workload.parameters, self.caps, assignment, workload.arrival_order())

    def iterations_of(self, workload: Workload) -> int:
        """Return how many simulated iterations count."""
        return self.iterations if self.iterations is not None else 20 if workload.iterations > 1 else 2

    def backend_for(self, workload: Workload) -> str:
        """Return the backend in force."""
        return self.backend or ("gloo" if workload.on_cpu or workload.timed else "nccl")


def _one_of(flag: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise InputError(f"unknown value {value!r}", place=flag, remedy=f"use one of {', '.join(known)}")
