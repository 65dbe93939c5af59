"""Memory of a rank: what is added up, what fits, and that a plan which does not fit is never advised silently."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddpsim import Options, load_topology, load_workload, plan
from ddpsim.bucketing import initial_plan
from ddpsim.cli.plan_text import text
from ddpsim.cli.predict import warn_of_pace
from ddpsim.prediction.memory import CONTEXT_BYTES, SLACK, Memory
from ddpsim.prediction.predict import predict
from ddpsim.schedules.named import scheme_named
from ddpsim.schedules.setup import SchemeInputs
from ddpsim.simulation.job import Job
from ddpsim.simulation.jobs.pipeline import parse_pipeline

GIB = 1 << 30


def memory_of(options: Options | None = None, **changes: object) -> Memory:
    workload = replace(load_workload("bert-base@a100-amp-b32"), **changes)  # type: ignore[arg-type]
    found = predict(Job(workload, load_topology("dgx-a100"), options=options or Options())).memory
    assert found is not None
    return found


def test_the_parts_of_a_step() -> None:
    memory, viewed = memory_of(), memory_of(Options(gradient_as_bucket_view=True))
    assert memory.optimizer_bytes == memory.gradients_bytes == memory.buckets_bytes
    assert viewed.buckets_bytes == 0
    assert viewed.step_bytes == memory.step_bytes  # gradients stay where they are viewed
    assert memory.activations_bytes is not None
    fixed = memory.parameters_bytes + memory.optimizer_bytes + memory.buckets_bytes
    assert memory.step_bytes == fixed + memory.activations_bytes
    assert memory.capacity_bytes == 40 * GIB
    assert memory.fits is True


@pytest.mark.parametrize(
    ("kind", "states", "temporaries"), [("sgd", 0, 0), ("momentum", 1, 0), ("adamw-foreach", 2, 1),
     ("adam-fused+clip", 2, 0)],
)  # fmt: skip
def test_an_optimizer_that_needs_more_than_the_activations(kind: str, states: int, temporaries: int) -> None:
    memory = memory_of(optimizer_kind=kind, activations_bytes=1)
    assert memory.optimizer_bytes == states * memory.gradients_bytes
    resident = memory.parameters_bytes + memory.optimizer_bytes + memory.buckets_bytes
    assert memory.step_bytes == resident + (1 + temporaries) * memory.gradients_bytes


def test_the_largest_batch_fits_and_one_more_may_not() -> None:
    memory = memory_of()
    largest = memory.largest_batch_size
    assert largest is not None
    assert memory.activations_bytes is not None
    assert memory.capacity_bytes is not None
    each, rest = memory.activations_bytes / 32, memory.step_bytes - memory.activations_bytes

    def needed(batch: int) -> float:
        return (rest + batch * each) * (1 + SLACK[1]) + CONTEXT_BYTES

    assert needed(largest) <= memory.capacity_bytes < needed(largest + 1)


def test_unknown_activations_are_said_and_judged_only_where_the_rest_is_too_much() -> None:
    memory = memory_of(activations_bytes=None)
    assert (memory.fits, memory.largest_batch_size) == (None, None)
    assert "activations are not known" in memory.text()


def test_the_memory_of_a_processor_is_not_judged() -> None:
    assert predict(Job(load_workload("mlp"), load_topology("loopback"))).document()["memory"] is None


def test_what_does_not_fit_is_marked_and_not_advised(capsys: pytest.CaptureFixture[str]) -> None:
    workload = replace(load_workload("bert-base@a100-amp-b32"), activations_bytes=60 * GIB)
    small, large = load_topology("dgx-a100"), load_topology("dgx-h100")
    report = plan(workload, [small, large])
    assert [row.fits for row in report.rows] == [False, True]
    assert report.best.chosen.topology.name == "dgx-h100"
    assert "does NOT fit" in text(report)
    told: set[str] = set()
    warn_of_pace(report.rows[0].chosen, told)
    assert any("does not fit the memory" in line for line in told)
    alone = plan(workload, [small])
    assert "does NOT fit in GPU memory" in text(alone)


def sharded_memory(scheme: str) -> Memory:
    workload, options = load_workload("bert-base@a100-amp-b32"), Options()
    plan = initial_plan(workload.parameters, options.caps)
    setup = SchemeInputs(parameters=workload.parameters, buckets=plan.groups(), world_size=8)
    return Memory.of(workload, plan, options, None, scheme_named(scheme).schedule(setup))


@pytest.mark.parametrize(
    ("scheme", "parameters", "gradients", "state"),
    [("ddp", 1, 1, 1), ("zero1", 1, 1, 8), ("zero2", 1, 8, 8), ("fsdp2", 8, 8, 8), ("hsdp:4", 4, 4, 4)],
)
def test_what_is_sharded_is_divided(scheme: str, parameters: int, gradients: int, state: int) -> None:
    memory, whole = sharded_memory(scheme), sharded_memory("ddp")
    buffers = sum(buffer.size_bytes for buffer in load_workload("bert-base@a100-amp-b32").buffers)
    assert memory.parameters_bytes - buffers == -(-(whole.parameters_bytes - buffers) // parameters)
    assert memory.gradients_bytes == -(-whole.gradients_bytes // gradients)
    assert memory.optimizer_bytes == -(-whole.optimizer_bytes // state)


def test_only_schemes_with_buckets_have_their_bytes() -> None:
    whole = sharded_memory("ddp")
    assert {sharded_memory(name).buckets_bytes for name in ("naive", "fsdp2", "hsdp:2", "zero3")} == {0}
    assert {sharded_memory(name).buckets_bytes for name in ("flat", "dear", "priority")} == {whole.buckets_bytes}


def test_gathered_parameters_are_alive_beside_the_activations() -> None:
    resharded, kept = sharded_memory("fsdp2"), sharded_memory("fsdp2:noreshard")
    assert kept.step_bytes - resharded.step_bytes == kept.gathered_bytes - resharded.gathered_bytes > 0
    assert kept.resident_bytes == resharded.resident_bytes


def test_what_is_offloaded_is_on_the_host() -> None:
    kept, offloaded = sharded_memory("fsdp2"), sharded_memory("fsdp2:offload")
    buffers = sum(buffer.size_bytes for buffer in load_workload("bert-base@a100-amp-b32").buffers)
    moved = kept.parameters_bytes - buffers + kept.gradients_bytes + kept.optimizer_bytes
    assert (offloaded.host_bytes, kept.host_bytes) == (moved, 0)
    assert (offloaded.parameters_bytes, offloaded.gradients_bytes, offloaded.optimizer_bytes) == (buffers, 0, 0)
    assert offloaded.step_bytes == buffers + offloaded.gathered_bytes + offloaded.activations_bytes


def test_an_optimizer_with_its_own_copy_keeps_one_tensor_more_in_fp32() -> None:
    whole = sharded_memory("ddp")
    assert sharded_memory("zero0").optimizer_bytes == whole.optimizer_bytes + whole.gradients_bytes


def test_the_total_lies_in_its_band_and_what_is_alive_below() -> None:
    told = memory_of().document()
    low, total, high = (int(str(told[key])) for key in ("total_low_bytes", "total_bytes", "total_high_bytes"))
    assert low < total < high
    assert int(str(told["alive_bytes"])) + CONTEXT_BYTES < low


def test_a_stage_keeps_what_its_scheme_keeps_of_a_whole_model() -> None:
    pipeline = parse_pipeline("1f1b:2,boundary=1MiB", "pipeline")
    kept = {name: memory_of(Options(scheme=name, pipeline=pipeline)) for name in ("ddp", "flat", "naive")}
    whole = {name: memory_of(Options(scheme=name)) for name in kept}
    # Sums of single gradients lie where these are: without stages and beside them nothing is kept for a message.
    assert [kept[name].buckets_bytes > 0 for name in kept] == [whole[name].buckets_bytes > 0 for name in kept]
    assert kept["naive"].step_bytes == kept["ddp"].step_bytes - kept["ddp"].gradients_bytes
