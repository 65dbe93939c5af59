"""Pipelines, held to GPipe's bubble, an exhaustive division into stages, and closed forms."""

from __future__ import annotations

import itertools
import random

import pytest

from ddpsim import InputError, Options, load_topology
from ddpsim.collectives.execute import make_transport
from ddpsim.common.operation import Operation
from ddpsim.planning.pipeline import PipelineStep, in_closed_form, pipeline_step
from ddpsim.prediction.predict import predict
from ddpsim.schedules.pipeline import (
    ORDERS,
    count_under_way,
    divide_stages,
    find_end_times,
    weight_versions,
    work_of,
    works_of,
)
from ddpsim.simulation.job import Job
from ddpsim.simulation.jobs.pipeline import Pipeline
from ddpsim.workload import Workload
from tests.ddpsim.simulation.builders import ALIKE, named, workload

SMALL = named(workload(device="V100", gradients=8, size=10_000))
"""Eight equal layers whose gradients take hardly any time to add."""


@pytest.mark.parametrize("order", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("stages", "micro_batches"), [(1, 1), (2, 1), (4, 4), (4, 32), (8, 3)])
def test_equal_stages_idle_for_gpipe_s_bubble(order: str, stages: int, micro_batches: int) -> None:
    works = works_of(order, stages, micro_batches)  # type: ignore[arg-type]
    through_s = max(find_end_times(works, [1.0] * stages, [2.0] * stages, [0.0] * (stages - 1)))
    assert through_s == pytest.approx(3 * (micro_batches + stages - 1))
    busy_s = 3 * micro_batches
    assert 1 - busy_s / through_s == pytest.approx((stages - 1) / (micro_batches + stages - 1))


def test_what_is_sent_is_waited_for_there_and_back() -> None:
    works = works_of("gpipe", 3, 1)
    assert max(find_end_times(works, [1.0] * 3, [2.0] * 3, [0.5, 0.25])) == pytest.approx(9 + 2 * 0.75)


@pytest.mark.parametrize("order", [order for order in ORDERS if order != "interleaved"])
def test_every_stage_computes_each_micro_batch_once_and_keeps_what_it_says(order: str) -> None:
    for stage in range(4):
        works = work_of(order, stage, 4, 6)  # type: ignore[arg-type]
        assert sorted(works) == sorted((kind, number) for kind in ("forward", "backward") for number in range(6))
        ahead = most = 0
        for kind, _ in works:
            ahead += 1 if kind == "forward" else -1
            most = max(most, ahead)
        assert most == count_under_way(order, stage, 4, 6)  # type: ignore[arg-type]
    assert [weight_versions("pipedream", stage, 4) for stage in range(4)] == [4, 3, 2, 1]


@pytest.mark.parametrize(("ranks", "micro_batches", "stages"), [(2, 4, 2), (4, 8, 2), (4, 3, 3), (2, 8, 4), (4, 10, 2)])
def test_interleaved_stages_compute_everything_once_and_idle_less(ranks: int, micro_batches: int, stages: int) -> None:
    works = works_of("interleaved", ranks, micro_batches, stages)
    found = sorted(each for work in works for each in work)
    everything = itertools.product(("backward", "forward"), range(ranks * stages), range(micro_batches))
    assert found == list(everything)
    assert all(stage % ranks == rank for rank, work in enumerate(works) for _, stage, _ in work)
    count = ranks * stages
    through_s = max(find_end_times(works, [1.0] * count, [2.0] * count, [0.0] * (count - 1)))
    busy_s = 3 * stages * micro_batches
    if micro_batches % ranks == 0:
        # Narayanan et al. 2021: the bubble is (p-1)/(v m) of the computation.
        assert through_s - busy_s == pytest.approx(3 * (ranks - 1))
    assert busy_s < through_s


def step_of(gpus: int, given: Pipeline, source: Workload = SMALL) -> PipelineStep:
    machine = load_topology("dgx-1v")
    options = Options(pipeline=given, scheme="ddp" if given.gradients == "ddp" else "flat")
    made = predict(Job(source, machine, nodes=1, gpus_per_node=gpus, options=options, calibration=ALIKE), band=False)
    return pipeline_step(made, given)


