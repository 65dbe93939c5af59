"""What a user may ask of a real run beside what any job may be asked."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any, Literal, get_args

from ddpexec.errors import OptionError
from ddpsim.bucketing import BucketPlan, Parameter, plan_buckets
from ddpsim.common.options.exclusions import refuse_excluded
from ddpsim.common.options.input_stage import InputStage, input_stage
from ddpsim.common.options.option import Option, Section, check_at_least_one
from ddpsim.common.units import parse_bandwidth, parse_time
from ddpsim.schedules.named import scheme_named
from ddpsim.simulation.jobs.job_options import NO_INPUT, RECORDED_INPUT, JobOptions

Implementation = Literal["ddpexec", "torch"]
IMPLEMENTATIONS: tuple[Implementation, ...] = get_args(Implementation)
DISCARDED = 5
"""Iterations run first, in which buckets are rebuilt and caches filled, and not counted."""


def _duration(text: str, name: str) -> timedelta:
    return timedelta(seconds=parse_time(text, name))


def refuse_rate(stage: InputStage) -> None:
    """Raise OptionError for an input stage with a rate, which no real copy can be held to."""
    if stage.rate_Bps is not None:
        what = "a real copy goes as fast as the machine lets it"
        raise OptionError(what, place="input_stage, rate", remedy="leave `rate` out, or predict with it")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RunSettings(JobOptions):
    """Options of one run; `scale_compute` may be below 1 for timed layers, where the machine can replay them so fast.

    Attributes:
        implementation: `ddpexec` or `torch`.
        iterations: that count, after `DISCARDED` others.
        batch_size: samples an iteration and rank; None is the model's own.
        timeout: of the process group: how long to wait for a rank that does not come.
        send_rate: bytes/s that a rank sends on each connection of gloo; None is as fast as it can.
        observe: take moments; without, only whole iterations are timed.
        devices: GPUs of a rank, each of which has consecutive layers of the model.
        local_iterations: without communication, after those that count and one more, by which one process is timed.

    Raises:
        InputError: where an option is out of range or contradicts another; both are named.
    """

    implementation: Annotated[Implementation, Option("Whose DistributedDataParallel.", name="impl"), Section.JOB] = (
        "ddpexec"
    )
    batch_size: Annotated[int | None, Option("Samples a step and rank. [the model's own]", least=1), Section.JOB] = None
    iterations: Annotated[int, Option("Iterations that count, after 5 discarded.", "N"), Section.JOB] = 20
    timeout: Annotated[
        timedelta,
        Option("How long to wait for a rank that does not come.", "TIME", parse=_duration, text="300s"),
        Section.COMPUTED,
    ] = timedelta(minutes=5)
    devices: Annotated[
        int, Option("GPUs of a rank, each with consecutive layers of its model.", "D", least=1), Section.JOB
    ] = 1
    local_iterations: Annotated[
        int, Option("Iterations without communication after them, which time one process.", "N"), Section.JOB
    ] = 0
    send_rate: Annotated[
        float | None,
        Option(
            "Send no faster on each connection of gloo, so that buckets matter on one machine; `microbench` takes it "
            "too. Linux.",
            "1gbit",
            parse=parse_bandwidth,
        ),
        Section.JOB,
    ] = None
    observe: Annotated[
        bool,
        Option("Time gradients and messages beside iterations.", name="no_stamps", off="Time whole iterations only."),
        Section.JOB,
    ] = True

    def __post_init__(self) -> None:
        JobOptions.__post_init__(self)
        check_at_least_one("iterations", self.iterations)
        self._check_local()
        if self.iterations < self.period:
            what = f"{self.iterations} are fewer than the {self.period} after which scheme={self.scheme} repeats"
            raise OptionError(what, place="iterations", remedy=f"give {self.period} or a multiple")
        for rank, factor in self.stragglers.items():
            if factor < 1:
                remedy = "give 1 or more; to make one rank faster, make all others slower"
                raise OptionError(f"{factor!r} makes no straggler", place=f"stragglers[{rank}]", remedy=remedy)
        if self.input_stage not in (NO_INPUT, RECORDED_INPUT):
            refuse_rate(input_stage(self.input_stage))
        if scheme_named(self.scheme).runner == "DeepSpeed":
            what = "DeepSpeed's schemes are simulated, and not run"
            raise OptionError(
                what, place=f"scheme={self.scheme}", remedy="run zero1, zero2 or fsdp2, or `ddpsim predict`"
            )
        check_at_least_one("devices", self.devices)
        if self.fully_sharded:
            self._check_fully_sharded()
        refuse_excluded(self, "runs", OptionError)
        if not (self.fully_sharded or self.replicated):
            # Stock torch has its own assignment, and a hook that sends where nobody looks.
            allowed = [("assignment", self._natural), ("compression", not self.observe)]
            names = [name for name, here in allowed if here]
            refuse_excluded(self, "runs by torch's DDP", OptionError, allowed=names)

    @property
    def fully_sharded(self) -> bool:
        """Whether torch's `fully_shard` carries the scheme out, whichever implementation of DDP is named."""
        return scheme_named(self.scheme).runner == "fully_shard"

    @property
    def replicated(self) -> bool:
        """Whether `torch.nn.DataParallel` carries the scheme out."""
        return scheme_named(self.scheme).runner == "DataParallel"

    @property
    def served(self) -> bool:
        """Whether some ranks are servers, which do not train."""
        return scheme_named(self.scheme).servers is not None

    @property
    def carried_out_by(self) -> Implementation:
        """Whose implementation trains."""
        return "torch" if self.fully_sharded or self.replicated else self.implementation

    def slowness(self, rank: int) -> float:
        """Return the factor on `rank`'s computation."""
        return self.scale_compute * self.stragglers.get(rank, 1.0)

    def plan(self, parameters: tuple[Parameter, ...], given: BucketPlan | None) -> BucketPlan | None:
        """Return the fixed plan to run, or None where buckets are rebuilt in arrival order as torch does."""
        refuse_excluded(self, "plans", OptionError, beside={"plan": given})
        if (aligned := self.aligned_plan(parameters)) is not None:
            return aligned
        if given is not None or self._natural:
            return given
        return plan_buckets(parameters, self.caps, self.assignment)

    def torch_arguments(self, plan: BucketPlan | None, parameters: tuple[Parameter, ...]) -> dict[str, Any]:
        """Return the keyword arguments that make stock torch do the same.

        Raises:
            OptionError: where no constructor argument of torch does.
        """
        from ddpsim.simulation.jobs.torch_line import caps_giving

        find_unused = self.find_unused_parameters
        caps = self.caps if plan is None else caps_giving(plan, parameters, find_unused=find_unused)
        if caps is None:
            what = "stock torch cannot run this plan: no constructor argument gives its buckets"
            raise OptionError(what, remedy="use `implementation=ddpexec`")
        return caps.torch_arguments() | {
            "find_unused_parameters": self.find_unused_parameters,
            "gradient_as_bucket_view": self.gradient_as_bucket_view,
            **({} if self.broadcast_buffers else {"broadcast_buffers": False}),
        }

    @property
    def _natural(self) -> bool:
        """Whether the assignment is what the constructor's other options give anyway."""
        return self.assignment in ("rebuilt", "unused" if self.find_unused_parameters else "rebuilt")

    def _check_local(self) -> None:
        if self.local_iterations < 0:
            remedy = "give 0 or more"
            raise OptionError(f"{self.local_iterations} is not a count", place="local_iterations", remedy=remedy)

    def _check_fully_sharded(self) -> None:
        """Refuse what torch's `fully_shard` cannot do, or what cannot be observed in it."""
        sharding = scheme_named(self.scheme).fully_shard
        if sharding is not None and sharding.host_update is not None:
            what = "a real update takes what it takes"
            raise OptionError(
                what, place=f"scheme={self.scheme}, host_update", remedy="leave it out, or predict with it"
            )
