"""Jobs whose layers or loops make collectives of their own: parts by name, nothing negative, no prediction."""

from __future__ import annotations

import html
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from ddpsim.cli.app import run
from ddpsim.explaining.clocks import align_ranks
from ddpsim.explaining.explain import explain
from ddpsim.explaining.files import read_kineto_rank
from ddpsim.explaining.run_facts import RunFacts
from ddpsim.explaining.splits import splits_of
from ddpsim.trace.metrics import complete_parts
from ddpsim.workload.kineto.collectives import dimensions_bytes
from ddpsim.workload.kineto.iterations import buckets_in
from ddpsim.workload.kineto.workload import import_trace, open_trace
from tests.ddpsim.explaining.seen_ranks import ranks
from tests.ddpsim.workload.kineto_traces import Job, written

HERE = Path(__file__).parent
EXPERTS = HERE / "cpu-ddp-all-to-all"
"""Stock DDP over gloo on two CPUs, two layers of which exchange their inputs: four all-to-alls a step."""
NAIVE = HERE / "cpu-naive"
"""Two CPUs without DDP: after backward the loop makes an allreduce for each of eight gradients, and waits."""
EXCHANGE_US = 400.0


def device_job(tmp_path, **options):
    """Return the explanation of two steps on GPUs, kernels of backward 100 us each."""
    job = Job([100.0] * 4, ddp=True, recorded=True, exchange=EXCHANGE_US, wire=60.0, **options)
    return explain(written(tmp_path, job.document(steps=5)), RunFacts(topology="mi300x-8" if job.rocm else "dgx-a100"))


@pytest.mark.parametrize("folder", [EXPERTS, NAIVE])
def test_parts_are_not_negative_and_sum_to_the_step(folder):
    traced = explain(folder).traced
    assert min(traced.parts.values()) >= 0
    assert sum(traced.parts.values()) == pytest.approx(traced.iteration_s)


def test_an_all_to_all_has_a_part_by_its_name_and_is_not_ddps():
    found = explain(EXPERTS)
    assert 0.1 < found.parts["all_to_all_s"] / found.traced.iteration_s < 0.6
    assert [split.operation for split in found.splits].count("all_to_all") == 4
    assert [len(split.parameters) for split in found.splits if split.operation == "all_reduce"] == [4, 4]
    assert found.splits[0].size_bytes == 4 * 256 * 384


def test_what_the_simulator_does_not_know_is_not_predicted_and_says_why():
    found = explain(EXPERTS)
    assert found.predicted is None
    assert any("no prediction" in note and "4 all_to_all a step" in note for note in found.notes)
    assert not any("other buckets" in line for line in found.advice)


def test_an_allreduce_a_gradient_of_the_loop_is_no_overhead_of_ddp():
    found = explain(NAIVE)
    assert found.parts["all_reduce_s"] > 0.1 * found.traced.iteration_s
    assert found.parts["ddp_overhead_s"] == pytest.approx(0.0, abs=1e-9)
    assert found.predicted is None
    assert any("no prediction" in note and "not reduced by DDP" in note for note in found.notes)


def test_no_column_is_one_of_dashes(tmp_path, capsys):
    shutil.copy(NAIVE / "rank0.pt.trace.json.gz", tmp_path)
    page = tmp_path / "page" / "r.html"
    page.parent.mkdir()
    assert run(["explain", str(tmp_path), "--report", str(page)]) == 0
    out = capsys.readouterr().out
    header = next(line for line in out.splitlines() if line.startswith("collective "))
    columns = ["collective", "operation", "size MiB", "ready ms", "started ms", "finished ms", "waiting ms", "wire ms"]
    assert re.split("  +", header) == columns
    assert "<th>last rank</th>" not in page.read_text()
    assert "all_reduce (not DDP's)" in out
    assert "all_reduce (not DDP's)" in html.unescape(page.read_text())


@pytest.mark.parametrize("rocm", [False, True])
def test_kernels_that_do_not_say_what_they_do_are_named_by_their_calls(tmp_path, rocm):
    found = device_job(tmp_path, rocm=rocm)
    operations = [split.operation for split in found.splits]
    assert operations == ["all_to_all", "all_to_all", "all_reduce", "all_reduce"]
    assert [len(split.parameters) for split in found.splits] == [0, 0, 2, 2]
    assert min(found.parts.values()) >= 0
    assert sum(found.parts.values()) == pytest.approx(found.traced.iteration_s)


@pytest.mark.parametrize("rocm", [False, True])
def test_an_exchange_that_the_device_waits_for_is_its_part(tmp_path, rocm):
    parts = device_job(tmp_path, rocm=rocm).parts
    assert parts["all_to_all_s"] == pytest.approx(2 * EXCHANGE_US * 1e-6, rel=0.02)


def test_a_wait_of_hips_runtime_is_a_wait(tmp_path):
    jobs = (Job([100.0] * 4, recorded=True, rocm=rocm, synchronise=True) for rocm in (True, False))
    amd, nvidia = (explain(written(tmp_path, job.document(steps=4))).parts for job in jobs)
    assert amd == pytest.approx(nvidia)


def test_an_allreduce_of_the_loop_is_taken_as_traced(tmp_path):
    job = Job([100.0] * 4, ddp=True, recorded=True, loop=True, wire=60.0)
    found = explain(written(tmp_path, job.document(steps=5)), RunFacts(topology="dgx-a100"))
    terms = {term.name: term for term in found.predicted.terms}
    assert terms["all_reduce_s"].traced_s > 0
    assert terms["all_reduce_s"].predicted_s == terms["all_reduce_s"].traced_s
    assert sum(term.predicted_s for term in found.predicted.terms) == pytest.approx(found.predicted.step_s)


