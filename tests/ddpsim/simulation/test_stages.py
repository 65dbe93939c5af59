"""Pipelines in the step graph, held to DDP where there is one stage, to GPipe's bubble, and to bytes by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddpsim.collectives.execute import find_rank_paths, make_transport
from ddpsim.common.errors import InputError
from ddpsim.common.operation import Operation
from ddpsim.schedules.pipeline import find_end_times, works_of
from ddpsim.simulation.communication import Assumptions
from ddpsim.simulation.engine import run_job, simulate
from ddpsim.simulation.jobs.pipeline import Pipeline, parse_pipeline
from ddpsim.simulation.jobs.simulated import Options
from ddpsim.simulation.jobs.stages import parts_of
from ddpsim.simulation.retiming.retime import periods_s, run_again
from ddpsim.topology.spec import load_topology
from ddpsim.trace.metrics import summarise
from tests.ddpsim.simulation.builders import ALIKE, named, workload

SMALL = 1000
"""Values of a gradient that takes no time to speak of to copy or to add."""


def source(**given):
    return named(workload(**{"device": "V100", "gradients": 8, "size": SMALL, **given}))


def step(given, options, nodes=1, gpus=8, calibration=ALIKE, topology="dgx-1v"):
    return simulate(given, load_topology(topology).place(nodes, gpus), options, calibration)


def asked(text, **options):
    return Options(pipeline=parse_pipeline(text, "pipeline"), **options)


@pytest.mark.parametrize(
    "options", [{}, {"overlap": "off"}, *({"scheme": name} for name in ("naive", "dear", "fsdp2"))]
)
@pytest.mark.parametrize("micro_batches", [1, 4])
@pytest.mark.parametrize("order", ["gpipe", "1f1b"])
@pytest.mark.parametrize("device", ["V100", "cpu"])
def test_one_stage_is_the_scheme_with_its_micro_batches_accumulated(device, order, micro_batches, options):
    model = source(device=device, size=1_000_000, buffers=2)
    topology = "dgx-1v" if device != "cpu" else "loopback"
    scheme, one = (
        step(model, each, topology=topology, calibration=None, nodes=1, gpus=4)
        for each in (
            Options(accumulate=micro_batches, **options),
            asked(f"{order}:1,micro-batches={micro_batches}", **options),
        )
    )
    assert one.iterations == scheme.iterations


def test_one_stage_is_not_accumulated_twice():
    with pytest.raises(InputError, match="`pipeline` and `accumulate=2` are both given"):
        asked("1f1b:1", accumulate=2)


@pytest.mark.parametrize(("order", "per_rank"), [("gpipe", 1), ("1f1b", 1), ("interleaved", 2)])
@pytest.mark.parametrize("micro_batches", [4, 8])
def test_ranks_idle_as_long_as_their_order_has_them(order, per_rank, micro_batches):
    model = source(optimizer=0.0)
    found = summarise(step(model, asked(f"{order}:4,micro-batches={micro_batches},boundary=1B"), gpus=4))
    count = 4 * per_rank
    works = works_of(order, 4, micro_batches, per_rank)
    through_s = max(find_end_times(works, [0.03 / count] * count, [0.08 / count] * count, [0.0] * (count - 1)))
    # What hosts launch, and the start of each message, is the rest.
    assert through_s < found.iteration_s < 1.02 * through_s
    assert found.layer_comm_s == pytest.approx(through_s - micro_batches * 0.11 / 4, rel=0.1)


def test_the_bytes_that_stages_and_copies_send():
    model = source(size=1_000_000)
    trace = step(model, asked("1f1b:4,micro-batches=6,boundary=1MiB"))
    parts = list(parts_of(model, Pipeline(stages=4, micro_batches=6, boundary_bytes=1 << 20)))
    for rank, part in enumerate(parts):
        for iteration in trace.of_rank(rank):
            # Six micro-batches: forward from the rank before, backward from the one behind.
            received = 6 * ((rank > 0) + (rank < 3))
            assert [(each.operation, each.size_bytes) for each in iteration.others] == [
                (Operation.SENDRECV, 1 << 20)
            ] * received
            assert sum(bucket.size_bytes for bucket in iteration.buckets) == 2 * 4_000_000
            assert sorted(index for bucket in iteration.buckets for index in bucket.parameters) == list(part.indices)
    assert sorted(index for part in parts for index in part.indices) == list(range(8))


def test_a_message_between_stages_takes_its_way_and_a_sum_that_of_its_ranks():
    model, placement = source(size=1_000_000), load_topology("dgx-1v").place(1, 8)
    options = asked("gpipe:2,boundary=64MiB", scheme="flat")
    trace = simulate(model, placement, options, ALIKE)
    ways = find_rank_paths(placement, "nccl", ALIKE)
    way = ways.connection(0, 1)
    [received] = trace.of_rank(1)[0].others
    # Four pairs of neighbours send at once; what they load together is asked of all.
    together = {}
    for first in range(0, 8, 2):
        for link, load in ways.connection(first, first + 1).loads.items():
            together[link] = together.get(link, 0.0) + load
    byte_s = max(load / ways.capacities[link] for link, load in together.items())
    took_s = ways.start_s(64 << 20) + way.latency_s + (64 << 20) * byte_s
    assert received.finished_s - received.started_s >= took_s * (1 - 1e-9)
    [summed] = trace.of_rank(0)[0].buckets
    four = load_topology("dgx-1v")
    part = replace(four, visible_devices=(0, 2, 4, 6)).place(1, 4)
    once_s = make_transport(part, "nccl", ALIKE).time_s(Operation.ALLREDUCE, 16_000_000)
    assert summed.finished_s - summed.wire_s == pytest.approx(once_s, rel=1e-6)


def test_sums_of_later_stages_pass_under_the_backward_of_earlier_ones():
    model = source(size=10_000_000)
    under, after = (
        summarise(step(model, asked("gpipe:4,micro-batches=8,boundary=1MiB", scheme=scheme))).iteration_s
        for scheme in ("ddp", "flat")
    )
    assert under < after


@pytest.mark.parametrize(("order", "waits"), [("gpipe", True), ("1f1b", True), ("interleaved", False)])
def test_a_rank_is_done_when_what_it_sent_is_there(order, waits):
    trace = step(source(optimizer=0.0), asked(f"{order}:2,micro-batches=4,boundary=256MiB"), gpus=2)
    for first, last in zip(trace.of_rank(0), trace.of_rank(1), strict=True):
        assert (last.end_s >= first.others[-1].finished_s) == waits


@pytest.mark.parametrize(
    "text", ["1f1b:4,micro-batches=8,boundary=8MiB", "interleaved:2,micro-batches=4,boundary=1MiB"]
)
def test_a_pipeline_is_retimed_as_it_is_run_again(text):
    model = source(size=2_000_000)
    ran = run_job(model, load_topology("dgx-1v").place(1, 8), asked(text, iterations=2))
    assumed = [
        Assumptions(compute=1.1),
        Assumptions(wire_factor=lambda size: 1.5),
        Assumptions(host=1.2),
    ]
    again = run_again(ran, ran.extent, assumed)
    for found, expected in zip(periods_s(ran, ran.extent, assumed), again, strict=True):
        assert found == pytest.approx(expected, rel=0.005)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("1f1b", "has no order and stages"),
        ("pipedream:4", "no end of a step"),
        ("1f1b:0", "no whole number"),
        ("1f1b:4,depth=3", "takes no option 'depth=3'"),
        ("gpipe:4,stages-per-rank=2", "do not go together"),
        ("interleaved:1", "one rank"),
    ],
)
def test_what_is_no_pipeline_is_refused(text, says):
    with pytest.raises(InputError, match=says):
        parse_pipeline(text, "pipeline")


@pytest.mark.parametrize(
    ("text", "options", "says"),
    [
        ("1f1b:16,boundary=1MiB", {}, "16 stages of a model of 8 layers"),
        ("1f1b:3,boundary=1MiB", {}, "3 ranks do not divide"),
        ("1f1b:2", {}, "from one layer of small to the next"),
        ("interleaved:2,micro-batches=5,boundary=1MiB", {}, "do not go into 2 rounds"),
        ("1f1b:2,boundary=1MiB", {"scheme": "fsdp2"}, "computes several in a step"),
        ("1f1b:2,boundary=1MiB", {"scheme": "parameter-server"}, "pipeline"),
    ],
)
def test_what_cannot_be_in_stages_is_refused(text, options, says):
    with pytest.raises(InputError, match=says):
        step(source(), asked(text, **options), nodes=2)


def test_a_mapping_says_which_ranks_are_near():
    near, far = (parse_pipeline(f"1f1b:4,mapping={each}", "pipeline") for each in ("tp-pp-dp", "tp-dp-pp"))
    assert [near.place_of(rank, 16, 2) for rank in range(16)] == [0, 0, 1, 1, 2, 2, 3, 3] * 2
    assert [far.place_of(rank, 16, 2) for rank in range(16)] == [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4
    with pytest.raises(InputError, match="no mapping"):
        parse_pipeline("1f1b:4,mapping=pp-tp-dp", "pipeline")


def test_sums_of_copies_in_a_node_are_short_and_what_passes_between_nodes_is_long():
    model = source(size=10_000_000)
    near, far = (
        step(model, asked(f"1f1b:2,micro-batches=4,boundary=32MiB,mapping={each}", scheme="flat"), nodes=2)
        for each in ("tp-pp-dp", "tp-dp-pp")
    )
    sums_s = [trace.of_rank(0)[0].buckets[0] for trace in (near, far)]
    sent_s = [trace.of_rank(trace.ranks[1])[0].others[0] for trace in (near, far)]
    assert [trace.ranks for trace in (near, far)] == [[0, 1], [0, 8]]
    assert sums_s[0].finished_s - sums_s[0].wire_s > 2 * (sums_s[1].finished_s - sums_s[1].wire_s)
    assert sent_s[0].finished_s - sent_s[0].started_s < sent_s[1].finished_s - sent_s[1].started_s
