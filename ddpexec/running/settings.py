"""What a user may ask of a real run beside what any job may be asked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import timedelta
from types import MappingProxyType
from typing import Annotated, Any, Literal, get_args

from ddpexec.errors import OptionError
from ddpsim.bucketing import BucketCaps, BucketPlan, Parameter, plan_buckets
from ddpsim.jobs.job import NO_INPUT, RECORDED_INPUT, Job
from ddpsim.options.input_stage import InputStage, input_stage
from ddpsim.options.option import Option, Section, check_at_least_one, default_of
from ddpsim.schedules.named import scheme_named
from ddpsim.units import parse_bandwidth, parse_time

Implementation = Literal["ddpexec", "torch"]
IMPLEMENTATIONS: tuple[Implementation, ...] = get_args(Implementation)
DISCARDED = 5
"""Iterations run first, in which buckets are rebuilt and caches filled, and not counted."""
_WRITTEN = {name: name for name in ("drop", "gradient_as_bucket_view", "find_unused_parameters", "local_iterations")}
_WRITTEN |= {"stragglers": "straggler"}
"""How options are named whose values say no more."""


def _duration(text: str, name: str) -> timedelta:
    return timedelta(seconds=parse_time(text, name))


def refuse_rate(stage: InputStage) -> None:
    """Raise OptionError for an input stage with a rate, which no real copy can be held to."""
    if stage.rate_Bps is not None:
        what = "a real copy goes as fast as the machine lets it"
        raise OptionError(what, place="input_stage, rate", remedy="leave `rate` out, or predict with it")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RunSettings(Job):
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
        Job.__post_init__(self)
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
        self._check_devices()
        if self.fully_sharded:
            self._check_fully_sharded()
        elif self.replicated:
            self._check_replicated()
        elif self.implementation == "torch":
            self._check_torch()

    @property
    def fully_sharded(self) -> bool:
        """Whether torch's `fully_shard` carries the scheme out, whichever implementation of DDP is named."""
        return scheme_named(self.scheme).runner == "fully_shard"

    @property
    def replicated(self) -> bool:
        """Whether `torch.nn.DataParallel` carries the scheme out."""
        return scheme_named(self.scheme).runner == "DataParallel"

    @property
    def carried_out_by(self) -> Implementation:
        """Whose implementation trains."""
        return "torch" if self.fully_sharded or self.replicated else self.implementation

    def slowness(self, rank: int) -> float:
        """Return the factor on `rank`'s computation."""
        return self.scale_compute * self.stragglers.get(rank, 1.0)

    def plan(self, parameters: tuple[Parameter, ...], given: BucketPlan | None) -> BucketPlan | None:
        """Return the fixed plan to run, or None where buckets are rebuilt in arrival order as torch does."""
        if given is not None and self.caps != BucketCaps():
            raise OptionError("`plan` and a bucket cap are both given", remedy="keep one")
        if given is not None and self.drop_buckets == "aligned":
            raise OptionError("`plan` and `drop_buckets=aligned` are both given", remedy="keep one")
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
        from ddpsim.jobs.torch_line import caps_giving

        found = self.find_unused_parameters
        caps = self.caps if plan is None else caps_giving(plan, parameters, find_unused=found)
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
        if self.local_iterations and self.drop:
            remedy = "leave one out: which layers stay is drawn for synchronised iterations"
            raise OptionError("`local_iterations` and `drop` are both given", remedy=remedy)

    def _check_devices(self) -> None:
        """Refuse what is not run on ranks of several devices."""
        check_at_least_one("devices", self.devices)
        if self.devices == 1:
            return
        names = "scheme", "process_groups", "backend", "drop", "compression", "stragglers", "input_stage"
        for what in self._given(*names, allowed={"backend": (None, "nccl", "rccl")}):
            asked = f"`{what}` and `devices={self.devices}` are both given"
            raise OptionError(asked, place="devices", remedy="keep one")

    def _given(self, *names: str, allowed: Mapping[str, Sequence[object]] = MappingProxyType({})) -> Iterator[str]:
        """Yield the options among `names` that are neither at their defaults nor `allowed`, as they are written."""
        defaults = {each.name: default_of(each) for each in fields(self)}
        for name in names:
            value = getattr(self, name)
            if value not in allowed.get(name, (defaults[name],)):
                yield _WRITTEN.get(name, f"{name}={value}")

    def _check_fully_sharded(self) -> None:
        """Refuse what torch's `fully_shard` cannot do, or what cannot be observed in it."""
        asked = scheme_named(self.scheme).fully_shard
        if asked is not None and asked.host_update is not None:
            what = "a real update takes what it takes"
            raise OptionError(
                what, place=f"scheme={self.scheme}, host_update", remedy="leave it out, or predict with it"
            )
        names = "backend", "assignment", "overlap", "comm", "gradient_as_bucket_view", "local_iterations"
        for what in self._given(*names, allowed={"backend": (None, "gloo", "rccl")}):
            whose, place = "torch's `fully_shard` on CPUs carries it out, which", f"scheme={self.scheme}"
            raise OptionError(f"{whose} has no `{what}`", place=place, remedy="leave it out, or simulate it")

    def _check_replicated(self) -> None:
        """Refuse what `torch.nn.DataParallel` has not."""
        names = (
            "process_groups", "assignment", "order", "drop", "compression", "overlap", "comm",
            "gradient_as_bucket_view", "find_unused_parameters", "local_iterations", "stragglers",
        )  # fmt: skip
        for what in self._given(*names):
            place = f"scheme={self.scheme}"
            raise OptionError(f"torch.nn.DataParallel has no `{what}`", place=place, remedy="leave it out")

    def _check_torch(self) -> None:
        """Refuse what stock torch cannot do, and what cannot be observed in it: a hook sends where nobody looks."""
        names = "process_groups", "assignment", "order", "drop", "compression", "scheme", "overlap"
        allowed: dict[str, Sequence[object]] = {"assignment": (self.assignment,) if self._natural else ()}
        if not self.observe:
            allowed["compression"] = (self.compression,)
        for what in self._given(*names, allowed=allowed):
            remedy = "use `implementation=ddpexec`, or leave it out"
            raise OptionError(f"`implementation=torch` has no `{what}`", remedy=remedy)
