from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from ddpsim.trace.json import read_trace
from ddpsim.trace.metrics import PARTS, summarise
from ddpsim.workload.files import load_workload

HERE = ("--topology", "loopback", "--gpus-per-node", "2", "--backend", "gloo")


def test_the_document_has_its_keys_and_its_parts_sum(ddpsim: Callable, tiny: Path) -> None:
    result = ddpsim("predict", "--workload", tiny, *HERE, "--bucket-cap-mb", "2", "--json")
    document = result.document
    assert document["iteration_s"] == pytest.approx(sum(document[part] for part in PARTS))
    assert document["world_size"] == 2
    assert document["compute_device"].endswith("V100")
    assert document["scaling_efficiency"] == pytest.approx(document["local_s"] / document["iteration_s"])
    assert document["samples_per_s"] == pytest.approx(2 * load_workload(tiny).batch_size / document["iteration_s"])
    assert [bucket["parameters"] for bucket in document["buckets"]] == [[3, 2], [1, 0]]
    for bucket in document["buckets"]:
        assert 0 < bucket["ready_s"] <= bucket["started_s"] < bucket["finished_s"]
    assert "has the compute times of" in result.err


def test_the_trace_holds_the_printed_numbers(ddpsim: Callable, tiny: Path, tmp_path: Path) -> None:
    folder = tmp_path / "trace"
    document = ddpsim("predict", "--workload", tiny, *HERE, "--trace", folder, "--json").document
    summary = summarise(read_trace(folder))
    assert summary.iteration_s == pytest.approx(document["iteration_s"], rel=1e-9)
    printed = [bucket["finished_s"] for bucket in document["buckets"]]
    assert [bucket.finished_s for bucket in summary.buckets] == pytest.approx(printed, rel=1e-9)


def test_scaling_the_device_scales_the_step(ddpsim: Callable, tiny: Path) -> None:
    def iteration(*options: object) -> float:
        return ddpsim("predict", "--workload", tiny, *HERE, "--json", *options).document["iteration_s"]

    assert iteration("--scale-compute", "2") > iteration() > iteration("--comm", "noop")
    assert iteration("--straggler", "1:3") > iteration()


def test_compression_dropping_and_order_change_what_is_sent(ddpsim: Callable, tiny: Path) -> None:
    def buckets(*options: object) -> list[dict]:
        return ddpsim("predict", "--workload", tiny, *HERE, "--bucket-cap-mb", "1", "--json", *options).document[
            "buckets"
        ]

    plain = buckets()
    assert [b["wire_bytes"] for b in plain] == [b["size_bytes"] for b in plain] == [1 << 20] * 4
    assert [b["wire_bytes"] for b in buckets("--compression", "fp16")] == [1 << 19] * 4
    assert [b["parameters"] for b in buckets("--drop", "layer3:1", "--drop", "layer1:1")] == [[2], [0]]
    assert [b["parameters"] for b in buckets("--order", "once")] == [b["parameters"] for b in plain]
    assert [b["parameters"] for b in buckets("--order", "never")] == [[0, 1, 2, 3]]


def test_sweep_writes_one_document_a_line(ddpsim: Callable, tiny: Path, tmp_path: Path) -> None:
    file = tmp_path / "sweep.jsonl"
    caps = ("--bucket-cap-mb", "1,2,25", "-o", file)
    document = ddpsim("sweep", "--workload", tiny, *HERE, *caps, "--json").document
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert lines == document["rows"]
    assert [(line["nodes"], line["bucket_cap_mb"]) for line in lines] == [(1, 1), (1, 2), (1, 25)]
    alone = ddpsim("predict", "--workload", tiny, *HERE, "--bucket-cap-mb", "2", "--json").document
    only = {"critical_path", "critical_path_spans", "otherwise", "sensitivities", "slow_host"}
    assert alone.keys() - lines[1].keys() == only
    assert {key: lines[1][key] for key in alone if key in lines[1]} == {k: v for k, v in alone.items() if k in lines[1]}
    assert "eff." in ddpsim("sweep", "--workload", tiny, *HERE).out


def test_sweep_takes_caps_to_the_last_digit(ddpsim: Callable, tiny: Path) -> None:
    caps = ("--bucket-cap-mb", "2.0000011")
    [row] = ddpsim("sweep", "--workload", tiny, *HERE, *caps, "--json").document["rows"]
    alone = ddpsim("predict", "--workload", tiny, *HERE, *caps, "--json").document
    whole = ddpsim("predict", "--workload", tiny, *HERE, "--bucket-cap-mb", "2", "--json").document
    assert row["plan_fingerprint"] == alone["plan_fingerprint"] != whole["plan_fingerprint"]
    rows = ddpsim("plan", "--workload", tiny, *HERE, *caps, "--json").document["rows"]
    assert [point["bucket_cap_mb"] for point in rows[0]["sweep"]] == [row["bucket_cap_mb"]] == [2.0000011]


