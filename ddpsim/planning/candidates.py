"""The candidates of a search: schemes, groups that share layers, pipelines, micro-batches and how many make a step.

Start at `candidates_of`. All candidates have the same samples a step: ranks that share layers or stages are one
data-parallel rank, whose share of the samples its micro-batches divide. What does not divide, cannot be cut or
contradicts itself is counted as ruled out, with the first error as its example, rather than raised.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import gcd

import numpy as np

from ddpsim.common.errors import InputError
from ddpsim.common.options.exclusions import refuse_excluded
from ddpsim.common.options.option import check_at_least_one
from ddpsim.common.units import format_count
from ddpsim.prediction.models import Model
from ddpsim.prediction.simulated_run import leave_out_repeated
from ddpsim.schedules.named import scheme_named
from ddpsim.simulation.jobs.pipeline import WHOLE_MODEL, Pipeline
from ddpsim.simulation.jobs.simulated import Options
from ddpsim.simulation.jobs.stages import boundary_of, stages_of
from ddpsim.simulation.lanes import check_layer_groups
from ddpsim.topology.cluster import Topology
from ddpsim.topology.graph import Placement
from ddpsim.workload import Workload

SCHEMES = ("ddp", "zero1", "zero2", "fsdp2")
"""Those that are looked over where none are named, and `hsdp` with a copy a node: PyTorch's own, and ZeRO's stages."""

NOT_DIVIDED, NOT_CUT, NOT_TOGETHER = "does not divide", "cannot be cut", "does not go together"
TOO_MANY, NOT_FITTING, MAY_NOT_FIT, SLOWER = "not simulated", "does not fit", "may not fit", "slower"
"""Why a candidate is ruled out: ranks, nodes, heads, layers or samples that are left over; a step whose layers cannot
be cut over ranks; options that exclude each other; more micro-batches than `MOST_MICRO_BATCHES`; memory; time."""

MOST_MICRO_BATCHES = 128
"""Micro-batches of a step that a candidate may have where they are not alike, or pass through stages; chosen by hand.

