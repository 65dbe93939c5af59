"""What a user may ask of a run whose model is cut into the stages of a pipeline."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated, Literal

from ddpexec.errors import OptionError
from ddpexec.running.settings import RunSettings
from ddpsim.common.options.exclusions import refuse_excluded
from ddpsim.common.options.option import Option, Section, check_choices, default_of
from ddpsim.common.units import parse_size
from ddpsim.simulation.jobs.pipeline import Pipeline

RunOrder = Literal["gpipe", "1f1b", "interleaved"]
"""The orders that torch carries out: PipeDream's, without a flush, it does not."""

_OF_A_PIPELINE = {"backend", "batch_size", "iterations", "timeout", "seed"}
"""Options of a run that one with a pipeline takes too."""


def _bytes(text: str, name: str) -> int:
    return round(parse_size(text, name))


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineOptions:
    """Options of a pipeline that runs; without `pipeline` none of the others may be given.

    Attributes:
        pipeline: the order in which a rank computes; None where the model is whole on each rank.
        stages: ranks of a pipeline; None is all. The ranks beyond are copies, whose gradients are summed.
        stages_per_rank: of `interleaved`.
        micro_batches: of a step and a copy.
        boundary_bytes: of a micro-batch's activations between timed stages; a model's own are sent as they are.
        predicted: a file by `ddpsim pipeline --json`: a model is cut as it says, and what it says is held against the
            measured step.
    """

    pipeline: Annotated[
        RunOrder | None,
        Option("Cut the model into stages, by torch.distributed.pipelining; ranks beyond `stages` are copies."),
        Section.BUCKETS,
    ] = None
    stages: Annotated[int | None, Option("With `pipeline`: ranks of one. [all]", "P", least=2), Section.BUCKETS] = None
    stages_per_rank: Annotated[
        int | None, Option("With interleaved: stages of each rank. [2]", "V", least=2), Section.BUCKETS
    ] = None
    micro_batches: Annotated[
        int | None, Option("With `pipeline`: micro-batches of a step. [1]", "M", least=1), Section.BUCKETS
    ] = None
    boundary_bytes: Annotated[
        int | None,
        Option(
            "With `pipeline` and timed layers: bytes of a micro-batch's activations.", "SIZE", name="boundary",
            parse=_bytes,
        ), Section.BUCKETS,
    ] = None  # fmt: skip
    predicted: Annotated[
        str | None,
        Option("With `pipeline`: what `ddpsim pipeline --json` said, to be held against the run.", "FILE"),
        Section.BUCKETS,
    ] = None

    def __post_init__(self) -> None:
        check_choices(self)
        if self.pipeline is None:
            option = next((each.name for each in fields(self) if getattr(self, each.name) is not None), None)
            if option is not None:
                remedy = "give `pipeline` too: gpipe, 1f1b or interleaved"
                raise OptionError(f"`{option}` is of a pipeline", place=option, remedy=remedy)

    def check(self, world_size: int) -> Pipeline:
        """Return the pipeline of these options on `world_size` ranks.

        Raises:
            InputError: stages that do not divide the ranks, or options that contradict each other.
        """
        stages = world_size if self.stages is None else self.stages
        if stages < 2 or world_size % stages:
            what = f"{stages} stages do not divide {world_size} ranks" if stages > 1 else "a pipeline of one rank"
            raise OptionError(what, place="stages", remedy="give a divisor of 2 or more, and start as many ranks")
        several = 2 if self.pipeline == "interleaved" else 1
        return Pipeline(
            stages=stages,
            stages_per_rank=several if self.stages_per_rank is None else self.stages_per_rank,
            micro_batches=self.micro_batches or 1,
            order=self.pipeline or "gpipe",
            boundary_bytes=self.boundary_bytes or 0,
        )


def check_beside(options: PipelineOptions, settings: RunSettings, *, step: bool, timed: bool, plan: bool) -> None:
    """Refuse what belongs to DDP alone, a step of one's own, and timed stages without bytes to send.

    Raises:
        OptionError: it names both options.
    """
    refuse_excluded(settings, "run --pipeline", OptionError, beside={"pipeline": True, "step": step, "plan": plan})
    for each in fields(settings):
        if each.name not in _OF_A_PIPELINE and getattr(settings, each.name) != default_of(each):
            what = f"`pipeline` and `{each.name}` are both given"
            raise OptionError(what, place="pipeline", remedy=f"leave `{each.name}` out")
    if timed and options.boundary_bytes is None:
        remedy = "give the activations of a micro-batch: samples x values of a sample x bytes, e.g. 25MiB"
        raise OptionError("how many bytes timed stages send is not said", place="boundary_bytes", remedy=remedy)
    if not timed and options.boundary_bytes is not None:
        what = "a model sends its own activations"
        raise OptionError(what, place="boundary_bytes", remedy="leave it out, or give a `workload`")