@pytest.mark.parametrize(
    ("options", "labels"),
    [
        ([], ["default"]),
        (["--bucket-cap-mb", "1,2.0000011"], ["1", "2.0000011"]),
        (["--bucket-cap-mb", "2,3", "--first-bucket-mb", "0.5"], ["0.5,2", "0.5,3"]),
        (["--first-bucket-mb", "2"], ["2,25"]),
        (["--bucket-cap-mb-list", "1,2.5"], ["1,2.5"]),
        (["--plan", "plan.json"], ["plan"]),
    ],
)
def test_sweeps_table_says_which_caps(
    ddpsim: Callable,
    tiny: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    labels: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    ddpsim("buckets", "--workload", tiny, "--bucket-cap-mb", "2", "-o", "plan.json")
    lines = ddpsim("sweep", "--workload", tiny, *HERE, *options).out.splitlines()
    assert [line.split()[2] for line in lines[1:]] == labels


@pytest.mark.parametrize("command", ["predict", "sweep", "buckets"])
def test_an_option_of_one_value_given_twice_is_refused(ddpsim: Callable, tiny: Path, command: str) -> None:
    here = () if command == "buckets" else HERE
    ddpsim(command, "--workload", tiny, f"--workload={tiny}", *here).refused("--workload", "twice", "keep one")
    ddpsim(command, "--workload", tiny, *here, "--bucket-cap-mb", "1", "--bucket_cap_mb", "2").refused(
        "--bucket-cap-mb"
    )


def test_a_stragglers_cost_is_named(ddpsim: Callable, tiny: Path) -> None:
    straggling = ("predict", "--workload", tiny, *HERE, "--straggler", "1:3")
    document = ddpsim(*straggling, "--json").document
    assert 0 < document["exposed_skew_s"] <= document["exposed_comm_s"]
    assert "of which waiting for slower ranks" in ddpsim(*straggling).out


@pytest.mark.parametrize("algorithm", ["gather-broadcast", "parameter-server"])
def test_naive_patterns_run_in_a_step_as_by_themselves(ddpsim: Callable, tiny: Path, algorithm: str) -> None:
    here = ("--topology", "p3.8xlarge", "--nodes", "2", "--algorithm", algorithm)
    [alone] = ddpsim("allreduce", *here, "-b", "4M", "-e", "4M", "--json").document["rows"]
    one_bucket = ("--bucket-cap-mb", "100")
    step = ddpsim("predict", "--workload", tiny, *here, *one_bucket, "--json").document
    ring = ddpsim("predict", "--workload", tiny, *here[:4], "--algorithm", "ring", *one_bucket, "--json").document
    [bucket] = step["buckets"]
    assert bucket["finished_s"] - bucket["wire_s"] == pytest.approx(alone["time_us"] * 1e-6, rel=0.01)
    assert step["iteration_s"] > ring["iteration_s"]


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (["--nodes", "0"], ["--nodes", "0"]),
        (["--nodes", "3"], ["3 nodes", "loopback"]),
        (["--nodes", "two"], ["two"]),
        (["--fidelity", "exact"], ["exact", "flow, steps, closed"]),
        (["--comm", "none"], ["none", "real, noop"]),
        (["--accumulate", "0"], ["--accumulate", "0"]),
        (["--sync", "first"], ["--sync", "first", "last, every"]),
        (["--scale", "forward"], ["--scale", "'forward'", "PHASE=F"]),
        (["--scale", "step=2"], ["--scale step", "use forward, backward, optimizer"]),
        (["--scale", "forward=0"], ["--scale forward", "0.0 is not a factor"]),
        (["--scale", "forward=1", "--scale", "forward:2"], ["--scale forward", "twice", "keep one"]),
        (["--process-groups", "0"], ["--process-groups", "0"]),
        (["--straggler", "3"], ["--straggler", "'3'", "RANK:F"]),
        (["--straggler", "1:fast"], ["--straggler", "'fast'"]),
        (["--straggler", "²:1.5"], ["--straggler", "'²:1.5'", "RANK:F"]),
        (["--straggler", "1:2,3"], ["--straggler", "'2,3' is not one number"]),
        (["--straggler", "1:2", "--straggler", "01:1"], ["--straggler 01", "twice", "keep one"]),
        (["--straggler", "7:2"], ["--straggler", "rank 7 is not in a world of 2; give a rank from 0 to 1"]),
        (["--straggler", "1:-2"], ["--straggler 1", "-2"]),
        (["--scale-compute", "0"], ["--scale-compute", "0"]),
        (["--seed", "-1"], ["--seed", "-1", "from 0"]),
        (["--seed", str(1 << 63)], ["--seed", "9223372036854775808"]),
        (["--iterations", "0"], ["--iterations", "0"]),
        (["--compression", "gzip"], ["--compression", "'gzip'", "fp16"]),
        (["--compression", "powersgd:0"], ["--compression", "'0'", "powersgd:4"]),
        (["--compression", "fp16", "--process-groups", "2"], ["--compression fp16", "--process-groups 2", "keep one"]),
        (["--compression", "fp16", "--comm", "noop"], ["--compression fp16", "--comm noop", "keep one"]),
        (["--drop", "layer0"], ["--drop", "'layer0'", "LAYER:P"]),
        (["--drop", "layer0:often"], ["--drop", "'often'"]),
        (["--drop", "layer0:0.1", "--drop", "layer0:0.2"], ["--drop layer0", "twice", "keep one"]),
        (["--drop", "layer0:2"], ["--drop layer0", "2.0"]),
        (["--drop", "layer9:0.5"], ["'layer9'", "module's name"]),
        (["--order", "twice"], ["--order", "'twice'", "once"]),
        (["--order", "drift:2"], ["--order", "2", "-1 to 1"]),
        (["--order", "once", "--assignment", "initial"], ["--order once", "--assignment initial"]),
        (["--predictor", "mean"], ["--predictor", "--order"]),
        (["--order", "once", "--predictor", "median"], ["--predictor", "'median'"]),
        (["--order", "once", "--consensus", "rank1"], ["--consensus", "'rank1'"]),
    ],
)  # fmt: skip
def test_options_out_of_range(ddpsim: Callable, tiny: Path, options: list[str], parts: list[str]) -> None:
    here = [word for pair in zip(HERE[::2], HERE[1::2], strict=True) if pair[0] not in options for word in pair]
    ddpsim("predict", "--workload", tiny, *here, *options).refused(*parts)


