"""The options of a simulated run, what follows from them, and what they refuse: each other, a workload, the ranks.

`Options` adds to `JobOptions` what only a simulation has: factors, stragglers, parallel models, another job. A value
by itself is refused where it is read, two that exclude each other in `__post_init__`, and what a workload or the ranks
rule out in `check` and `check_ranks`, which `resolve` calls.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Self

from ddpsim.bucketing import BucketPlan, Parameter, plan_buckets
from ddpsim.bucketing.plan import custom_plan
from ddpsim.collectives.conditions import GPU_BACKENDS, CollectiveOptions, Fidelity
from ddpsim.common.errors import InputError
from ddpsim.common.options.exclusions import refuse_excluded
from ddpsim.common.options.option import Option, Section, check_at_least_one, plain_signature, positive
from ddpsim.common.options.text import layers_by_rank, percentage, phase_factors
from ddpsim.simulation.jobs.beside import JobBeside
from ddpsim.simulation.jobs.job_options import NO_INPUT, JobOptions
from ddpsim.simulation.jobs.pipeline import WHOLE_MODEL, Pipeline, parse_pipeline
from ddpsim.workload.devices import check_devices_told

if TYPE_CHECKING:
    from ddpsim.simulation.jobs.stages import ModelPart
    from ddpsim.topology.graph import Cluster
    from ddpsim.workload import Workload


def _job_beside(path: str, name: str) -> JobBeside:
    """Return the job that a YAML file describes; what reads such files is imported where there is one."""
    from ddpsim.simulation.jobs.beside_file import job_beside

    return job_beside(path, name)


@plain_signature
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Options(JobOptions):
    """What a user asks of one simulated run, beside what any job may be asked.

    `scale_compute` may be below 1: 0.5 is a device twice as fast.

    Attributes:
        plan: buckets given outright; excludes caps.
        algorithm: `auto` or an algorithm that the backend knows.
        fidelity: `flow`, `steps` or `closed`.
        scale_host: factor on host time.
        scale: `forward`, `backward` or `optimizer` to a factor on its device time, beside `scale_compute`.
        optimizer: of an estimated workload, in place of the one it was estimated with.
        clip_gradients: whether the step of an estimated workload clips the norm of its gradients.
        jitter: standard deviation of the logarithm of a rank's computing time, drawn for each iteration and rank anew.
        straggling: how the factors on ranks' computing times are distributed, as
            `ddpsim.simulation.jobs.straggling.StragglerDistribution` reads it; each rank keeps its own. None leaves all
            alike but `stragglers`.
        unused: rank to dotted names of layers that it does not use in any iteration.
        compiled: whether torch.compile compiles the step, under DDP in a graph a bucket.
        keep_pace: whether the workload keeps its own pace on machines of other GPUs, whose rows are then not ranked.
        beside: another job on the same machine, whose messages share the links between switches.
        tensor_parallel: consecutive ranks, each of which computes a part of every layer of a transformer; gradients are
            summed over every so-manieth rank.
        expert_parallel: consecutive ranks, each of which has some of the experts of each mixture; their gradients are
            summed over every so-manieth rank, all others over all.
        pipeline: of consecutive stages of the model, each on a rank, or on as many as share its layers; an iteration
            is a step of its micro-batches, and gradients of a stage are summed over its ranks in all copies.
        memory_limit_bytes: what a rank may take of its GPU's memory; None is all of it.
        iterations: simulated iterations that count; None is 20, or where every recorded iteration is the same and no
            layer is left out 2, and 2 to 8 beside another job: the more, the longer that one's step is.

    Raises:
        InputError: where an option is out of range or contradicts another; both are named.
    """

    plan: BucketPlan | None = None
    algorithm: Annotated[str, Option("Allreduce algorithm.", "auto|ring|tree|..."), Section.MACHINE] = "auto"
    fidelity: Annotated[Fidelity, Option("Detail of the network simulation."), Section.COMPUTED] = "flow"
    scale_host: Annotated[float, Option("Factor on host time, of a GPU's workload.", "F"), Section.WHAT_IF] = 1.0
    scale: Annotated[
        Mapping[str, float],
        Option(
            "Factor on the device time of forward, backward or optimizer; may be repeated.",
            "PHASE=F",
            parse=phase_factors,
            repeated=True,
        ),
        Section.WHAT_IF,
    ] = field(default_factory=dict)
    optimizer: Annotated[
        str | None,
        Option(
            "Of an estimated step: sgd, momentum, adam, adamw, adamw-foreach (torch's own choice on a GPU), "
            "adamw-fused, ... [the one it was estimated with]",
            "NAME",
        ),
        Section.JOB,
    ] = None
    clip_gradients: Annotated[bool, Option("The estimated step clips the norm of its gradients."), Section.JOB] = False
    compiled: Annotated[
        bool,
        Option(
            "Gradients come as from torch.compile under DDP, together at the end of a graph a bucket. Kernels keep "
            "their times: what compiling saves is not predicted."
        ),
        Section.JOB,
    ] = False
    keep_pace: Annotated[
        bool,
        Option("Keep the times of the workload's file. [those of the machine's GPU, where it can be estimated]"),
        Section.WHAT_IF,
    ] = False
    jitter: Annotated[
        float,
        Option(
            "Standard deviation of each rank's computing time from iteration to iteration.",
            "P%",
            parse=percentage,
            text="0%",
        ),
        Section.WHAT_IF,
    ] = 0.0
    straggling: Annotated[
        str | None,
        Option(
            "Draw for each rank how many times longer it computes: lognormal:0.03, exponential:0.05, pareto:3, or "
            "some:SHARE:FACTOR, so many of them so much slower.",
            "DISTRIBUTION",
        ),
        Section.WHAT_IF,
    ] = None
    unused: Annotated[
        Mapping[int, tuple[str, ...]],
        Option(
            "Layers that a rank, or each of FIRST-LAST, does not use, with `find_unused_parameters`; may be repeated.",
            "RANK:LAYER",
            parse=layers_by_rank,
            repeated=True,
        ),
        Section.WHAT_IF,
    ] = field(default_factory=dict)
    beside: Annotated[
        JobBeside | None,
        Option("Another job on the same fabric: its workload, nodes and options.", "JOB.yaml", parse=_job_beside),
        Section.WHAT_IF,
    ] = None
    tensor_parallel: Annotated[
        int,
        Option(
            "Consecutive ranks that share each layer of an estimated transformer as in Megatron-LM: two allreduces of "
            "activations a layer in forward and two in backward; gradients go over every T-th rank.",
            "T",
        ),
        Section.JOB,
    ] = 1
    expert_parallel: Annotated[
        int,
        Option(
            "Consecutive ranks that each have some of the experts of an estimated model's mixtures: two all-to-alls of "
            "tokens a mixture in forward and two in backward; experts' gradients go over every E-th rank.",
            "E",
        ),
        Section.JOB,
    ] = 1
    pipeline: Annotated[
        Pipeline | None,
        Option(
            "Cut the model into stages on P ranks, as 1f1b:4,micro-batches=16. Orders are gpipe, 1f1b and interleaved, "
            "with stages-per-rank=V. boundary=SIZE and mapping=tp-dp-pp are as `ddpsim pipeline` has them. Gradients "
            "of a stage go over its ranks in all copies.",
            "ORDER:P[,...]",
            parse=parse_pipeline,
        ),
        Section.JOB,
    ] = None
    memory_limit_bytes: float | None = None
    iterations: Annotated[
        int | None, Option("Simulated iterations that count. [20; fewer where all are alike]", "N"), Section.JOB
    ] = None

    def __post_init__(self) -> None:
        JobOptions.__post_init__(self)
        if self.iterations is not None:
            check_at_least_one("iterations", self.iterations)
        positive("scale_host", self.scale_host)
        if self.scale:
            self._check_scale()
        if not 0 <= self.jitter <= 1:
            remedy = "give a share from 0 to 1, on the command line 0% to 100%"
            raise InputError(f"{self.jitter!r} is out of range", place="jitter", remedy=remedy)
        if self.straggling is not None:
            from ddpsim.simulation.jobs.straggling import StragglerDistribution

            StragglerDistribution.of(self.straggling)
        if self.beside is not None:
            self._check_beside(self.beside)
        if self.pipeline is not None and self.pipeline.stages == 1:
            refuse_excluded(self, "pipelines of one stage")
            # One stage is the whole model on each rank: its micro-batches are accumulated, by whichever scheme.
            object.__setattr__(self, "accumulate", self.pipeline.micro_batches)
            object.__setattr__(self, "pipeline", None)
        for name in ("tensor_parallel", "expert_parallel"):
            check_at_least_one(name, getattr(self, name))
        refuse_excluded(self, "predictions")
        refuse_excluded(self, "plans")

    @property
    def disturbed(self) -> bool:
        """Whether another job trains on the same fabric."""
        return self.beside is not None and not self.beside.idle

    @property
    def fixed_schedule(self) -> bool:
        """Whether all iterations have one schedule: that of a scheme, or on process groups of fewer than all ranks.

        Torch's reducer sums buckets that may be others from one iteration to the next.
        """
        return self.scheduled or self.ranks_a_copy * self.expert_parallel > 1

    @property
    def cut(self) -> Pipeline:
        """The stages of the model; of a whole one, one on each rank."""
        return self.pipeline or WHOLE_MODEL

    @property
    def ranks_a_copy(self) -> int:
        """Ranks that have a copy of the model together, experts apart."""
        return self.tensor_parallel * self.cut.stages

    @property
    def forwards(self) -> int:
        """Forwards of an iteration: one, or in stages one a micro-batch of its step."""
        return self.cut.micro_batches

    def of_micro_batches(self, count: int) -> Self:
        """Return options of a step of so many micro-batches: passes of stages, or iterations that accumulate them."""
        if self.pipeline is None:
            return replace(self, accumulate=count)
        return replace(self, pipeline=replace(self.pipeline, micro_batches=count))

    @property
    def accumulated(self) -> Self:
        """The options of whole models on ranks that accumulate the micro-batches of a step one after the other."""
        return self if self.pipeline is None else replace(self, pipeline=None, accumulate=self.pipeline.micro_batches)

    def parts(self, workload: Workload) -> tuple[ModelPart, ...]:
        """Return what each rank of a copy of the model has of it.

        Raises:
            InputError: more stages than layers.
        """
        from ddpsim.simulation.jobs.stages import ONLY_STAGE, ModelPart, parts_of

        if self.pipeline is not None:
            return tuple(parts_of(workload, self.pipeline))
        return (ModelPart(0, range(len(workload.parameters)), 1.0, 1.0, 1.0, workload, (ONLY_STAGE,)),)

    @property
    def collective(self) -> CollectiveOptions:
        """How the collectives of the run are executed."""
        return CollectiveOptions(algorithm=self.algorithm, fidelity=self.fidelity)

    def unused_by(self, rank: int, parameters: Sequence[Parameter]) -> frozenset[int]:
        """Return the parameters of the layers that a rank does not use.

        Raises:
            InputError: a layer that the model does not have.
        """
        indices: set[int] = set()
        for layer in self.unused.get(rank, ()):
            below = [i for i, p in enumerate(parameters) if p.name == layer or p.name.startswith(f"{layer}.")]
            if not below:
                remedy = "give a module's name, e.g. encoder.layer.3"
                raise InputError(f"no parameter is below {layer!r}", place=f"unused[{rank}]", remedy=remedy)
            indices.update(below)
        return frozenset(indices)

    def bucket_plan(self, workload: Workload, of: Sequence[int] | None = None) -> BucketPlan:
        """Return the plan these options give `workload`, in the arrival order of its first recorded iteration.

        Under an order policy the plan depends on the arrivals of the run; see `ddpsim.simulation.jobs.plans`.

        Args:
            of: registration indices of its parameters in the model that a given plan is of; None are all.
        """
        if self.plan is not None:
            if of is None or len(of) == len(self.plan.parameter_names):
                return self.plan
            places = {index: at for at, index in enumerate(of)}
            groups = [tuple(places[index] for index in group if index in places) for group in self.plan.groups()]
            return custom_plan(workload.parameters, [group for group in groups if group])
        if self.drop and (aligned := self.aligned_plan(workload.parameters)) is not None:
            return aligned
        parameters = workload.parameters
        if workload.experts is not None:
            # Their gradients go over other ranks, so that they fill buckets of their own, as on a device of their own.
            own = workload.experts.parameters
            parameters = tuple(
                replace(each, device=f"{each.device} experts") if index in own else each
                for index, each in enumerate(parameters)
            )
        return plan_buckets(parameters, self.caps, self.assignment_in_force, workload.arrival_order())

    def iterations_of(self, workload: Workload) -> int:
        """Return how many simulated iterations count."""
        if self.iterations is not None:
            return self.iterations
        # Ranks that go on without each other go each at a pace of its own.
        apart = not self.ranks_meet and (bool(self.stragglers) or self.straggling is not None)
        if workload.iterations > 1 or self.drop or self.jitter > 0 or apart:
            return 20
        if self.beside is None or self.beside.idle:
            return 2
        return min(8, max(2, math.ceil(8 * self.beside.share_of(workload))))

    def backend_for(self, workload: Workload) -> str:
        """Return the backend in force."""
        return self.backend or ("gloo" if workload.one_clock else "nccl")

    def check(self, workload: Workload) -> None:
        """Refuse what `workload` cannot be run with.

        Raises:
            InputError: NCCL without a GPU, a factor on host time where the host's time is the computation, an input
                stage to be taken from it where it has none, or parameters on several devices.
        """
        # In the order of what is refused first: what has to be known of the workload, then what it cannot be with.
        if self.input_stage != NO_INPUT:
            self.input_of(workload)
        check_devices_told(workload.name, workload.devices, workload.parameters)
        cuts = (("tensor_parallel", workload.tensor), ("expert_parallel", workload.experts))
        for name, cut in cuts:
            parts, wanted = 1 if cut is None else cut.ranks, getattr(self, name)
            if parts != wanted:
                what = f"{workload.name} is {'a whole step' if parts == 1 else f'one of {parts} parts of a step'}"
                remedy = "take the part by `Model.of(workload).on(topology, options=options)`, as `ddpsim.predict` does"
                raise InputError(f"{what}, asked for is {wanted}", place=name, remedy=remedy)
        if self.pipeline is not None and self.pipeline.boundary_bytes is None and workload.boundary_bytes is None:
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
        JobOptions.check_ranks(self, world_size)
        for name in ("tensor_parallel", "expert_parallel", "pipeline"):
            ranks = self.ranks_a_copy if name == "pipeline" else getattr(self, name)
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
            if not job.ranks_meet:
                what = f"ranks of {whose} go on without each other by `scheme={job.scheme}`"
                raise InputError(what, place="beside", remedy="use a scheme whose ranks meet")

    def _check_scale(self) -> None:
        from ddpsim.workload.anchors import PHASES

        for phase, factor in self.scale.items():
            if phase not in PHASES:
                raise InputError("is no phase of a step", place=f"scale[{phase}]", remedy=f"use {', '.join(PHASES)}")
            positive(f"scale[{phase}]", factor)
