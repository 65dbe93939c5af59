from __future__ import annotations

import gzip
import json
import logging
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given, settings

import ddpsim
from ddpsim.common.documents.fields import MOST_ITEMS
from ddpsim.common.errors import TraceError
from ddpsim.trace.json import discard_trace, rank_files, read_trace, write_rank, write_trace
from ddpsim.trace.metrics import overlap_ratio
from ddpsim.trace.records import Gradient, PathSpan, Trace
from tests.profile import examples
from tests.traces import example_trace, random_traces

SCHEMA = json.loads((Path(ddpsim.__file__).parent / "schemas" / "trace.schema.json").read_text())


def events(path: Path) -> list[dict]:
    return json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]


@given(random_traces())
@settings(max_examples=examples(60), deadline=None)
def test_iterations_survive_bit_for_bit(tmp_path_factory: pytest.TempPathFactory, trace: Trace) -> None:
    folder = tmp_path_factory.mktemp("trace")
    write_trace(trace, folder)
    back = read_trace(folder)
    assert list(back.iterations) == sorted(trace.iterations, key=lambda it: (it.rank, it.index))
    assert (back.world_size, back.backend, back.provenance) == (trace.world_size, trace.backend, trace.provenance)


def test_spans_survive_to_the_nanosecond(tmp_path: Path) -> None:
    trace = example_trace()
    write_trace(trace, tmp_path)
    key = lambda span: (span.rank, span.stream, span.start_s)  # noqa: E731
    theirs, ours = sorted(read_trace(tmp_path).spans, key=key), sorted(trace.spans, key=key)
    assert [(s.rank, s.stream, s.name, s.kernel, dict(s.args)) for s in theirs] == [
        (s.rank, s.stream, s.name, s.kernel, dict(s.args)) for s in ours
    ]
    for one, other in zip(theirs, ours, strict=True):
        assert one.start_s == pytest.approx(other.start_s, abs=1e-9)
        assert one.duration_s == pytest.approx(other.duration_s, abs=2e-9)


@given(random_traces())
@settings(max_examples=examples(20), deadline=None)
def test_files_follow_the_committed_schema(tmp_path_factory: pytest.TempPathFactory, trace: Trace) -> None:
    folder = tmp_path_factory.mktemp("schema")
    for made in (trace, example_trace()):
        write_trace(made, folder)
        for file in folder.glob("rank*.json.gz"):
            jsonschema.validate(json.loads(gzip.decompress(file.read_bytes())), SCHEMA)


def test_schema_refuses_a_kernel_without_its_stream(tmp_path: Path) -> None:
    write_trace(example_trace(), tmp_path)
    document = json.loads(gzip.decompress((tmp_path / "rank0.json.gz").read_bytes()))
    del next(event for event in document["traceEvents"] if event.get("cat") == "kernel")["args"]["stream"]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, SCHEMA)


PATH = tuple(
    PathSpan(stream=stream, cause=cause, start_s=start_s, end_s=end_s)
    for stream, cause, start_s, end_s in (
        ("compute", "backward", 0.0, 0.030),
        ("last rank: compute", "backward", 0.030, 0.031),
        ("communication 0", "communication latency", 0.031, 0.038),
        ("compute", "optimizer", 0.038, 0.040),
    )
)