@pytest.mark.parametrize(
    ("command", "options", "parts"),
    [
        ("sweep", ["--nodes", "1,x"], ["--nodes", "'x'"]),
        ("sweep", ["--nodes", "1.5"], ["--nodes", "1.5"]),
        ("sweep", ["--bucket-cap-mb", "1,-2"], ["--bucket-cap-mb", "-2"]),
        ("sweep", ["--bucket-cap-mb", "1,2", "--bucket-cap-mb-list", "1,2"], ["--bucket-cap-mb-list", "keep one"]),
        ("plan", ["--plan", "x.json"], ["--plan", "leave it out"]),
        ("plan", ["--first-bucket-mb", "1"], ["--first-bucket-mb", "without --bucket-cap-mb"]),
        ("sweep", ["--plan", "x.json", "--bucket-cap-mb", "1,2"], ["--bucket-cap-mb and --plan", "keep one"]),
        ("sweep", ["--plan", "x.json", "--first-bucket-mb", "1"], ["--plan and --first-bucket-mb", "keep one"]),
        ("plan", ["--bucket-cap-mb-list", "1,2"], ["--bucket-cap-mb-list", "leave it out"]),
        ("plan", ["--schemes", "ddp", "--bucket-cap-mb", "5"], ["--schemes", "--bucket-cap-mb", "are both given"]),
    ],
)
def test_lists_out_of_range(ddpsim: Callable, tiny: Path, command: str, options: list[str], parts: list[str]) -> None:
    ddpsim(command, "--workload", tiny, *HERE, *options).refused(*parts)


def test_predict_and_plan_say_by_what_bytes_go_and_what_else_there_is(ddpsim: Callable, tiny: Path) -> None:
    where = ("--workload", tiny, "--topology", "8xl40s-pcie", "--nodes", 2)
    said, found = ddpsim("predict", *where).out, ddpsim("predict", *where, "--json").document["transports"]
    assert found["in_node"]["transports"] == ["host memory (SHM)", "P2P over PCIe"]
    assert found["between_nodes"]["transports"] == ["NET/Socket through host memory"]
    assert "bus bandwidth between nodes by NET/Socket through host memory: " in said
    assert f"advice: {found['advice'][0]}" in " ".join(said.split())
    assert sum(len(group["pairs"]) for group in found["pairs"]) == 28 + 8
    planned = ddpsim("plan", *where, "--bucket-cap-mb", "25", "--json").document["rows"][0]
    assert planned["transports"] == found
    line = next(line for line in said.splitlines() if line.startswith("allreduce bus bandwidth"))
    short = ddpsim("plan", *where, "--bucket-cap-mb", "25").out
    assert f"on 8xl40s-pcie (2 nodes): advice: {found['advice'][0]}" in " ".join(short.split())
    assert "bus bandwidth" not in short
    detailed = " ".join(ddpsim("plan", *where, "--bucket-cap-mb", "25", "-v").out.split())
    assert f"on 8xl40s-pcie (2 nodes): {line}" in detailed
    assert "advice: 8xl40s-pcie" in ddpsim("allreduce", *where[2:], "-b", "1M", "-e", "1M").err


