"""The YAML of a campaign as pydantic models: networks by name, and runs on them; units required."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from ddpexec.running.settings import RunSettings
from ddpsim.common.options.keys import values_of, with_options
from ddpsim.topology.schema import Bandwidth, Index, Time

Count = Annotated[int, Field(ge=1, le=100_000)]
"""Of what is carried out for real, iterations or repeats: more would take weeks."""

Factor = Annotated[float, Field(gt=0, strict=False)]


class CampaignPart(BaseModel):
    """The base of every part of a campaign file, with strict kinds; keys it does not know are refused."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class SlowLinkSpec(CampaignPart):
    """The node whose link has another rate."""

    node: Index
    rate: Bandwidth


class NetworkSpec(CampaignPart):
    """A lab network, `{ranks: 4, rate: 500mbit}`, perhaps with a delay, a slow link, a trunk between two halves."""

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
    """One configuration, or with `vary` the product of lists of its fields; the options of a run are keys too.

    `workload` is replayed by timed layers, at `scale_compute` or so that the bytes of all gradients take
    `wire_over_backward` of the backward's time on the narrowest link; `model` computes.
    """

    network: str
    workload: str | None = None
    model: str | None = None
    wire_over_backward: Factor | None = None
    scale_compute: Factor | None = None
    iterations: Count | None = None
    repeats: Count | None = None

    @property
    def options(self) -> dict[str, Any]:
        """The value of each option of a run that is a key, by field."""
        return {name: value for name, value in values_of(self, RunSettings).items() if name not in _OWN}

    @model_validator(mode="after")
    def _check_agreement(self) -> RunSpec:
        if (self.workload is None) == (self.model is None):
            raise ValueError("give one of `workload` and `model`")
        if self.workload is None and (self.wire_over_backward or self.scale_compute):
            raise ValueError("a `model` computes at its own pace; drop `wire_over_backward` and `scale_compute`")
        if self.wire_over_backward is not None and self.scale_compute is not None:
            raise ValueError("give one of `wire_over_backward` and `scale_compute`")
        if self.model is None and self.options["batch_size"] is not None:
            raise ValueError("`batch_size` belongs to a `model`")
        return self


_OWN = frozenset(RunSpec.model_fields)
"""Keys that mean something else than the option of their name, or nothing of a run: the workload is scaled, the file
says how many iterations count."""

_DECIDED = ("backend", "local_iterations", "observe", "send_rate")
"""Options that a campaign decides itself."""

CampaignRun = with_options(
    RunSpec,
    RunSettings,
    without=_DECIDED,
    defaults={"implementation": "torch"},
    keys={"accumulate": "no_sync_every"},
)
"""An entry of `runs`, with all its keys."""


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
    interleave: bool = False
    microbench: MicrobenchSpec = MicrobenchSpec()
    networks: Annotated[dict[str, NetworkSpec], Field(min_length=1)]
    runs: Annotated[list[dict[str, Any]], Field(min_length=1)]