def test_the_longest_path_survives_and_each_arrow_leads_from_a_slice_to_the_next(tmp_path: Path) -> None:
    trace = replace(example_trace(), path=PATH)
    write_trace(trace, tmp_path)
    for file in tmp_path.glob("rank*.json.gz"):
        jsonschema.validate(json.loads(gzip.decompress(file.read_bytes())), SCHEMA)
    back = read_trace(tmp_path)
    assert [(each.stream, each.cause) for each in back.path] == [(each.stream, each.cause) for each in PATH]
    assert [each.end_s for each in back.path] == pytest.approx([each.end_s for each in PATH], abs=2e-9)
    assert list(back.spans) == list(read_trace(_written(replace(trace, path=()), tmp_path / "without")).spans)
    drawn = [event for event in events(tmp_path / "rank0.json.gz") if event.get("cat") == "critical_path"]
    slices = [event for event in drawn if event["ph"] == "X"]
    begins, ends = ([event for event in drawn if event["ph"] == phase] for phase in "sf")
    assert [event["id"] for event in begins] == [event["id"] for event in ends] == [1, 2, 3]
    for number, (begin, end) in enumerate(zip(begins, ends, strict=True)):
        ours, after = slices[number], slices[number + 1]
        assert begin["tid"] == ours["tid"]
        assert ours["ts"] <= begin["ts"] < ours["ts"] + ours["dur"]
        assert (end["tid"], end["ts"], end["bp"]) == (after["tid"], after["ts"], "e")
    assert not [event for event in events(tmp_path / "rank1.json.gz") if event.get("cat") == "critical_path"]


def _written(trace: Trace, folder: Path) -> Path:
    write_trace(trace, folder)
    return folder