def test_parts_that_overlap_are_taken_off_the_largest():
    assert complete_parts({"forward_s": 3.0, "input_s": 2.0, "ddp_overhead_s": -1.0}, 4.0) == {
        "forward_s": 2.0, "input_s": 2.0, "ddp_overhead_s": 0.0
    }  # fmt: skip
    assert complete_parts({"forward_s": 1.0, "input_s": -1e-9}, 4.0)["ddp_overhead_s"] == 3.0


def test_a_size_that_no_tensor_has_is_not_known():
    assert dimensions_bytes({"Input Dims": [[1 << 90] * 20], "Input type": ["float"]}) is None
    assert dimensions_bytes({"Input Dims": [[[2, 3], [4]]], "Input type": ["c10::Half"]}) == 20
    assert dimensions_bytes({"Input Dims": [[-2]], "Input type": ["float"]}) is None
    assert dimensions_bytes({"Input Dims": [[]], "Input type": ["float"]}) == 4
    # A list of tensors has no type, and in some traces no shapes: nothing says how many bytes it is.
    assert dimensions_bytes({"Input Dims": [[], []], "Input type": ["TensorList", ""]}) is None
    assert dimensions_bytes({"Input Dims": [[[8]]], "Input type": ["TensorList"]}) is None


@pytest.mark.parametrize("dtype", ["Float", "BFloat16"])
@pytest.mark.parametrize("listed", [[], [[10]]])
def test_buckets_without_a_size_of_their_own_have_that_of_their_gradients(tmp_path, dtype, listed):
    # The loop's allreduce says its size, and is faster than DDP's: it says nothing of how fast those could be.
    document = Job([50.0] * 5, ddp=True, recorded=True, dtype=dtype, others=True).document(4)
    told = {"Input Dims": [listed, []], "Input type": ["TensorList", ""]}
    events = document["traceEvents"]
    for event in events:
        if event["name"] == "c10d::allreduce_":
            event["args"] = told
        if event["cat"] == "kernel" and "AllReduce" in event["name"] and event["ts"] > 3000:
            event["dur"] *= 0.75
    document["traceEvents"] = [e for e in events if e["name"] != "record_param_comms" or e["args"]["dtype"] == "Int"]
    path = written(tmp_path, document)
    expected = buckets_in(open_trace(path))
    found = [split for split in explain(path, predict=False).splits if split.parameters]
    assert [split.size_bytes for split in found] == [each["size_bytes"] for each in expected]
    assert [len(split.parameters) for split in found] == [2, 2, 1]
    assert [split.wait_s for split in found] == pytest.approx([each["skew_s"] for each in expected], abs=2e-9)
    assert [split.on_wire_s for split in found] == pytest.approx([each["wire_s"] for each in expected], abs=2e-9)
    assert max(split.wait_s for split in found) > 0


def test_an_import_says_that_a_workload_has_no_collectives_of_layers(tmp_path):
    plain, own = (Job([100.0] * 4, ddp=True, recorded=True, exchange=us).document() for us in (0.0, EXCHANGE_US))
    notes = import_trace(written(tmp_path, own)).notes
    assert any("2 all_to_all a step: they are cut out too" in note for note in notes)
    on_cpu = import_trace(EXPERTS / "rank0.pt.trace.json.gz").notes
    assert any("4 all_to_all a step: they count as computation" in note for note in on_cpu)
    assert not any("not DDP's" in note for note in import_trace(written(tmp_path, plain)).notes)


def test_why_nothing_is_predicted_is_in_the_answer_itself(capsys):
    assert run(["explain", str(EXPERTS)]) == 0
    printed = capsys.readouterr()
    said = " ".join(printed.out.split())
    assert "not predicted: forward and backward hold collectives that are not DDP's, 4 all_to_all" in said
    assert "no prediction" not in printed.err
    assert run(["explain", str(EXPERTS), "--json"]) == 0
    assert "4 all_to_all" in json.loads(capsys.readouterr().out)["unpredicted"]


def test_collectives_of_some_ranks_are_not_compared_with_those_of_others():
    """Tensor parallelism in pairs: rank 0's allreduces with rank 1 are none of rank 2's."""
    made = [
        replace(
            rank,
            iterations=tuple(
                replace(it, buckets=tuple(replace(each, own=False, ranks=2) for each in it.buckets))
                for it in rank.iterations
            ),
        )
        for rank in ranks(4, late={3: {"input": 0.020}}, clocks={2: 0.030})
    ]
    (split,) = splits_of(made)
    assert split.bound
    assert split.last_rank is None
    assert list(split.waits_s) == [0]
    moved, alignment = align_ranks(made)
    assert alignment.agreed
    assert [rank.rank for rank in moved] == [0, 1, 2, 3]


def test_a_group_of_fewer_ranks_than_the_job_is_told_from_everyone(tmp_path):
    document = Job([100.0] * 4, ddp=True, recorded=True, exchange=EXCHANGE_US, wire=60.0).document(steps=4)
    document["distributedInfo"]["world_size"] = 8
    seen = read_kineto_rank(written(tmp_path, document), None, lead=False).iterations[0].collectives
    layers, buckets = ("all_to_all", False, False), ("all_reduce", True, True)
    assert [(c.operation, c.own, c.is_of_all(8)) for c in seen] == [layers, layers, buckets, buckets]


def test_steps_that_take_no_time_are_one_message(tmp_path, capsys):
    document = Job([100.0] * 4, ddp=True, recorded=True).document(steps=4)
    for event in document["traceEvents"]:
        event.update(ts=0, dur=0)
    written(tmp_path, document)
    assert run(["explain", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert "rank0.json" in error
    assert "Traceback" not in error
