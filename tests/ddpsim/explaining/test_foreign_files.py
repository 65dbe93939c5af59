"""Files of other versions, other accelerators and other tools: read, or refused by their names."""

import json

import pytest

from ddpsim.common.errors import TraceError
from ddpsim.explaining.explain import explain
from ddpsim.workload.kineto.workload import import_trace
from tests.ddpsim.workload.kineto_traces import Job, written

OLD = {
    "cpu_op": "Operator", "user_annotation": "Operator", "kernel": "Kernel", "gpu_memcpy": "Memcpy",
    "gpu_memset": "Memset", "cuda_runtime": "Runtime",
}  # fmt: skip


def document(*, ddp=True, **options):
    return Job([80.0, 60.0, 40.0], ddp=ddp, recorded=True, **options).document(5)


def ranks_in(folder, *documents, names):
    for each, name in zip(documents, names, strict=True):
        written(folder, each, name)
    return explain(folder, predict=False)


def without_rank(document):
    return {**document, "distributedInfo": {"backend": "nccl"}}


def test_categories_of_old_versions_are_read_as_those_of_today(tmp_path):
    new, old = document(), document()
    for event in old["traceEvents"]:
        event["cat"] = OLD[event["cat"]]
        if "Input Dims" in event["args"]:
            event["args"]["Input dims"] = event["args"].pop("Input Dims")
    paths = [written(tmp_path / name, each) for name, each in (("new", new), ("old", old))]
    ours, theirs = (explain(path).document() for path in paths)
    assert ours == theirs
    new_workload, old_workload = (import_trace(path).workload for path in paths)
    assert new_workload.parameters == old_workload.parameters
    assert (new_workload.gradient_ready_s == old_workload.gradient_ready_s).all()


def test_moments_count_from_the_base_of_each_file(tmp_path):
    first, second = ({**document(), "host_name": "node"} for _ in range(2))
    second["distributedInfo"] = {**first["distributedInfo"], "rank": 1}
    alike = ranks_in(tmp_path / "alike", first, second, names=("a.json", "b.json"))
    first["baseTimeNanoseconds"], second["baseTimeNanoseconds"] = 1_790_857_026_000_000_000, 1_790_857_025_000_000_000
    for event in second["traceEvents"]:
        event["ts"] += 1e6
    based = ranks_in(tmp_path / "based", first, second, names=("a.json", "b.json"))
    assert based.alignment.agreed
    assert based.alignment.residual_s == pytest.approx(alike.alignment.residual_s, abs=1e-9)
    for event in second["traceEvents"]:
        event["ts"] += 1e6
    with pytest.raises(TraceError, match="its steps are 1 s from those"):
        ranks_in(tmp_path / "apart", first, second, names=("a.json", "b.json"))


@pytest.mark.parametrize("name", ["resnet50.json", "trace_8gpu.json", "step-3.json", "bert.local_rank3.json", "7.json"])
def test_a_number_in_a_name_is_no_rank(tmp_path, name):
    found = explain(written(tmp_path, without_rank(document()), name), predict=False)
    assert [rank.rank for rank in found.ranks.ranks] == [0]
    assert found.ranks.world_size == 1
    assert any("does not say its rank" in note for note in found.notes)


@pytest.mark.parametrize("name", ["rank3.json", "resnet50-rank_3.json", "worker3.1623143089861.pt.trace.json"])
def test_a_name_that_says_rank_is_believed(tmp_path, name):
    found = explain(written(tmp_path, without_rank(document()), name), predict=False)
    assert [rank.rank for rank in found.ranks.ranks] == [3]


@pytest.mark.parametrize("how", ["header", "process"])
def test_a_rank_in_metadata_is_taken(tmp_path, how):
    made = without_rank(document())
    if how == "header":
        made["rank"] = "5"
    else:
        named = {"ph": "M", "name": "process_labels", "pid": 1, "args": {"labels": "rank 5"}}
        made["traceEvents"].append(named)
    found = explain(written(tmp_path, made, "resnet50.json"), predict=False)
    assert [rank.rank for rank in found.ranks.ranks] == [5]


def test_a_folder_of_numbered_files_is_taken_in_their_order(tmp_path):
    made = without_rank(document())
    found = ranks_in(tmp_path, *[made] * 3, names=("trace_2.json", "trace_10.json", "trace_1.json"))
    assert [rank.place.rpartition("_")[2] for rank in found.ranks.ranks] == ["1.json", "2.json", "10.json"]


METADATA = {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "python"}}


@pytest.mark.parametrize("events", [[], [METADATA]])
@pytest.mark.parametrize("read", [explain, import_trace])
def test_an_empty_trace_is_called_empty(tmp_path, events, read):
    with pytest.raises(TraceError, match=r"is empty: no event"):
        read(written(tmp_path, {"traceEvents": events}))


def on_accelerator(change):
    """Return a trace as of a CPU, of which `change` says that it was recorded elsewhere."""
    made = document(ddp=False)
    made["traceEvents"] = [event for event in made["traceEvents"] if event["cat"] not in ("kernel", "cuda_runtime")]
    event = {"ph": "X", "name": "launch", "ts": 1010.0, "dur": 1.0, "tid": 1, "args": {}}
    change(made, lambda **more: made["traceEvents"].append({**event, **more}))
    return made


@pytest.mark.parametrize(
    ("change", "named"),
    [
        *((lambda made, add, cat=cat: add(cat=cat), cat)
          for cat in ("xpu_runtime", "hpu_op", "mtia_ccp_events", "privateuse1_runtime", "async_npu")),
        (lambda made, add: [add(cat="kernel"), add(cat="xpu_runtime")], "xpu_runtime"),
        (lambda made, add: add(cat="cpu_op", name="npu::npu_fusion_attention"), "npu"),
        (lambda made, add: add(ph="M", name="process_name", args={"name": "Ascend Hardware"}), "Ascend Hardware"),
        (lambda made, add: made.update(distributedInfo={"backend": "cpu:gloo,hpu:hccl", "rank": 0}), "hccl"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("read", [explain, import_trace])
def test_an_accelerator_that_is_not_read_is_named(tmp_path, change, named, read):
    with pytest.raises(TraceError, match=rf"accelerator that is neither CUDA's nor ROCm's, by .*{named}"):
        read(written(tmp_path, on_accelerator(change)))
    assert import_trace(written(tmp_path, on_accelerator(lambda made, add: None))).workload.device == "cpu"


NODES = [{"id": 1, "name": "[pytorch|profiler|execution_trace|process]", "ctrl_deps": 1}]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (json.dumps({"schema": "1.1.1-chakra.0.0.4", "pid": 1, "nodes": NODES}), "a PyTorch execution trace"),
        (json.dumps({"schema": "1.0.1", "pid": 1, "time": "x", "nodes": NODES}), "a PyTorch execution trace"),
        (json.dumps({"schema": "1.1.1-chakra.0.0.4", "pid": 1})[:-1] + ', "nodes": [{"id"', "a PyTorch execution"),
        ('{"version": "0.0.4"}\n{"id": "1", "name": "x", "type": "COMP_NODE"}', "a Chakra execution trace as JSON"),
        (json.dumps({"workload_graph": []}), "a Chakra execution trace as JSON"),
    ],
)
@pytest.mark.parametrize("read", [explain, import_trace])
def test_execution_traces_are_recognised_and_say_what_to_do(tmp_path, text, what, read):
    path = tmp_path / "trace.json"
    path.write_text(text)
    with pytest.raises(TraceError, match=rf"{what}.*ddpsim workload import"):
        read(path)
