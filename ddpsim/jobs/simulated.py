"""Options of a simulated run, and what of them contradicts: each other, a workload, or the ranks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

from ddpsim.collectives.conditions import GPU_BACKENDS
from ddpsim.errors import InputError
from ddpsim.jobs.beside import JobBeside
from ddpsim.jobs.exclusions import SIMULATED, Exclusion, refuse_excluded
from ddpsim.jobs.job import NO_INPUT, Job
from ddpsim.jobs.simulated_options import SimulatedOptions
from ddpsim.options.option import check_at_least_one, plain_signature, positive
from ddpsim.workload.devices import check_devices_told

if TYPE_CHECKING:
    from ddpsim.topology.graph import Cluster
    from ddpsim.workload import Workload


@plain_signature
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Options(SimulatedOptions):
    """Options of one simulated run, as `SimulatedOptions` and `JobOptions` have them.

    `scale_compute` may be below 1: 0.5 is a device twice as fast.

    Raises:
        InputError: where an option is out of range or contradicts another; both are named.
    """

    def __post_init__(self) -> None:
        Job.__post_init__(self)
        if self.iterations is not None:
            check_at_least_one("iterations", self.iterations)
        positive("scale_host", self.scale_host)
        if self.scale:
            self._check_scale()
        if not 0 <= self.jitter <= 1:
            remedy = "give a share from 0 to 1, on the command line 0% to 100%"
            raise InputError(f"{self.jitter!r} is out of range", place="jitter", remedy=remedy)
        if self.straggling is not None:
            from ddpsim.jobs.straggling import StragglerDistribution

            StragglerDistribution.of(self.straggling)
        if self.beside is not None:
            self._check_beside(self.beside)
        if self.pipeline is not None and self.pipeline.stages == 1:
            refuse_excluded(self, [Exclusion("pipeline", ("accumulate",), place="pipeline")])
            # One stage is the whole model on each rank: its micro-batches are accumulated, by whichever scheme.
            object.__setattr__(self, "accumulate", self.pipeline.micro_batches)
            object.__setattr__(self, "pipeline", None)
        for name in ("tensor_parallel", "expert_parallel"):
            check_at_least_one(name, getattr(self, name))
        refuse_excluded(self, SIMULATED)

    def check(self, workload: Workload) -> None:
        """Refuse what `workload` cannot be run with.

        Raises:
            InputError: NCCL without a GPU, a factor on host time where the host's time is the computation, an input
                stage to be taken from it where it has none, or parameters on several devices.
        """
        if self.input_stage != NO_INPUT:
            self.input_of(workload)
        check_devices_told(workload.name, workload.devices, workload.parameters)
        cuts = (("tensor_parallel", workload.tensor), ("expert_parallel", workload.experts))
        for name, cut in cuts:
            parts, asked = 1 if cut is None else cut.ranks, getattr(self, name)
            if parts != asked:
                what = f"{workload.name} is {'a whole step' if parts == 1 else f'one of {parts} parts of a step'}"
                remedy = "take the part by `Model.of(workload).on(topology, options=options)`, as `ddpsim.predict` does"
                raise InputError(f"{what}, asked for is {asked}", place=name, remedy=remedy)
        given = self.pipeline
        if given is not None and self.staged and given.boundary_bytes is None and workload.boundary_bytes is None:
            what = f"how many bytes pass from one layer of {workload.name} to the next is not known"
            remedy = (
                "say the activations of a micro-batch there: samples x values of a sample x bytes, e.g. boundary=25MiB"
            )
            raise InputError(what, place="pipeline", remedy=remedy)
        for rank in self.unused:
            if len(self.unused_by(rank, workload.parameters)) == len(workload.parameters):
                remedy = "leave it a layer"
                raise InputError(f"rank {rank} uses no parameter", place=f"unused[{rank}]", remedy=remedy)
        if self.backend in GPU_BACKENDS and workload.on_cpu:
            what, remedy = (
                f"{self.backend.upper()} needs GPUs, {workload.name} computes on a CPU",
                "use gloo, or a workload of a GPU",
            )
            raise InputError(what, place="backend", remedy=remedy)
        if self.scale_host != 1.0 and workload.one_clock:
            what = f"{workload.name} has no host time apart from its computation, on {workload.device_label}"
            raise InputError(what, place="scale_host", remedy="use `scale_compute`, or leave it out")

    def check_ranks(self, world_size: int) -> None:
        """Raise InputError where a straggler, or a rank that does not use a layer, is no rank of the job, or where
        ranks are left over by groups that share layers or experts."""
        Job.check_ranks(self, world_size)
        together = {"tensor_parallel": self.tensor_parallel, "expert_parallel": self.expert_parallel}
        if self.model_parallel:
            together["pipeline"] = self.ranks_a_copy
        for name, ranks in together.items():
            if world_size % ranks:
                what = f"groups of {ranks} ranks do not divide {world_size} ranks"
                raise InputError(what, place=name, remedy=f"give a divisor of {world_size}")
        for rank in self.unused:
            if rank >= world_size:
                what, remedy = f"rank {rank} is not in a world of {world_size}", f"give a rank below {world_size}"
                raise InputError(what, place=f"unused[{rank}]", remedy=remedy)

    def on(self, workload: Workload, machine: Cluster) -> Self:
        """Return the options with the library that `nccl` is on a machine: RCCL on AMD's GPUs, as in torch.

        Raises:
            InputError: RCCL asked for on other GPUs.
        """
        if self.backend == "rccl" and machine.backend != "rccl":
            what = f"RCCL needs AMD's GPUs, {machine.name} has {machine.compute_device}"
            raise InputError(what, place="backend", remedy=f"use {machine.backend}, or leave it out")
        if machine.backend == "rccl" and self.backend_for(workload) == "nccl":
            return replace(self, backend="rccl")
        return self

    def _check_beside(self, beside: JobBeside) -> None:
        if self.fidelity != "flow":
            what = f"`fidelity={self.fidelity}` knows no other job's messages"
            raise InputError(what, place="beside", remedy="use `fidelity=flow`")
        for whose, job in (("this job", self), ("the job beside it", beside.job)):
            if job.asynchronous:
                what = f"ranks of {whose} go on without each other by `scheme={job.scheme}`"
                raise InputError(what, place="beside", remedy="use a scheme whose ranks meet")

    def _check_scale(self) -> None:
        from ddpsim.workload.anchors import PHASES

        for phase, factor in self.scale.items():
            if phase not in PHASES:
                raise InputError("is no phase of a step", place=f"scale[{phase}]", remedy=f"use {', '.join(PHASES)}")
            positive(f"scale[{phase}]", factor)