def test_interleaved_stages_of_a_model() -> None:
    given = {"stages": 4, "micro_batches": 8, "boundary_bytes": 1}
    plain = step_of(4, Pipeline(**given, order="1f1b"))
    step = step_of(4, Pipeline(**given, order="interleaved", stages_per_rank=2))
    assert len(step.stages) == 8
    assert step.bubble == pytest.approx(3 / (3 + 16), abs=0.01)
    assert step.step_s < plain.step_s
    assert step.activations == 4 + 2 * 3 + 1
    with pytest.raises(InputError, match="do not go into 2 rounds"):
        step_of(4, Pipeline(**{**given, "micro_batches": 9}, order="interleaved", stages_per_rank=2))
    for order, count in (("interleaved", 1), ("gpipe", 2)):
        with pytest.raises(InputError, match="do not go together"):
            Pipeline(**given, order=order, stages_per_rank=count)


def test_no_division_into_stages_has_a_shorter_longest_one() -> None:
    draw = random.Random(1)
    for _ in range(50):
        costs = [draw.random() for _ in range(draw.randint(3, 8))]
        stages = draw.randint(1, 3)
        begins = divide_stages(costs, stages)
        assert len(begins) == stages
        choices = ((0, *cuts) for cuts in itertools.combinations(range(1, len(costs)), stages - 1))
        assert longest(costs, begins) == pytest.approx(min(longest(costs, each) for each in choices))


def longest(costs: list[float], begins: tuple[int, ...] | list[int]) -> float:
    ends = [*begins[1:], len(costs)]
    return max(sum(costs[begin:end]) for begin, end in zip(begins, ends, strict=True))


def test_copies_of_a_pipeline_sum_a_stage_s_gradients_across_them() -> None:
    given = Pipeline(stages=4, micro_batches=8, boundary_bytes=1)
    one, two = step_of(4, given), step_of(8, given)
    assert (one.copies, two.copies) == (1, 2)
    assert one.allreduce_s < two.allreduce_s
    assert two.step_s == pytest.approx(one.step_s + two.allreduce_s, rel=0.002)
    assert two.exposed_allreduce_s == pytest.approx(two.allreduce_s, rel=0.2)
    # Eight equal layers on four stages: two each, of 30 and 80 ms in all; hosts launch, and gradients are added.
    assert one.bubble == pytest.approx(3 / 11, abs=0.01)
    assert one.step_s == pytest.approx(11 * 0.11 / 4 + 0.01 / 4, rel=0.01)


def test_without_a_flush_no_rank_idles() -> None:
    source, placement = named(workload(device="V100", gradients=8)), load_topology("dgx-1v").place(1, 8)
    found = in_closed_form(source, placement, Pipeline(stages=4, micro_batches=8, boundary_bytes=0, order="pipedream"))
    assert found.bubble == pytest.approx(0, abs=1e-9)
    assert found.weight_versions == 4


def test_cut_layers_allreduce_their_activations_four_times() -> None:
    source, placement = named(workload(device="V100", gradients=8)), load_topology("dgx-1v").place(1, 4)
    step = in_closed_form(source, placement, Pipeline(tensor_ranks=4, boundary_bytes=1 << 24))
    once_s = make_transport(placement, "nccl").time_s(Operation.ALLREDUCE, 1 << 24)
    assert step.activations_s == pytest.approx(4 * 8 * once_s)
    assert step.step_s == pytest.approx((0.03 + 0.08 + 0.01) / 4 + 32 * once_s)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(InputError, match="both above 1"):
        Pipeline(stages=2, tensor_ranks=2, boundary_bytes=1)
    source, placement = named(workload(device="V100", gradients=8)), load_topology("dgx-1v").place(1, 8)
    with pytest.raises(InputError, match="tensor_parallel"):
        in_closed_form(source, placement, Pipeline(tensor_ranks=2, boundary_bytes=1, gradients="ddp"))
