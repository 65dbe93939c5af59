"""What a user may ask of a pipeline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, cast, get_args

from ddpsim.common.errors import InputError
from ddpsim.common.options.exclusions import refuse_excluded
from ddpsim.common.options.option import Option, check_at_least_one, check_choices
from ddpsim.common.suboptions import count, parse_options, value
from ddpsim.common.units import format_count, format_size, parse_size
from ddpsim.schedules.mesh import beside_tensor
from ddpsim.schedules.pipeline import ORDERS, Order, beside_stages, passes_of, works_of
from ddpsim.schedules.schedule import Schedule


def _bytes(text: str, name: str) -> int:
    return round(parse_size(text, name))


Mapping = Literal["tp-pp-dp", "tp-dp-pp"]
MAPPINGS: tuple[Mapping, ...] = get_args(Mapping)


def _mapping(text: str, place: str) -> str:
    if text not in MAPPINGS:
        raise InputError(f"{text!r} is no mapping", place=place, remedy=f"use {' or '.join(MAPPINGS)}")
    return text


@dataclass(frozen=True, slots=True)
class _Asked:
    """Options behind an order and its stages, with the names that `ddpsim pipeline` has for them."""

    micro_batches: int = value(count, 1, "micro-batches")
    stages_per_rank: int | None = value(count, None, "stages-per-rank")
    boundary_bytes: int | None = value(_bytes, None, "boundary")
    mapping: str = value(_mapping, "tp-pp-dp", "mapping")


def parse_pipeline(text: str, name: str) -> Pipeline:
    """Return the pipeline that a text asks for: `1f1b:4,micro-batches=16`.

    Raises:
        InputError: no such order, an order that a step never ends, or what is no count.
    """
    order, colon, rest = text.partition(":")
    orders = [each for each in ORDERS if each != "pipedream"]
    if order not in orders or not colon:
        what = f"{text[:60]!r} has no order and stages of a pipeline"
        if order == "pipedream":
            what = "`pipedream` has no end of a step, at which gradients are summed"
        raise InputError(what, place=name, remedy=f"write e.g. 1f1b:4,micro-batches=16; orders are {', '.join(orders)}")
    stages, _, others = rest.partition(",")
    options = parse_options(_Asked, others, name)
    if order == "interleaved" and stages == "1":
        what = "interleaved has one rank, whose stages have no order but their own"
        raise InputError(what, place=name, remedy="give 2 ranks or more, or use 1f1b")
    per_rank = options.stages_per_rank or (2 if order == "interleaved" else 1)
    try:
        return Pipeline(
            stages=count(stages, f"{name}, stages"),
            stages_per_rank=per_rank,
            micro_batches=options.micro_batches,
            boundary_bytes=options.boundary_bytes,
            mapping=cast("Mapping", options.mapping),
            order=cast("Order", order),
        )
    except InputError as error:
        error.at(name)


def parse_pipelines(text: str, name: str) -> list[Pipeline | None]:
    """Return the pipelines of a list, None for `none`: `none,1f1b:2,interleaved:4,stages-per-rank=3`.

    Raises:
        InputError: as `parse_pipeline`.
    """
    texts: list[str] = []
    for each in text.split(","):
        if texts and "=" in each:
            texts[-1] += f",{each}"
        else:
            texts.append(each)
    return [None if each == "none" else parse_pipeline(each, name) for each in texts]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """A model cut into stages, or each of its layers cut over ranks, and copies of that side by side.

    Attributes:
        stages: ranks of a pipeline, each with consecutive layers, or with several such stages.
        stages_per_rank: of `interleaved`, whose rank r has the stages r, r + `stages`, ...
        micro_batches: of a step and a copy, each of the workload's batch.
        order: in which a stage computes them.
        tensor_ranks: ranks that each layer is cut over, whose activations are allreduced twice in a layer's forward and
            twice in its backward (Mesh-TensorFlow, Shazeer et al. 2018; Megatron-LM, Shoeybi et al. 2019).
        gradients: when copies sum them: after a rank's last work, all together, or by DDP's buckets under the last
            backward of each stage.
        boundary_bytes: of a micro-batch's activations between two layers; None is what an estimated transformer's are,
            and of no matter where nothing is cut.
        mapping: which ranks are next to each other, the nearest first, as Megatron-LM's `--use-tp-pp-dp-mapping` says:
            those that share layers, then the stages of a copy, then copies; or each stage of all copies together.

    Raises:
        InputError: a count below one, both ways of cutting at once, or options that contradict each other.
    """

    boundary_bytes: Annotated[
        int | None,
        Option("Bytes of a micro-batch's activations from one layer to the next, which stages send and cut layers "
               "allreduce. [an estimated transformer's own]", "SIZE", name="boundary", parse=_bytes),
    ] = None  # fmt: skip
    stages: Annotated[int, Option("Stages of the pipeline, a rank each.", "P")] = 1
    stages_per_rank: Annotated[int, Option("Stages of each rank, with the order interleaved.", "V")] = 1
    micro_batches: Annotated[int, Option("Micro-batches of a step, each of the workload's batch.", "M")] = 1
    order: Annotated[Order, Option("In which a stage computes them.")] = "gpipe"
    tensor_ranks: Annotated[int, Option("Ranks that each layer is cut over.", "R")] = 1
    gradients: Annotated[
        Literal["after", "ddp"],
        Option("When copies sum gradients: after a rank's last work, as `ddpexec run --pipeline` does, or by DDP's "
               "buckets under each stage's last backward."),
    ] = "after"  # fmt: skip
    mapping: Annotated[
        Mapping,
        Option("Which ranks are nearest: those of a pipeline, or of all copies of a stage, as Megatron-LM has it."),
    ] = "tp-pp-dp"

    def place_of(self, rank: int, world_size: int, tensor_ranks: int = 1) -> int:
        """Return the place in its pipeline of a rank.

        Args:
            tensor_ranks: that share each layer of a stage, next to each other.
        """
        if self.mapping == "tp-dp-pp":
            return rank * self.stages // world_size
        return rank // tensor_ranks % self.stages

    def near_ranks(self, world_size: int, tensor_ranks: int) -> int:
        """Return how many consecutive ranks have a copy of the model, or where copies are far apart, a stage of all."""
        return tensor_ranks * self.stages if self.mapping == "tp-pp-dp" else world_size // self.stages

    def on_ranks(
        self, schedule: Schedule, place: int, tensor_ranks: int, data_ranks: int, boundary_bytes: int | None
    ) -> Schedule:
        """Return a schedule that was made for `data_ranks` ranks as those of one place carry it out.

        Args:
            boundary_bytes: of a micro-batch's activations between two layers, where it is not told itself.

        Raises:
            PlanError: as `beside_tensor`, and of several stages as `beside_stages`.
        """
        if self.stages == 1:
            return schedule if tensor_ranks == 1 else beside_tensor(schedule, tensor_ranks, data_ranks)
        works = works_of(self.order, self.stages, self.micro_batches, self.stages_per_rank)
        passes = passes_of(self.order, works, place, self.boundary_bytes or boundary_bytes or 0)
        return beside_stages(schedule, place, tensor_ranks, data_ranks, passes)

    def tell_by_few(self, least: int) -> tuple[int, int]:
        """Return how many micro-batches, no fewer than `least`, and one or how many less tell a step of more.

        Stages are filled, then each further micro-batch of each takes as long; several together, in rounds.
        """
        rounds = self.stages_per_rank > 1
        return (3 * self.stages, self.stages) if rounds else (max(least, 2 * self.stages), 1)

    def text(self, boundary_bytes: int | None) -> str:
        """Return it in words; `boundary_bytes` is as that of `on_ranks`."""
        held = "" if self.stages_per_rank == 1 else f", {self.stages_per_rank} a rank"
        many = f"{self.order}, {format_count(self.micro_batches, 'micro-batch')} a step"
        passed = f"{format_size(self.boundary_bytes or boundary_bytes or 0)} from each to the next"
        return f"pipeline of {format_count(self.stages * self.stages_per_rank, 'stage')}{held}, {many}, {passed}"

    def document(self, boundary_bytes: int | None) -> dict[str, object]:
        """Return it as JSON values; `boundary_bytes` is as that of `on_ranks`."""
        return {
            "order": self.order,
            "stages": self.stages,
            "stages_per_rank": self.stages_per_rank,
            "micro_batches": self.micro_batches,
            "boundary_bytes": self.boundary_bytes or boundary_bytes or 0,
        }

    def __str__(self) -> str:
        several = "" if self.stages_per_rank == 1 else f",stages-per-rank={self.stages_per_rank}"
        mapped = "" if self.mapping == "tp-pp-dp" else f",mapping={self.mapping}"
        return f"{self.order}:{self.stages}{several}{mapped}"

    def __post_init__(self) -> None:
        check_choices(self)
        for name in ("stages", "stages_per_rank", "micro_batches", "tensor_ranks"):
            check_at_least_one(name, getattr(self, name))
        refuse_excluded(self, "pipelines")


WHOLE_MODEL = Pipeline()
"""A whole model: one stage, of whose micro-batches each is an iteration."""