A leader's band is of all of them then. Elsewhere of more than so many eight are simulated.
"""

_DIVIDING = ("tensor_parallel", "pipeline", "global_batch_size")
"""Places of errors of what is left over."""

MOST_STAGES = 16
"""Ranks of a pipeline that is looked over where none are named, chosen by hand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchCandidate:
    """One way to train: another dimension is another field here, and its values are in `SearchSpace`.

    Attributes:
        scheme: as `--scheme` takes it.
        tensor_parallel: consecutive ranks that share each layer.
        micro_batch_size: samples that such a group computes at once.
        accumulate: micro-batches of a step.
        pipeline: in whose stages they are computed; None where each rank, or group, has all layers.
    """

    scheme: str
    tensor_parallel: int
    micro_batch_size: int
    accumulate: int
    pipeline: Pipeline | None = None

    def __str__(self) -> str:
        batch = format_count(self.accumulate, "micro-batch")
        together = f", tensor-parallel {self.tensor_parallel}" if self.tensor_parallel > 1 else ""
        stages = "" if self.pipeline is None else f", pipeline {self.pipeline}"
        return f"{self.scheme}{together}{stages}, {batch} of {self.micro_batch_size}"

    def options(self, asked: Options) -> Options:
        """Return the options of its job, all else as asked.

        Raises:
            InputError: options that contradict each other.
        """
        ranks = replace(asked, tensor_parallel=self.tensor_parallel, pipeline=self.pipeline, accumulate=1)
        return replace(ranks, scheme=self.scheme).of_micro_batches(self.accumulate)

    def document(self, world_size: int) -> dict[str, object]:
        """Return its keys of a row, on so many ranks."""
        return {
            "scheme": self.scheme,
            "tensor_parallel": self.tensor_parallel,
            "stages": None if self.pipeline is None else str(self.pipeline),
            "data_parallel": world_size // self.tensor_parallel // (self.pipeline or WHOLE_MODEL).stages,
            "micro_batch_size": self.micro_batch_size,
            "accumulate": self.accumulate,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSpace:
    """The values that a search tries in each dimension; None are sensible ones.

    Attributes:
        schemes: as `--scheme` takes them; None are `SCHEMES`.
        tensor_parallel: consecutive ranks that share each layer; None are powers of two in a node, where the step can
            be cut.
        pipelines: of which None has each rank, or group, compute all layers, and micro-batches are those of a step;
            None are that, and 1F1B with powers of two, where it is known what passes between a model's layers.
        micro_batch_sizes: samples that such a group computes at once; None are the workload's batch by powers of two,
            where it can be estimated anew.
        global_batch_size: samples of a step, of all ranks; None are the workload's batch on every rank, by the
            micro-batches of the options.
    """

    schemes: Sequence[str] | None = None
    tensor_parallel: Sequence[int] | None = None
    pipelines: Sequence[Pipeline | None] | None = None
    micro_batch_sizes: Sequence[int] | None = None
    global_batch_size: int | None = None

    def __post_init__(self) -> None:
        for name in ("schemes", "tensor_parallel", "pipelines", "micro_batch_sizes"):
            values = getattr(self, name)
            if values is not None and not values:
                raise InputError("nothing is given", place=name, remedy="give at least one")
        if self.global_batch_size is not None:
            check_at_least_one("global_batch_size", self.global_batch_size)


@dataclass(frozen=True, slots=True)
class RuledOut:
    """Candidates that a search ruled out, for one reason.

    Attributes:
        example: what is wrong with the first of them, in words; None where the reason says it all.
    """

    reason: str
    count: int
    example: str | None = None

    def document(self) -> dict[str, object]:
        """Return it as JSON values."""
        return {"reason": self.reason, "count": self.count, "example": self.example}


@dataclass(slots=True)
class RuledOutCounts:
    """How many candidates are ruled out so far, by reason.

    Attributes:
        first: the first error that ruled some out.
    """

    first: InputError | None = None
    _counts: dict[str, int] = field(default_factory=dict)
    _examples: dict[str, str] = field(default_factory=dict)

    def add(self, reason: str, count: int = 1, error: InputError | None = None) -> None:
        """Count some that are ruled out, by an error where there is one."""
        if not count:
            return
        self._counts[reason] = self._counts.get(reason, 0) + count
        if error is not None:
            self.first = self.first or error
            scheme = f"{error.place}: " if (error.place or "").startswith("scheme") else ""
            self._examples.setdefault(reason, f"{scheme}{error.message}")

    def explain(self, reason: str, example: str) -> None:
        """Say of those of a reason what the nearest of them lacks."""
        self._examples[reason] = example

    @property
    def total(self) -> int:
        """How many are ruled out, for whatever reason."""
        return sum(self._counts.values())

    def list_all(self) -> tuple[RuledOut, ...]:
        """Return all of them, in the order in which they were looked at."""
        order = (NOT_DIVIDED, NOT_CUT, NOT_TOGETHER, TOO_MANY, NOT_FITTING, MAY_NOT_FIT, SLOWER)
        return tuple(
            RuledOut(each, self._counts[each], self._examples.get(each)) for each in order if each in self._counts
        )


@dataclass(frozen=True, slots=True)
class CandidateRun:
    """A candidate with the workload of one of its ranks.

    Attributes:
        least_s: seconds that a step computes whatever it sends; no step of it is shorter.
    """

    candidate: SearchCandidate
    workload: Workload
    options: Options
    least_s: float


def default_schemes(placement: Placement) -> list[str]:
    """Return the schemes that are looked over where none are named."""
    each, nodes = placement.gpus_per_node, placement.nodes
    return [*SCHEMES, *([f"hsdp:{each}"] if nodes > 1 and each > 1 else [])]


def global_batch_size_of(model: Model, placement: Placement, options: Options, space: SearchSpace) -> int:
    """Return the samples of a step.

    Raises:
        InputError: they are given, and micro-batches too.
    """
    if space.global_batch_size is None:
        return model.source.batch_size * placement.world_size * options.accumulate
    refuse_excluded(options, "plan --search", beside={"global_batch_size": space.global_batch_size})
    return space.global_batch_size


def candidates_of(
    model: Model,
    topology: Topology,
    placement: Placement,
    options: Options,
    space: SearchSpace,
    ruled_out: RuledOutCounts,
) -> list[CandidateRun]:
    """Return the candidates that divide ranks, layers and samples, and count the others as ruled out.

    Raises:
        InputError: a workload that keeps its own batch where others are asked for, a machine whose pace cannot be had,
            or a scheme some of whose ranks do not train.
    """
    samples = global_batch_size_of(model, placement, options, space)
    schemes = space.schemes or default_schemes(placement)
    for scheme in schemes:
        _refuse_servers(scheme)
    runs: list[CandidateRun] = []
    cuts = list(space.tensor_parallel or _default_ranks(model, placement, options))
    pipelines = space.pipelines or _default_pipelines(model, placement, options)
    every = schemes
    for ranks, pipeline in product(cuts, pipelines):
        # With stages that nobody named, only the scheme is tried by which no forward waits for messages.
        schemes = [each for each in every if each == "ddp"] if pipeline and not space.pipelines else every
        try:
            cut = replace(options, scheme="ddp", tensor_parallel=ranks, accumulate=1, pipeline=pipeline)
            cut.check_ranks(placement.world_size)
            check_layer_groups(placement, cut.cut.near_ranks(placement.world_size, ranks))
            whole = model.on(topology, options=cut)
            if pipeline is not None:
                stages_of(whole, pipeline.stages * pipeline.stages_per_rank)
            in_group = _samples_of_group(samples, placement.world_size // cut.ranks_a_copy)
        except InputError as error:
            if any(name in (error.place or "") for name in _DIVIDING):
                ruled_out.add(NOT_DIVIDED, len(schemes), error)
            # A default that cannot be cut was never a candidate; one that the user named is counted.
            elif space.tensor_parallel is not None or space.pipelines is not None:
                ruled_out.add(NOT_CUT, len(schemes), error)
            continue
        for batch in space.micro_batch_sizes or _default_batches(model, in_group):
            if in_group % batch:
                what = f"micro-batches of {batch} do not divide the {in_group} samples of a data-parallel rank"
                left_over = InputError(what, place="micro_batch_size", remedy=f"give a divisor of {in_group}")
                ruled_out.add(NOT_DIVIDED, len(schemes), left_over)
                continue
            workload = model.on(topology, batch, options=cut)
            of_step = replace(cut, accumulate=1 if pipeline else in_group // batch)
            simulated = in_group // batch if pipeline else leave_out_repeated(of_step, workload)[0].accumulate
            if simulated > MOST_MICRO_BATCHES:
                ruled_out.add(TOO_MANY, len(schemes), _too_many(in_group, batch))
                continue
            first = SearchCandidate(
                scheme="ddp",
                tensor_parallel=ranks,
                micro_batch_size=batch,
                accumulate=in_group // batch,
                pipeline=pipeline,
            )
            runs += _of_schemes(schemes, first, workload, options, ruled_out)
    return runs


def plain_ddp_of(
    model: Model, topology: Topology, placement: Placement, options: Options, space: SearchSpace
) -> CandidateRun:
    """Return the job as it is before any search: DDP, every layer on every rank, the workload's own batch.

    Raises:
        InputError: samples that ranks do not divide, options that DDP does not take, and as `candidates_of`.
    """
    of_rank = _samples_of_group(global_batch_size_of(model, placement, options, space), placement.world_size)
    batch = gcd(of_rank, model.source.batch_size)
    candidate = SearchCandidate(scheme="ddp", tensor_parallel=1, micro_batch_size=batch, accumulate=of_rank // batch)
    own = candidate.options(options)
    return CandidateRun(candidate, model.on(topology, batch, options=own), own, 0.0)


def _refuse_servers(scheme: str) -> None:
    """Refuse a scheme of which some ranks do not train: a step of it would have other samples than the others'."""
    if scheme_named(scheme).servers is not None:
        what, remedy = "some of its ranks do not train, so that a step has other samples", "leave it out of a search"
        raise InputError(what, place=f"scheme {scheme!r}", remedy=remedy)


def _of_schemes(
    schemes: Sequence[str],
    first: SearchCandidate,
    workload: Workload,
    options: Options,
    ruled_out: RuledOutCounts,
) -> Iterator[CandidateRun]:
    """Yield the candidates that differ from `first` in their schemes."""
    for scheme in schemes:
        candidate = replace(first, scheme=scheme)
        try:
            own = candidate.options(options)
        except InputError as error:
            ruled_out.add(NOT_TOGETHER, 1, error)
            continue
        yield CandidateRun(candidate, workload, own, _least_s(candidate, _computing_s(workload, options)))


def _least_s(candidate: SearchCandidate, micro_batch_s: float) -> float:
    """Return what a step computes at least where a micro-batch of the whole model takes so long.

    The first micro-batch passes all stages but its own rank's, while a rank computes nothing.
    """
    cut = candidate.pipeline or WHOLE_MODEL
    return (candidate.accumulate + (cut.stages - 1) / cut.stages_per_rank) * micro_batch_s / cut.stages


def _default_ranks(model: Model, placement: Placement, options: Options) -> Iterator[int]:
    """Yield the sizes of groups that are looked over where none are given: one, and powers of two that a node holds.

    Ranks that share experts do not share layers too.
    """
    yield 1
    ranks = 2
    while _is_estimated(model) and options.expert_parallel == 1 and ranks <= placement.gpus_per_node:
        yield ranks
        ranks *= 2


def _default_pipelines(model: Model, placement: Placement, options: Options) -> list[Pipeline | None]:
    """Return the pipelines that are looked over where none are given: none, and powers of two of ranks."""
    pipelines: list[Pipeline | None] = [None]
    stages = 2
    known = _is_estimated(model) and boundary_of(model.source) is not None and options.expert_parallel == 1
    while known and stages <= min(MOST_STAGES, placement.world_size):
        pipelines.append(Pipeline(order="1f1b", stages=stages))
        stages *= 2
    return pipelines


def _default_batches(model: Model, samples: int) -> list[int]:
    """Return the micro-batches that are looked over where none are given, descending.

    They are the workload's own by powers of two, and all samples of a group at once.
    """
    own = model.source.batch_size
    if not _is_estimated(model) or model.keeps_pace:
        return [own]
    batches = {samples}
    while own % 2 == 0:
        own //= 2
    while own <= samples:
        batches.add(own)
        own *= 2
    return sorted((batch for batch in batches if samples % batch == 0), reverse=True)


def _is_estimated(model: Model) -> bool:
    """Whether steps of other batches and of parts of layers are estimated alike."""
    return model.source.estimated and model.source.operators is not None and not model.source.one_clock


def _too_many(samples: int, batch: int) -> InputError:
    what = f"{samples // batch:,} micro-batches of {batch} are a step, and {MOST_MICRO_BATCHES} are simulated at most"
    return InputError(what, place="micro_batch_size", remedy="give larger ones, more nodes, or fewer samples a step")


def _samples_of_group(samples: int, groups: int) -> int:
    if samples % groups:
        what = f"{groups} data-parallel ranks do not divide {samples} samples a step"
        raise InputError(what, place="global_batch_size", remedy=f"give a multiple of {groups}")
    return samples // groups


def _computing_s(workload: Workload, options: Options) -> float:
    """Return what the device works in forward and backward of the shortest recorded iteration, at least."""
    if workload.one_clock:
        return 0.0
    phases = (("forward", workload.forward), ("backward", workload.backward))
    work_s = sum(options.scale.get(name, 1.0) * np.asarray(phase.device_s) for name, phase in phases)
    return options.scale_compute * float(np.min(work_s))
