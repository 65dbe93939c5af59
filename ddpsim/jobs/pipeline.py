"""What a user may ask of a pipeline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, cast

from ddpsim.errors import InputError
from ddpsim.options.asked import count, parse_options, value
from ddpsim.options.option import Option, check_at_least_one, check_choices
from ddpsim.schedules.pipeline import ORDERS, Order
from ddpsim.units import parse_size


def _bytes(text: str, name: str) -> int:
    return round(parse_size(text, name))


@dataclass(frozen=True, slots=True)
class _Asked:
    """Options behind an order and its stages, with the names that `ddpsim pipeline` has for them."""

    micro_batches: int = value(count, 1, "micro-batches")
    stages_per_rank: int | None = value(count, None, "stages-per-rank")
    boundary_bytes: int | None = value(_bytes, None, "boundary")


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
    asked = parse_options(_Asked, others, name)
    per_rank = asked.stages_per_rank or (2 if order == "interleaved" else 1)
    try:
        return Pipeline(
            stages=count(stages, f"{name}, stages"),
            stages_per_rank=per_rank,
            micro_batches=asked.micro_batches,
            boundary_bytes=asked.boundary_bytes,
            order=cast("Order", order),
        )
    except InputError as error:
        error.at(name)


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

    def __post_init__(self) -> None:
        check_choices(self)
        for name in ("stages", "stages_per_rank", "micro_batches", "tensor_ranks"):
            check_at_least_one(name, getattr(self, name))
        if (self.order == "interleaved") != (self.stages_per_rank > 1):
            what = f"`order={self.order}` and `stages_per_rank={self.stages_per_rank}` do not go together"
            remedy = "interleaved takes 2 or more stages a rank, other orders one"
            raise InputError(what, place="stages_per_rank", remedy=remedy)
        if self.order == "pipedream" and self.gradients == "ddp":
            what = (
                "`order=pipedream` and `gradients=ddp` are both given, and without a flush no backward is a step's last"
            )
            raise InputError(what, place="gradients", remedy="use `gradients=after`, or another order")
        if self.stages > 1 and self.tensor_ranks > 1:
            raise InputError("`stages` and `tensor_ranks` are both above 1", place="stages", remedy="give one of them")
