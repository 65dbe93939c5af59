"""A run under other constants, told from its graph, is the run that is simulated under them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from ddpsim import predict
from ddpsim.collectives.calibration import Calibration
from ddpsim.prediction.doubts.causes import doubts_of
from ddpsim.prediction.periods import periods_under, with_assumptions
from ddpsim.simulation.communication import Assumptions
from ddpsim.simulation.engine import run_job, trace_of
from ddpsim.simulation.jobs.pipeline import parse_pipeline
from ddpsim.simulation.jobs.simulated import Options
from ddpsim.simulation.resolve import SimulatedIterations
from ddpsim.simulation.retiming.retime import periods_s, run_again
from ddpsim.topology.spec import load_topology
from ddpsim.trace.metrics import summarise
from ddpsim.workload.files import load_workload
from ddpsim.workload.replayed import single_clock
from tests.ddpsim.simulation.builders import ALIKE, workload

PRIORS = Calibration.priors("nccl")
HALF, TWICE = (lambda size: 0.5), (lambda size: 2.0)
SLOWER = PRIORS.with_values({"nccl.ddp.hook_s": 40e-6, "nccl.ddp.copy_Bps": 2e11}, source="given")
BESIDE = PRIORS.with_values({"nccl.ddp.tail_share": 0.3, "nccl.ddp.net_slowdown": 1.4}, source="given")
DEVICES = PRIORS.with_values({"nccl.ddp.pace_spread": 0.06}, source="given")
NODES = PRIORS.with_values({"nccl.ddp.node_spread": 0.05}, source="given")
SLOWER_NICS = Assumptions(links=frozenset({"nic"}), link_rate=0.5)
LATER = Assumptions(latency=3.0)
ENDS = (
    Assumptions(),
    Assumptions(compute=1.3),
    Assumptions(compute=0.6),
    Assumptions(host=2.0),
    Assumptions(wire_factor=HALF),
    Assumptions(wire_factor=TWICE),
    Assumptions(SLOWER),
    Assumptions(BESIDE),
    Assumptions(DEVICES, compute=1.1),
    Assumptions(NODES),
)


def both_s(
    source: Any, machine: str, nodes: int, options: Options, ends: Any = ENDS
) -> list[tuple[float | None, float]]:
    """Return the period at each end, as retimed and as simulated."""
    placement = load_topology(machine).place(nodes)
    ran = run_job(source, placement, options)
    retimed = periods_s(ran, ran.extent, ends)

    def simulated(end: Assumptions) -> float:
        return summarise(trace_of(run_job(source, placement, options, end))).iteration_s

    return [(told, simulated(end)) for told, end in zip(retimed, ends, strict=True)]


def check_retimed(pairs: list[tuple[float | None, float]], share: float) -> None:
    """Assert that at least this share of the ends was told, and each told as it is simulated."""
    found = [(told, simulated) for told, simulated in pairs if told is not None]
    assert len(found) >= share * len(pairs)
    assert all(told == pytest.approx(simulated, rel=5e-3) for told, simulated in found)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"fidelity": "closed"},
        {"process_groups": 2},
        {"accumulate": 2},
        {"scheme": "fsdp2"},
        {"scheme": "fsdp2:offload"},
        {"scheme": "zero1"},
        {"compression": "powersgd:2"},
        {"stragglers": {1: 1.3}},
    ],
    ids=str,
)
def test_retimed_periods_are_those_that_are_simulated(options: dict[str, Any]) -> None:
    source = workload(device="V100", gradients=24, size=1_000_000, buffers=2)
    pairs = both_s(source, "dgx-1v", 2, Options(iterations=1, **options))
    check_retimed(pairs, share=0.8)


def test_where_nothing_contends_it_is_exact() -> None:
    source = workload(device="V100", gradients=24, size=1_000_000, host_share=0.8)
    ends = [replace(end, calibration=ALIKE) for end in ENDS]
    placement = load_topology("dgx-1v").place(2)
    ran = run_job(source, placement, Options(iterations=1), Assumptions(ALIKE))
    for told, end in zip(periods_s(ran, ran.extent, ends), ends, strict=True):
        again = run_job(source, placement, Options(iterations=1), end)
        assert told == pytest.approx(summarise(trace_of(again)).iteration_s, rel=1e-9)


@pytest.mark.parametrize("source", [workload(buffers=2), single_clock(workload(device="V100"))], ids=["cpu", "timed"])
def test_ranks_of_one_thread_are_retimed(source: Any) -> None:
    priors = Calibration.priors("gloo").with_values({"gloo.ddp.launch_s": 2e-4}, source="given")
    ends = (Assumptions(), Assumptions(compute=1.4), Assumptions(wire_factor=TWICE), Assumptions(priors))
    pairs = both_s(source, "lab-flat", 3, Options(iterations=1), ends)
    check_retimed(pairs, share=0.75)


def test_what_needs_another_graph_is_left_to_simulation() -> None:
    source, placement = workload(device="V100"), load_topology("dgx-1v").place(2)
    ran = run_job(source, placement, Options(iterations=1))
    alone = PRIORS.with_values({"nccl.ddp.pace_spread": 0.0}, source="given")
    assert periods_s(ran, ran.extent, [Assumptions(alone)]) == [None]
    compiled = run_job(workload(device="V100", gradients=12), placement, Options(iterations=1, compiled=True))
    assert periods_s(compiled, compiled.extent, [Assumptions(host=1.1)]) == [None]


@pytest.mark.parametrize(
    ("nodes", "size", "options"),
    [
        (2, 1_000_000, {"compiled": True}),
        (1, 1_000_000, {"scheme": "dataparallel"}),
        (2, 100_000, {"scheme": "parameter-server:async"}),
        (2, 100_000, {"scheme": "parameter-server:servers=2,async", "stragglers": {1: 1.2}}),
        (2, 1_000_000, {"scheme": "parameter-server:async"}),
    ],
    ids=str,
)
def test_compiled_graphs_threads_of_one_process_and_ranks_that_do_not_meet_are_retimed(
    nodes: int, size: int, options: dict[str, Any]
) -> None:
    source = workload(device="V100", gradients=12, size=size)
    pairs = both_s(source, "dgx-1v", nodes, Options(iterations=1, **options))
    check_retimed(pairs, share=0.6)


def test_ranks_whose_messages_fill_the_links_are_retimed_where_no_message_moves() -> None:
    source = workload(device="V100", gradients=12, size=1_000_000)
    options = Options(iterations=1, scheme="parameter-server:servers=2,async", stragglers={1: 1.2})
    ends = (Assumptions(), Assumptions(host=1.01), Assumptions(wire_factor=TWICE))
    (own, host, wire) = both_s(source, "dgx-1v", 2, options, ends)
    assert own[0] == pytest.approx(own[1], rel=1e-9)
    assert host[0] == pytest.approx(host[1], rel=1e-9)
    assert wire[0] is None


def test_messages_that_wait_for_the_stream_are_no_later_for_that() -> None:
    priors = PRIORS.with_values({"nccl.ddp.late_kernels": 20.0}, source="given")
    source, placement = workload(device="V100", gradients=24, size=8_000_000), load_topology("dgx-1v").place(2)
    ran = run_job(source, placement, Options(iterations=1), Assumptions(priors))
    [told_s] = periods_s(ran, ran.extent, [Assumptions(priors)])
    assert told_s == pytest.approx(summarise(trace_of(ran)).iteration_s, rel=1e-9)


def test_other_transports_are_retimed_where_nothing_shares_links_and_nccl_chooses_as_before() -> None:
    source = workload(device="V100", gradients=24, size=1_000_000)
    placement = load_topology("p3.16xlarge").place(2)
    ran = run_job(source, placement, Options(iterations=1))
    constants = PRIORS.with_values({"nccl.efficiency.net.simple": 0.4}, source="given")
    found = periods_s(ran, ran.extent, [Assumptions(constants), LATER])
    assert summarise(trace_of(ran)).iteration_s < found[0]
    later = run_job(source, placement, Options(iterations=1), LATER)
    lossy = run_job(source, placement, Options(iterations=1), Assumptions(constants))
    for told_s, anew in zip(found, (lossy, later), strict=True):
        assert told_s == pytest.approx(summarise(trace_of(anew)).iteration_s, rel=5e-3)
    [slower] = periods_s(ran, ran.extent, [SLOWER_NICS])
    nics = run_job(source, placement, Options(iterations=1), SLOWER_NICS)
    assert slower is None or slower == pytest.approx(summarise(trace_of(nics)).iteration_s, rel=5e-3)
    several = run_job(source, placement, Options(iterations=1, process_groups=2))
    assert periods_s(several, several.extent, [SLOWER_NICS, LATER]) == [None, None]


@pytest.mark.parametrize("stage", ["load=1ms,copy=2MB,pipelined", "load=1ms,copy=2MB,queued"])
def test_copies_of_batches_that_met_others_on_links_are_retimed(stage: str) -> None:
    source = workload(device="V100", gradients=12, size=1_000_000)
    pairs = both_s(source, "p3.16xlarge", 2, Options(iterations=2, input_stage=stage))
    check_retimed(pairs, share=0.7)


def test_where_messages_wait_for_large_copies_a_run_tells_what_longer_messages_cost() -> None:
    options = Options(input_stage="load=30ms,workers=3,copy=380MB,pipelined")
    placement = load_topology("8xgpu-dual-root").place(1)
    ran = run_job(load_workload("resnet50"), placement, options)
    assert periods_s(ran, ran.extent, [Assumptions(wire_factor=TWICE)]) == [None]


def test_the_graph_of_the_first_iterations_ends_with_them() -> None:
    ran = run_job(workload(device="V100", gradients=12), load_topology("dgx-1v").place(2), Options(iterations=2))
    first = ran.graph.until(2)
    for rank, whole in zip(first.ranks, ran.graph.ranks, strict=True):
        assert rank.last == whole.iterations[1].end < whole.last
        nodes = {*rank.host, *rank.compute, *rank.copies, *rank.delays, *(n for lane in rank.lanes for n in lane)}
        assert max(nodes) == rank.last
        assert {node for each in rank.iterations for node in (each.start, each.end)} <= nodes


def test_the_first_iterations_tell_the_period_of_a_longer_run() -> None:
    source, placement = workload(device="V100", gradients=12), load_topology("dgx-1v").place(2)
    ran = run_job(source, placement, Options(iterations=2))
    brief = SimulatedIterations(1, 2, 2)
    [few], [all_] = (periods_s(ran, each, [Assumptions(compute=1.5)]) for each in (brief, ran.extent))
    assert few is not None
    assert all_ is not None
    assert math.isclose(few, all_, rel_tol=1e-6)


@pytest.mark.parametrize(
    ("source", "machine", "options"),
    [
        (workload(device="V100", gradients=12, buffers=2), "dgx-1v", {}),
        (workload(device="V100", gradients=12), "dgx-1v", {"scheme": "fsdp2"}),
        (workload(device="V100", gradients=12), "dgx-1v", {"compression": "powersgd:2", "accumulate": 2}),
        (workload(buffers=2), "lab-flat", {"find_unused_parameters": True}),
        (workload(device="V100", gradients=12), "p3.16xlarge", {"process_groups": 2}),
        (single_clock(workload(device="V100")), "lab-flat", {}),
    ],
    ids=str,
)
def test_a_graph_that_is_run_again_is_the_run_that_is_built_anew(
    source: Any, machine: str, options: dict[str, Any]
) -> None:
    placement, asked = load_topology(machine).place(2), Options(iterations=1, **options)
    ran = run_job(source, placement, asked)
    nccl = [end for end in ENDS if end.host == 1 and not source.one_clock]
    ends = nccl or [Assumptions(compute=1.4), Assumptions(compute=2e-9), Assumptions(wire_factor=TWICE)]
    ends += [] if source.one_clock else [Assumptions(host=2.0), Assumptions(compute=2e-9), Assumptions(host=2e-9)]
    ends += [] if "compression" in options else [Assumptions(silent=True)]
    ends += [SLOWER_NICS, LATER]
    for told_s, end in zip(run_again(ran, ran.extent, ends), ends, strict=True):
        anew = trace_of(run_job(source, placement, asked, end))
        assert told_s == pytest.approx(summarise(anew).iteration_s, rel=1e-9)


def test_a_graph_that_would_be_another_is_not_run_again() -> None:
    placement, asked = load_topology("dgx-1v").place(2), Options(iterations=1)
    ran = run_job(workload(device="V100"), placement, asked)
    assert run_again(ran, ran.extent, [Assumptions(ALIKE)]) == [None]
    several = run_job(workload(device="V100", iterations=3, jitter=0.2), placement, asked)
    slower, same = run_again(several, several.extent, [Assumptions(compute=1.5), Assumptions(SLOWER)])
    assert slower is None
    assert same is not None


def test_ends_are_finite_where_the_run_itself_does_not_settle() -> None:
    found = predict("mlp", "dgx-1v", nodes=1)
    assert all(math.isfinite(step_s) for end in found.ends for step_s in end.steps_s)


def test_what_is_told_of_one_assumption_does_not_hang_on_the_others() -> None:
    ran = run_job(load_workload("vgg16@v100-fp32-b32"), load_topology("dgx-1v").place(2), Options())
    each = [found for end in ENDS for found in periods_s(ran, ran.extent, [end])]
    assert periods_s(ran, ran.extent, ENDS) == [None if s is None else pytest.approx(s, rel=1e-12) for s in each]


def test_messages_that_are_ordered_by_when_gradients_are_ready_are_told_from_another_graph() -> None:
    """At 0.45 of the pace the agreed order is another, whose step the order of the run would miss by 2.3 %."""
    source, options = load_workload("bert-large@a100-tf32-b8"), Options(scheme="priority:4MiB")
    ran = run_job(source, load_topology("dgx-a100").place(4), options)
    slower, later = Assumptions(compute=1 / 0.45), Assumptions(wire_factor=TWICE)
    retimed = periods_s(ran, ran.extent, [slower, later])
    assert retimed[0] is None
    assert retimed[1] is not None
    assert run_again(ran, ran.extent, [slower]) == [None]


def test_ends_of_a_pipeline_are_those_of_a_run_from_scratch() -> None:
    options = Options(pipeline=parse_pipeline("gpipe:4,boundary=8MiB", "pipeline"))
    prediction = predict("gpt2-small@a100-amp-b8", "dgx-a100", nodes=2, options=options, band=False)
    sizes = [bucket.size_bytes for bucket in prediction.plan.buckets]
    doubts = doubts_of(prediction.workload, prediction.placement, options, None, sizes)
    ends = [end for doubt in doubts for end in (doubt.low, doubt.high) if end is not None]
    told = [each.iteration_s for each in periods_under(prediction, ends)]
    # In the order of the run one of them was 3.3 % off.
    assert told == pytest.approx([with_assumptions(prediction.run, end).iteration_s for end in ends], rel=0.005)
