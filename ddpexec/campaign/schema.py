"""The YAML of a campaign as pydantic models: networks by name, and runs on them; units required."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from ddpsim.errors import InputError
from ddpsim.options.option import declared
from ddpsim.schedules.named import names_code, scheme_named
from ddpsim.topology.schema import Bandwidth, Index, Time

Count = Annotated[int, Field(ge=1, le=100_000)]
"""Of what is carried out for real, iterations or repeats: more would take weeks."""

Positive = Annotated[float, Field(gt=0, strict=False)]
Factor = Annotated[float, Field(gt=0, strict=False)]
Cap = Annotated[float, Field(ge=0, strict=False)]

CAP_OPTIONS = frozenset(("bucket_cap_mb", "bucket_cap_mb_list", "first_bucket_mb"))


class CampaignPart(BaseModel):
    """The base of every part of a campaign file, with strict kinds; keys it does not know are refused."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class SlowLinkSpec(CampaignPart):
    """The node whose link has another rate."""

    node: Index
    rate: Bandwidth


class NetworkSpec(CampaignPart):
    """A lab network is `{ranks: 4, rate: 500mbit}`, perhaps with a delay, a slow link, a trunk between two halves."""

    ranks: Annotated[int, Field(ge=2)]
    rate: Bandwidth
    delay: Time = 0.0
    slow: SlowLinkSpec | None = None
    trunk: Bandwidth | None = None

    @property
    def narrowest(self) -> float:
        """Bytes/s of the link that a ring's bytes cannot avoid."""
        rates = [self.rate, self.trunk, None if self.slow is None else self.slow.rate]
        return min(rate for rate in rates if rate is not None)


class RunSpec(CampaignPart):
    """One configuration, or with `vary` the product of lists of its fields.

    `workload` is replayed by timed layers, at `scale_compute` or so that the bytes of all gradients take
    `wire_over_backward` of the backward's time on the narrowest link; `model` computes.
    """

    network: str
    workload: str | None = None
    model: str | None = None
    batch_size: Count | None = None
    wire_over_backward: Factor | None = None
    scale_compute: Factor | None = None
    bucket_cap_mb: Cap | None = None
    bucket_cap_mb_list: Annotated[list[Cap], Field(min_length=1)] | None = None
    first_bucket_mb: Cap | None = None
    gradient_as_bucket_view: bool = False
    impl: Literal["ddpexec", "torch"] = "torch"
    scheme: str = "ddp"
    overlap: Literal["on", "off"] = "on"
    input_stage: str = "none"
    no_sync_every: Count = 1
    process_groups: Count = 1
    straggler: dict[Index, Factor] = {}
    broadcast_buffers: bool = True
    iterations: Count | None = None
    repeats: Count | None = None
    seed: Index = 0

    @model_validator(mode="after")
    def _agrees(self) -> RunSpec:
        if (self.workload is None) == (self.model is None):
            raise ValueError("give one of `workload` and `model`")
        if self.workload is None and (self.wire_over_backward or self.scale_compute):
            raise ValueError("a `model` computes at its own pace; drop `wire_over_backward` and `scale_compute`")
        if self.wire_over_backward is not None and self.scale_compute is not None:
            raise ValueError("give one of `wire_over_backward` and `scale_compute`")
        if self.model is None and self.batch_size is not None:
            raise ValueError("`batch_size` belongs to a `model`")
        if self.process_groups > 1 and self.impl == "torch":
            raise ValueError("torch has no round-robin process groups; write `impl: ddpexec`")
        self._check_scheme()
        if self.bucket_cap_mb_list is not None and (self.bucket_cap_mb, self.first_bucket_mb) != (None, None):
            raise ValueError("give `bucket_cap_mb_list` alone")
        return self

    @field_validator("overlap", mode="before")
    @classmethod
    def _yaml_switch(cls, value: object) -> object:
        """Take `on` and `off` without quotes too, which YAML reads as true and false."""
        return {True: "on", False: "off"}[value] if isinstance(value, bool) else value

    def _check_scheme(self) -> None:
        """Refuse a scheme that is none; one of somebody's own is imported where the campaign is carried out."""
        try:
            if not names_code(self.scheme):
                scheme_named(self.scheme)
        except InputError as error:
            raise ValueError(str(error)) from None
        if (self.scheme, self.overlap) == ("ddp", "on"):
            return
        if self.impl == "torch":
            raise ValueError("torch's DDP has no `scheme` and no `overlap`; write `impl: ddpexec`")
        if self.process_groups > 1:
            raise ValueError("a `scheme`, and `overlap: off`, have one process group; drop `process_groups`")


def options_given(run: RunSpec, kind: type) -> dict[str, Any]:
    """Return what a configuration says of the options that the dataclass `kind` declares, by field name."""
    named = {name: each for each in declared(kind) for name in (each.name, each.field, *each.option.also)}
    values = {named[key].field: value for key, value in run if key in named and value is not None}
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}


class MicrobenchSpec(CampaignPart):
    """Sizes of the allreduces that calibrate a network, as nccl-tests takes them, and how long a model runs beside."""

    minbytes: str = "4K"
    maxbytes: str = "64M"
    stepfactor: Annotated[int, Field(ge=2)] = 2
    load_seconds: Annotated[float, Field(ge=0.1, strict=False)] | None = None

    def arguments(self) -> list[str]:
        """Return the options of `microbench`."""
        load = [] if self.load_seconds is None else ["--load-seconds", f"{self.load_seconds:g}"]
        return ["-b", self.minbytes, "-e", self.maxbytes, "-f", str(self.stepfactor), *load]


class CampaignSpec(CampaignPart):
    """A campaign file holds its networks by name, and the runs on them."""

    name: Annotated[str, Field(min_length=1)]
    iterations: Count = 12
    repeats: Count = 1
    max_step: Time = 3.0
    microbench: MicrobenchSpec = MicrobenchSpec()
    networks: Annotated[dict[str, NetworkSpec], Field(min_length=1)]
    runs: Annotated[list[dict[str, Any]], Field(min_length=1)]
