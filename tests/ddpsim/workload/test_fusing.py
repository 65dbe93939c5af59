"""Operators of a compiled step: runs of memory-bound ones as one launch."""

from dataclasses import replace

import pytest

from ddpsim import Options, load_topology, load_workload, save_workload
from ddpsim.bucketing import Parameter
from ddpsim.prediction.doubts.causes import doubts_of
from ddpsim.workload.estimate import ModelShape, estimate
from ddpsim.workload.fusing import INDUCTOR, INDUCTOR_GRAPHS, CompiledAs, fuse_operators
from ddpsim.workload.gpus import GPUS
from ddpsim.workload.on_gpu import estimate_on_gpu
from ddpsim.workload.operators import Operator
from ddpsim.workload.timeline import ACCUMULATE_S, BACKWARD_LAUNCH_S, FORWARD_LAUNCH_S

N = 4e8
"""Bytes of a tensor."""
FIRST, NEXT = Operator("memory", 0.0, 2 * N), Operator("memory", 0.0, 2 * N, fused_bytes=2 * N)
"""Each reads one tensor and writes one; `NEXT` reads what the one before it wrote."""
PRODUCT = Operator("gemm", 1e9, N)


def shape(compiler=INDUCTOR):
    parameters = (Parameter("a", (1000,)), Parameter("b", (1000,)))
    backward = (FIRST, replace(NEXT, gradients=(1,)), PRODUCT, replace(FIRST, gradients=(0,)))
    forward = (PRODUCT, FIRST, NEXT, NEXT, PRODUCT)
    return ModelShape(
        "net", 4, "sample", parameters, (), forward, backward, (0, 3), None, None, (), None, True, compiler
    )


@pytest.mark.parametrize(("precision", "width"), [("fp32", 1), ("amp", 0.5)])
def test_a_run_reads_what_comes_in_and_writes_what_goes_out(precision, width):
    made = fuse_operators((PRODUCT, FIRST, NEXT, NEXT, PRODUCT), precision)
    assert [operator.kind for operator in made.operators] == ["gemm", "memory", "gemm"]
    assert made.operators[1].traffic_bytes == 2 * N * width
    assert made.operators[1].fp32
    assert made.launch_of == (0, 1, 1, 1, 2)
    mixed = fuse_operators((FIRST, replace(FIRST, fp32=True)), precision).operators[0]
    assert mixed.traffic_bytes == 2 * N * width + 2 * N
    assert fuse_operators(made.operators, precision).operators == made.operators


def test_an_estimate_of_a_compiled_step_prices_its_launches():
    eager, compiled = (estimate(shape(compiler), GPUS["V100"], "fp32") for compiler in (None, INDUCTOR))
    move = 2 * N / GPUS["V100"].achieved_Bps
    assert eager.forward.device_s[0] - compiled.forward.device_s[0] == pytest.approx(2 * move, abs=2e-9)
    assert eager.backward.device_s[0] - compiled.backward.device_s[0] == pytest.approx(move, abs=2e-9)
    assert compiled.forward.host_s[0] == pytest.approx(3 * FORWARD_LAUNCH_S)
    assert compiled.backward.host_s[0] == pytest.approx(3 * BACKWARD_LAUNCH_S + 2 * ACCUMULATE_S)
    assert compiled.forward_use_s.host_s[1] == pytest.approx(FORWARD_LAUNCH_S)
    assert (compiled.operators, compiled.provenance["compiled"]) == (eager.operators, True)
    said = CompiledAs.of(compiled.provenance)
    assert (said.launches, said.eager_launches) == (6, 9)
    phases = (eager.forward, eager.backward, eager.optimizer)
    assert said.eager_device_s == pytest.approx(sum(phase.device_s[0] for phase in phases), abs=1e-8)
    assert said.eager_host_s == pytest.approx(sum(phase.host_s[0] for phase in phases), abs=1e-8)
    assert "6 launches rather than 9 operators" in said.text()
    assert CompiledAs.of(eager.provenance) is None


def test_a_phase_in_a_graph_is_one_launch_where_graphs_are_asked_for():
    plain, graphs = (estimate(shape(compiler), GPUS["V100"], "fp32") for compiler in (INDUCTOR, INDUCTOR_GRAPHS))
    assert graphs.forward.host_s[0] == pytest.approx(FORWARD_LAUNCH_S)
    assert graphs.backward.host_s[0] == pytest.approx(BACKWARD_LAUNCH_S + 2 * ACCUMULATE_S)
    assert graphs.forward.device_s[0] == plain.forward.device_s[0]


def test_files_and_other_gpus_keep_a_compiled_step_compiled(tmp_path):
    made = estimate(shape(), GPUS["V100"], "fp32")
    path = tmp_path / "mine.json"
    save_workload(made, path)
    read = load_workload(str(path))
    assert read.operators == made.operators
    carried = estimate_on_gpu(read, GPUS["A100"])
    assert carried.forward.device_s[0] == estimate(shape(), GPUS["A100"].with_fitted(), "fp32").forward.device_s[0]
    assert CompiledAs.of(carried.provenance).compiler == INDUCTOR
    doubled = estimate_on_gpu(read, GPUS["V100"], batch_size=8)
    assert doubled.operators.forward[2].fused_bytes == 4 * N


def test_what_fusing_saves_is_a_doubt_from_its_price_to_eager_modes():
    made = estimate(shape(), GPUS["V100"], "fp32")
    placed = load_topology("dgx-1v").place(1, 2)
    doubts = {d.name: d for d in doubts_of(made, placed, Options(), None, [1 << 20])}
    doubt = doubts["what torch.compile saves"]
    said = CompiledAs.of(made.provenance)
    assert doubt.low is None
    assert doubt.high.compute == pytest.approx(said.eager_device_s / said.device_s)
    assert doubt.high.host == pytest.approx(said.eager_host_s / said.host_s)
    anchored = replace(made, provenance={**made.provenance, "scaled_to": "a measured step"})
    assert "what torch.compile saves" not in {d.name for d in doubts_of(anchored, placed, Options(), None, [1 << 20])}