def test_what_moves_no_bytes_has_no_transports(ddpsim: Callable, tiny: Path) -> None:
    for options in (HERE, ("--topology", "8xl40s-pcie", "--nodes", 2, "--comm", "noop")):
        assert ddpsim("predict", "--workload", tiny, *options, "--json").document["transports"] is None


def test_a_prediction_is_written_beside_a_run(ddpsim: Callable, tiny: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "one", tmp_path / "two"
    ddpsim("predict", "--workload", tiny, *HERE, "--trace", first)
    ddpsim("predict", "--workload", tiny, *HERE, "--trace", second, "--beside", first)
    assert (second / "beside.json.gz").is_file()
    assert summarise(read_trace(second)) == summarise(read_trace(first))


def test_a_prediction_beside_a_run_is_refused(ddpsim: Callable, tiny: Path, tmp_path: Path) -> None:
    words = ("predict", "--workload", tiny, *HERE, "--beside", tmp_path)
    ddpsim(*words).refused("--beside is given without --trace")
    ddpsim(*words, "--trace", tmp_path / "new").refused(str(tmp_path), "holds no rank*.json.gz")


def test_segments_of_a_schedule_send_what_they_are(ddpsim: Callable) -> None:
    base = ("predict", "--workload", "resnet50", "--topology", "dgx-1v", "--nodes", "2", "--json")
    for scheme in ("priority:4MiB", "priority:4MiB,credit=16MiB", "gradientflow"):
        buckets = ddpsim(*base, "--scheme", scheme).document["buckets"]
        assert [b["wire_bytes"] for b in buckets] == [b["size_bytes"] for b in buckets]


def test_a_launch_before_its_iteration_is_explained(ddpsim: Callable) -> None:
    base = ("predict", "--workload", "bert-base", "--topology", "dgx-1v", "--nodes", "2")
    document, text = ddpsim(*base, "--json").document, ddpsim(*base).out
    assert document["buckets"][0]["launched_s"] < 0
    assert "negative times: the host launches up to" in text
    assert "kernels queue up" in text
    synchronised = ("predict", "--workload", "resnet50", "--topology", "dgx-1v")
    assert "negative times: the host launches up to" not in ddpsim(*synchronised).out


def test_a_band_is_of_positive_times_where_one_iteration_of_few_bits_is_simulated(ddpsim: Callable) -> None:
    job = ("--workload", "resnet50", "--topology", "dgx-1v", "--compression", "onebit", "--iterations", 1)
    said = ddpsim("predict", *job, "--json").document
    assert 0 < said["iteration_low_s"] < said["iteration_s"] < said["iteration_high_s"]
    assert all(0 < doubt["low_s"] <= doubt["high_s"] for doubt in said["doubts"])


def test_first_iterations_are_printed_and_in_the_document(ddpsim: Callable, tiny: Path) -> None:
    command = ("predict", "--workload", tiny, *HERE, "--bucket-cap-mb", "2", "--first", "3")
    # Of this scheme the first forward waits for nothing that a step before has sent.
    assert " shorter than later ones" in ddpsim(*command, "--scheme", "dear").out
    first = ddpsim(*command, "--json").document["first"]
    assert [row["buckets"] for row in first["iterations"]] == [1, 2, 2]
    assert [row["rebuilt"] for row in first["iterations"]] == [False, True, False]
    assert first["construction"]["state_bytes"] == sum(p.size_bytes for p in load_workload(tiny).parameters)
    assert "first" not in ddpsim("predict", "--workload", tiny, *HERE, "--json").document


def test_a_rank_may_use_other_layers_than_the_others(ddpsim: Callable, tiny: Path) -> None:
    command = ("predict", "--workload", tiny, *HERE, "--find-unused-parameters", "--json")
    whole, less = ddpsim(*command).document, ddpsim(*command, "--unused", "0-1:layer3").document
    assert less["iteration_s"] < whole["iteration_s"]
    assert less["provenance"]["unused"] == {"0": ["layer3"], "1": ["layer3"]}
    assert "unused" not in whole["provenance"]
    ddpsim(*command, "--unused", "2:layer3").refused("--unused 2", "rank 2 is not in a world of 2")


def test_ranks_that_wait_for_no_other_are_told_with_their_staleness(ddpsim: Callable, tiny: Path) -> None:
    here = ("--topology", "dgx-1v", "--gpus-per-node", "4")
    command = ("predict", "--workload", tiny, *here, "--scheme", "parameter-server:async", "--straggler", "1:3")
    assert "3 ranks with steps of" in ddpsim(*command).out
    document = ddpsim(*command, "--json").document
    assert sorted(document["rank_steps_s"]) == ["0", "1", "2"]
    assert document["servers"]["staleness_most"] >= 3
