from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ddpsim.workload.files import load_workload, save_workload
from tests.ddpsim.workload.kineto_traces import Job
from tests.ddpsim.workload.test_kineto import shapes


def test_list_and_show(ddpsim: Callable, tiny: Path) -> None:
    listed = ddpsim("workload", "list", "--json").document["workloads"]
    assert all(row["local_s"] > 0 for row in listed)
    shown = ddpsim("workload", "show", tiny, "--json").document
    assert shown["local_s"] == pytest.approx(0.013)
    assert shown["phases"]["backward"] == {"host_s": 0.002, "device_s": 0.008}
    assert "made by hand" in ddpsim("workload", "show", tiny).out


def test_show_says_whether_it_is_known_when_forward_needs_each_parameter(ddpsim: Callable, tiny: Path) -> None:
    for known, told in (
        (False, "forward_use: not known, all parameters count as needed"),
        (True, "forward_use: known"),
    ):
        assert ddpsim("workload", "show", tiny, "--json").document["forward_use_known"] is known
        assert told in ddpsim("workload", "show", tiny).out
        document, zeros = json.loads(tiny.read_text()), [0.0] * len(load_workload(tiny).parameters)
        tiny.write_text(json.dumps(document | {"forward_use_s": {"host": zeros, "device": zeros}}))


def test_one_processes_step_is_that_of_a_prediction(ddpsim: Callable, tiny: Path) -> None:
    document = json.loads(tiny.read_text())
    document["forward"]["host_s"] = [0.006]  # the host is behind in forward alone, and ahead over the whole step
    tiny.write_text(json.dumps(document))
    shown = ddpsim("workload", "show", tiny, "--json").document
    predicted = ddpsim("predict", "--workload", tiny, "--topology", "dgx-1v", "--json").document
    assert shown["local_s"] == predicted["local_s"]
    assert shown["local_s"] < 0.006 + 0.008 + 0.001


def test_bad_workloads_are_named_with_the_place(ddpsim: Callable, tiny: Path) -> None:
    ddpsim("workload", "show", "tinny").refused("'tinny'")
    document = json.loads(tiny.read_text())
    document["forward"]["device_s"][0] = -1
    tiny.write_text(json.dumps(document))
    ddpsim("workload", "show", tiny).refused("tiny.json", "forward.device_s.0", "-1")
    tiny.write_text(tiny.read_text()[:40])
    ddpsim("workload", "show", tiny).refused("tiny.json", "not JSON")


@pytest.mark.parametrize("kernels", [True, False])
def test_a_trace_whose_buckets_no_device_shows_is_imported_all_the_same(
    ddpsim: Callable, tmp_path: Path, kernels: bool
) -> None:
    job, trace, known, out = Job([20.0] * 4, ddp=True), *(tmp_path / name for name in ("t.json", "w.json", "out.json"))
    document = job.document()
    if not kernels:  # as gloo leaves it: nothing of a collective runs on the device
        events = document["traceEvents"]
        document["traceEvents"] = [e for e in events if e["cat"] != "kernel" or "nccl" not in e["name"]]
    trace.write_text(json.dumps(document))
    save_workload(shapes(4), known)
    shown = ddpsim("workload", "import", trace, "--shapes", known, "-o", out, "--json")
    assert shown.code == 0, shown.err
    assert [bucket["parameters"] for bucket in shown.document["traced_buckets"]] == ([2, 2] if kernels else [])
    assert load_workload(out).gradient_bytes == 160


@pytest.mark.needs("minutes")
def test_a_row_that_is_mostly_communication_says_so(ddpsim: Callable, tmp_path: Path) -> None:
    machine = ("--topology", "2x4a100-1nic")
    taken = ddpsim("predict", "--workload", "bert-large@a100-amp-b8", *machine, "--json").document["iteration_s"]
    given = ("--step", f"{1050 * taken:.6g}ms", "-o", tmp_path / "w.json")
    result = ddpsim("workload", "anchor", "bert-large@a100-amp-b8", *machine, *given)
    assert "its pace is no surer than the collectives; calibrate them, or give a one-GPU step" in result.err


def test_a_chakra_trace_is_written_and_imported(ddpsim: Callable, tiny: Path, tmp_path: Path) -> None:
    job = ("--topology", "dgx-1v", "--nodes", 2, "--json")
    before = ddpsim("predict", "--workload", tiny, *job, "--chakra", tmp_path / "traces").document
    imported = ddpsim("workload", "import", tmp_path / "traces/tiny.5.et", "-o", tmp_path / "again.json", "--json")
    assert [each["operation"] for each in imported.document["traced_collectives"]][:1] == ["ALL_REDUCE"]
    assert imported.document["traced_collectives"][0]["ranks"] == 16
    ddpsim("workload", "import", tmp_path / "traces/tiny.0.et", "-o", tmp_path / "first.json")
    again = ddpsim("predict", "--workload", tmp_path / "first.json", *job).document
    assert again["iteration_s"] == pytest.approx(before["iteration_s"], rel=0.002)


def test_chakra_without_protobuf_is_refused_before_anything_is_simulated(
    ddpsim: Callable, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "google.protobuf", None)
    predict = ("predict", "--workload", tiny, "--topology", "dgx-1v", "--chakra", tmp_path / "traces")
    ddpsim(*predict).refused("protobuf", "ddpsim[chakra]")
    assert not list((tmp_path / "traces").glob("*"))


def test_a_file_that_is_no_chakra_trace_is_refused(ddpsim: Callable, tmp_path: Path) -> None:
    (tmp_path / "job.0.et").write_text("nothing of the kind")
    ddpsim("workload", "import", tmp_path / "job.0.et").refused("job.0.et")
    ddpsim("workload", "import", tmp_path / "job.0.et", "--shapes", "resnet50").refused("shapes")
