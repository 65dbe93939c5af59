"""Folders as people have them: ranks missing, files damaged, other runs among them, stock DDP on CPUs."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path

import pytest

from ddpsim.cli.app import run
from ddpsim.common.errors import TraceError
from ddpsim.explaining.explain import explain
from ddpsim.explaining.files import read_ranks
from ddpsim.trace.json import write_trace
from tests.traces import example_trace

CPU = Path(__file__).parent / "cpu-ddp"
"""Two ranks of stock DDP over gloo on CPUs; rank 1 slept 20 ms before each forward."""
LATE_S = 0.020


def test_a_cpu_trace_of_stock_ddp_names_the_rank_that_loads_slowly():
    found = explain(CPU)
    assert (found.late.rank, found.late.phase, found.late.cause) == (1, "input", "input")
    assert found.late.seconds == pytest.approx(LATE_S, rel=0.1)
    assert found.ranks.world_size == 2
    assert sum(found.parts.values()) == pytest.approx(found.traced.iteration_s)
    assert not found.predicted.holds
    assert any("no advice on buckets" in note for note in found.advice)


def test_waits_and_wires_of_a_recorded_run_are_those_of_its_records(tmp_path):
    write_trace(example_trace(world_size=3, skew_s=0.001), tmp_path)
    found = explain(tmp_path)
    first, second = found.splits
    assert (first.wait_s, first.on_wire_s) == (pytest.approx(0.001), pytest.approx(0.008))
    assert (second.wait_s, second.on_wire_s) == (pytest.approx(0.0), pytest.approx(0.008))
    assert first.last_rank == 2
    assert found.traced.iteration_s == pytest.approx(0.040)


def test_what_cannot_be_read_is_left_out_and_named(tmp_path):
    shutil.copy(CPU / "rank0.pt.trace.json.gz", tmp_path)
    damaged = tmp_path / "rank1.pt.trace.json"
    damaged.write_bytes(gzip.decompress((CPU / "rank1.pt.trace.json.gz").read_bytes())[:200_000])
    ranks = read_ranks(tmp_path, None, None)
    assert ranks.missing == (1,)
    (note,) = ranks.notes
    assert str(damaged) in note
    assert "truncated" in note


def test_runs_of_different_sizes_are_refused(tmp_path):
    write_trace(example_trace(world_size=2), tmp_path / "a")
    write_trace(example_trace(world_size=4), tmp_path / "b")
    shutil.copy(tmp_path / "a" / "rank0.json.gz", tmp_path / "rank0.json.gz")
    shutil.copy(tmp_path / "b" / "rank1.json.gz", tmp_path / "rank1.json.gz")
    with pytest.raises(TraceError, match=r"rank1\.json\.gz: of a run of 4 ranks, .*rank0.* is of one of 2"):
        explain(tmp_path)


_TPU = [{"ph": "X", "pid": 1, "tid": 2, "ts": 3.0, "dur": 2.0, "name": "fusion.1", "cat": "cpu_op"}]
_MARK = {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "ts": 0, "dur": 9, "tid": 1}
_COMPILED = [_MARK, {"ph": "X", "cat": "cpu_op", "name": "CompiledFunctionBackward", "ts": 1, "dur": 5, "tid": 1}]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "the file is empty"),
        ('[{"ph": "X"', "not JSON"),
        ("{}", "no traceEvents"),
        (json.dumps({"traceEvents": _TPU}), "of another framework"),
        (json.dumps({"traceEvents": _COMPILED}), "compiled graphs"),
        (json.dumps({"traceEvents": [_MARK]}), "AccumulateGrad"),
    ],
)
def test_what_is_no_trace_of_training_is_one_message(tmp_path, capsys, content, said):
    (tmp_path / "rank0.json").write_text(content)
    assert run(["explain", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert "rank0.json" in error
    assert "Traceback" not in error


def test_a_report_is_a_page_with_the_late_rank_in_its_verdict(tmp_path, capsys):
    page = tmp_path / "r.html"
    assert run(["explain", str(CPU), "--report", str(page)]) == 0
    assert "Rank 1 is" in page.read_text()
    capsys.readouterr()


@pytest.mark.parametrize("name", ["1²1.json.gz", "rank²1.json.gz", f"{'9' * 20}.json.gz", f"rank{'9' * 200}.json.gz"])
def test_numbers_in_names_that_no_rank_has(tmp_path, name):
    for source, target in (("rank0.pt.trace.json.gz", "rank0.json.gz"), ("rank1.pt.trace.json.gz", name)):
        shutil.copy(CPU / source, tmp_path / target)
    assert read_ranks(tmp_path, None, None).world_size == 2


@pytest.mark.parametrize("size", [10**12, -1, 0])
def test_a_world_of_more_ranks_than_a_job_has_is_refused(tmp_path, size):
    write_trace(example_trace(world_size=2), tmp_path)
    for file in tmp_path.glob("rank*.json.gz"):
        document = json.loads(gzip.decompress(file.read_bytes()))
        document["distributedInfo"]["world_size"] = size
        file.write_bytes(gzip.compress(json.dumps(document).encode()))
    with pytest.raises(TraceError, match=rf"rank 0 of {size} ranks; .* 1,000,000 at most"):
        read_ranks(tmp_path, None, None)
