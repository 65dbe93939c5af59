"""Layer dropping (Li et al. 2020, section 6.2.2): which layers an iteration leaves out, and what need not be reduced.

All ranks must leave out the same layers. A `DropPlan` draws them from a seed they share, or takes them from one rank;
either way a rank knows without searching the graph which gradients will not come.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from ddpsim.bucketing.assign import Parameter, assign_buckets
from ddpsim.bucketing.plan import BucketPlan, custom_plan
from ddpsim.common.errors import PlanError


@dataclass(frozen=True, slots=True)
class DroppableLayer:
    """Parameters that are left out together.

    Attributes:
        name: the module's dotted name.
        parameters: registration indices.
        probability: of being left out of an iteration.
    """

    name: str
    parameters: tuple[int, ...]
    probability: float


def layers_named(parameters: Sequence[Parameter], probabilities: Mapping[str, float]) -> tuple[DroppableLayer, ...]:
    """Return the layers of these module names, each with all parameters below it.

    Args:
        parameters: in registration order.
        probabilities: dotted module name to the probability of leaving it out.

    Raises:
        PlanError: a name without parameters, a parameter below two names, a probability out of range.
    """
    layers = []
    for name, probability in probabilities.items():
        indices = tuple(i for i, p in enumerate(parameters) if p.name.startswith(f"{name}."))
        if not indices:
            remedy = "give a module's name, e.g. encoder.layer.3"
            raise PlanError(f"no parameter is below {name!r}", place="drop", remedy=remedy)
        layers.append(DroppableLayer(name, indices, probability))
    return tuple(layers)


@dataclass(frozen=True, slots=True)
class DropPlan:
    """Which layers each iteration leaves out; the same answer on every rank.

    Attributes:
        layers: those that may be left out.
        seed: shared by all ranks; iteration and seed alone decide.
        given: iteration to the indices of the layers left out, where one rank decided and told the others; an
            iteration that is not in it is drawn.

    Raises:
        PlanError: layers that share a parameter, or a probability that is not one.
    """

    layers: tuple[DroppableLayer, ...]
    seed: int = 0
    given: Mapping[int, Collection[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        owner: dict[int, str] = {}
        for layer in self.layers:
            if not 0 <= layer.probability <= 1:
                what = f"probability {layer.probability!r} of {layer.name!r} is out of range"
                raise PlanError(what, place="drop", remedy="give a number from 0 to 1")
            for index in layer.parameters:
                if index in owner:
                    what = f"parameter {index} is in the layers {owner[index]!r} and {layer.name!r}"
                    raise PlanError(what, place="drop", remedy="name layers that do not contain each other")
                owner[index] = layer.name

    def layers_dropped(self, iteration: int) -> list[int]:
        """Return the indices of the layers that `iteration` leaves out, ascending."""
        if iteration in self.given:
            return sorted(self.given[iteration])
        draw = random.Random(f"{self.seed}:{iteration}")  # a string is hashed alike in every process
        return [number for number, layer in enumerate(self.layers) if draw.random() < layer.probability]

    def parameters_dropped(self, iteration: int) -> frozenset[int]:
        """Return the registration indices whose gradients `iteration` will not bring."""
        return frozenset(index for number in self.layers_dropped(iteration) for index in self.layers[number].parameters)


def skipped_buckets(groups: Sequence[Sequence[int]], dropped: Collection[int]) -> list[int]:
    """Return the buckets that hold nothing but dropped parameters, for `LaunchQueue.reset`; they are not reduced.

    Dropped parameters of other buckets are marked ready when backward starts (`LaunchQueue.start`) and reduced as
    zeros.
    """
    lost = set(dropped)
    return [number for number, group in enumerate(groups) if lost.issuperset(group)]


def aligned_plan(
    parameters: Sequence[Parameter],
    layers: Sequence[DroppableLayer],
    limits: Sequence[int | None],
    order: Sequence[int],
) -> BucketPlan:
    """Return a plan in which no bucket holds parameters of a layer beside anything else, so that it can be skipped.

    Each layer, and all else together, is assigned by itself; buckets are launched by their last gradient in `order`.

    Args:
        parameters: in registration order.
        layers: those that may be left out.
        limits: bytes, as `assign_buckets` takes them.
        order: registration indices in arrival order.
    """
    owner = {index: number for number, layer in enumerate(layers) for index in layer.parameters}
    place = {index: n for n, index in enumerate(order)}
    groups: list[tuple[int, ...]] = []
    for number in sorted({owner.get(index, -1) for index in order}):
        members = [index for index in order if owner.get(index, -1) == number]
        groups += [bucket.parameters for bucket in assign_buckets(parameters, limits, members)]
    return custom_plan(parameters, sorted(groups, key=lambda group: max(place[index] for index in group)))


def remap_gradients(
    parameters: Sequence[Parameter], groups: Sequence[Sequence[int]], dropped: Collection[int]
) -> list[tuple[int, ...]]:
    """Return which gradients lie in which bucket's memory where what is left moves up, and dropped ones lie nowhere.

    Li et al. keep "bucket buffers intact but modify parameter-to-bucket mappings" (2020, section 6.2.2). What is left
    of the buckets, in their order, goes into the first memory of its type that has room; as all before it have moved up
    too, that is never behind its own. Nothing is allocated, and no more is sent than is left.

    Args:
        parameters: in registration order.
        groups: registration indices of each bucket, in launch order.
        dropped: registration indices of what is left out.

    Returns:
        As many groups as there are, in their order; empty where nothing is left for a bucket.
    """
    lost = set(dropped)
    room = [sum(parameters[index].size_bytes for index in group) for group in groups]
    filled: list[list[int]] = [[] for _ in groups]
    memory: dict[object, list[int]] = {}
    place: dict[object, int] = {}
    for number, group in enumerate(groups):
        for index in group:
            memory.setdefault(_kind(parameters, index), []).append(number)
    for group in groups:
        for index in group:
            if index in lost:
                continue
            kind, size = _kind(parameters, index), parameters[index].size_bytes
            numbers = memory[kind]
            at = place.get(kind, 0)
            while room[numbers[at]] < size:
                at += 1
            place[kind] = at
            room[numbers[at]] -= size
            filled[numbers[at]].append(index)
    return [tuple(group) for group in filled]


def _kind(parameters: Sequence[Parameter], index: int) -> object:
    """Return what gradients must have in common to share memory; a sparse one shares none."""
    parameter = parameters[index]
    return index if parameter.sparse else (parameter.dtype, parameter.device)


def expected_bytes(plan: BucketPlan, layers: Sequence[DroppableLayer]) -> float:
    """Return the mean bytes an iteration reduces when buckets without a gradient are skipped.

    A bucket is skipped where all the layers it holds are left out and it holds nothing else.
    """
    owner = {index: number for number, layer in enumerate(layers) for index in layer.parameters}
    total = 0.0
    for bucket in plan.buckets:
        inside = {owner.get(index) for index in bucket.parameters}
        skipped = 0.0 if None in inside else 1.0
        for number in inside - {None}:
            skipped *= layers[number].probability  # type: ignore[index]
        total += (1 - skipped) * bucket.size_bytes
    return total