def test_same_trace_same_bytes(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        write_trace(example_trace(), tmp_path / folder)
    for file in (tmp_path / "a").iterdir():
        assert file.read_bytes() == (tmp_path / "b" / file.name).read_bytes()


def test_every_kernel_has_a_launch_and_every_collective_its_name(tmp_path: Path) -> None:
    trace = example_trace(backend="gloo")
    write_trace(trace, tmp_path)
    found = events(tmp_path / "rank1.json.gz")
    kernels = [event for event in found if event.get("cat") == "kernel"]
    launches = {e["args"]["correlation"]: e for e in found if e.get("cat") == "cuda_runtime"}
    assert all(launches[kernel["args"]["correlation"]]["ts"] <= kernel["ts"] for kernel in kernels)
    assert all(event["pid"] == 1 for event in found)
    named = [event for event in found if event["name"] == "nccl:all_reduce"]
    assert [event["args"]["backend"] for event in named] == ["gloo"] * 6


@pytest.mark.parametrize("world_size", [2, 3])
def test_holistic_trace_analysis_finds_our_overlap(tmp_path: Path, world_size: int) -> None:
    logging.disable(logging.WARNING)
    from hta.trace_analysis import TraceAnalysis

    trace = replace(example_trace(world_size, iterations=4), path=PATH)
    write_trace(trace, tmp_path)
    theirs = TraceAnalysis(trace_files=rank_files(tmp_path)).get_comm_comp_overlap(visualize=False).set_index("rank")
    logging.disable(logging.NOTSET)
    assert list(theirs.index) == list(range(world_size))
    for rank in range(world_size):
        ours = overlap_ratio(trace, rank)
        assert ours is not None
        assert 0.1 < ours < 0.9
        assert theirs.loc[rank, "comp_comm_overlap_pctg"] == pytest.approx(100 * ours, abs=0.1)


def test_ranks_that_never_wrote_are_missing(tmp_path: Path) -> None:
    write_rank(example_trace(3), 1, tmp_path)
    back = read_trace(tmp_path)
    assert back.ranks == [1]
    assert back.world_size == 3
    assert back.provenance == {}


def test_a_truncated_file_is_named_at_any_length(tmp_path: Path) -> None:
    write_trace(example_trace(), tmp_path)
    whole = (tmp_path / "rank1.json.gz").read_bytes()
    for kept in (0, 1, 9, 30, len(whole) // 2, len(whole) - 1):
        (tmp_path / "rank1.json.gz").write_bytes(whole[:kept])
        with pytest.raises(TraceError, match=r"rank1\.json\.gz.*run again"):
            read_trace(tmp_path)


RECORD = ["traceEvents", "of an iteration", "args", "iteration_record"]


@pytest.mark.parametrize(
    ("path", "value", "place"),
    [
        (["ddpsim", "schema"], "other/1", "not a trace of ddpsim"),
        (["distributedInfo"], {"backend": "gloo"}, "distributedInfo"),
        (["traceEvents"], None, "traceEvents"),
        (["traceEvents", 3], 7, "traceEvents.3"),
        (["traceEvents", 9, "ph"], None, "traceEvents.9"),
        (["traceEvents", -1, "ts"], "soon", r"traceEvents\.\d+"),
        ([*RECORD, "start_s"], "now", r"traceEvents\.\d+"),
        ([*RECORD, "buckets"], 1, r"traceEvents\.\d+"),
        ([*RECORD, "gradients"], [[1]], r"traceEvents\.\d+"),
        ([*RECORD, "synced"], None, r"traceEvents\.\d+"),
    ],
)
def test_a_malformed_file_is_named_with_the_place(tmp_path: Path, path: list, value: object, place: str) -> None:
    write_trace(example_trace(), tmp_path)
    file = tmp_path / "rank0.json.gz"
    document = json.loads(gzip.decompress(file.read_bytes()))
    holder = document
    for step in path[:-1]:
        holder = (
            next(e for e in holder if "iteration_record" in e.get("args", {})) if step == RECORD[1] else holder[step]
        )
    if value is None and isinstance(holder, dict) and path[-1] == "ph":
        del holder["ph"]
    else:
        holder[path[-1]] = value
    file.write_bytes(gzip.compress(json.dumps(document).encode()))
    with pytest.raises(TraceError, match=place) as caught:
        read_trace(tmp_path)
    assert "rank0.json.gz" in str(caught.value)


def test_an_iteration_that_ends_before_it_starts_is_named(tmp_path: Path) -> None:
    trace = example_trace()
    turned = [replace(it, start_s=it.end_s, end_s=it.start_s) for it in trace.iterations]
    write_trace(replace(trace, iterations=turned), tmp_path)
    with pytest.raises(TraceError, match=r"rank0.json.gz: traceEvents.\d+.args.iteration_record: end_s: it ends at"):
        read_trace(tmp_path)


@pytest.mark.parametrize("index", [-1, MOST_ITEMS, 1 << 32])
def test_a_parameter_that_no_model_has_is_named(tmp_path: Path, index: int) -> None:
    trace = example_trace()
    strange = [replace(it, gradients=(Gradient(parameter=index, hook_s=0.0, ready_s=0.0),)) for it in trace.iterations]
    write_trace(replace(trace, iterations=strange), tmp_path)
    with pytest.raises(TraceError, match=rf"iteration_record: gradients.*{index}"):
        read_trace(tmp_path)


def test_a_trace_takes_the_place_of_an_earlier_one(tmp_path: Path) -> None:
    (tmp_path / "notes.json.gz").write_text("mine")
    for ranks in (3, 2):
        write_trace(example_trace(ranks), tmp_path)
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "notes.json.gz", "rank0.json.gz", "rank1.json.gz", "run.json",
    ]  # fmt: skip
    assert read_trace(tmp_path).ranks == [0, 1]


def test_ranks_of_a_new_run_discard_what_they_will_not_write(tmp_path: Path) -> None:
    write_trace(example_trace(4), tmp_path)
    new = example_trace(2)
    discard_trace(tmp_path, 1, 2)
    write_rank(new, 1, tmp_path)
    discard_trace(tmp_path, 0, 2)
    assert read_trace(tmp_path).ranks == [1]
    assert not (tmp_path / "run.json").exists()
    discard_trace(tmp_path / "none", 0, 2)


def test_files_of_runs_of_different_sizes_are_refused(tmp_path: Path) -> None:
    for world_size, rank in ((2, 0), (3, 2)):
        write_rank(example_trace(world_size), rank, tmp_path)
    with pytest.raises(TraceError, match=r"rank2\.json\.gz: of a run of 3 ranks, .* of one of 2; remove the older"):
        read_trace(tmp_path)
