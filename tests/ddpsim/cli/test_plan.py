"""`ddpsim plan`, from options to text, JSON and the plan's file."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = ("--topology", "loopback", "--gpus-per-node", "2", "--backend", "gloo")


def test_plan_advises_and_writes_a_plan_that_predict_takes(ddpsim: Callable, tiny: Path, tmp_path: Path) -> None:
    plan, plot = tmp_path / "plan.json", tmp_path / "plan.png"
    result = ddpsim("plan", "--workload", tiny, *HERE, "-o", plan, "--plot", plot, "--json")
    row = result.document["rows"][0]
    assert result.document["best"] == row
    assert row["iteration_s"] <= row["default_iteration_s"]
    assert plot.read_bytes().startswith(b"\x89PNG")
    taken = ddpsim("predict", "--workload", tiny, *HERE, "--plan", plan, "--json").document
    assert taken["iteration_s"] == pytest.approx(row["iteration_s"])
    text = ddpsim("plan", "--workload", tiny, *HERE).out
    assert row["torch"] in text
    assert "est." in text


def test_plan_takes_several_workloads_and_says_so_of_each(ddpsim: Callable, tiny: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text(tiny.read_text().replace('"tiny"', '"other"'))
    plot = tmp_path / "plan.png"
    both = ("plan", "--workload", tiny, "--workload", other, *HERE)
    document = ddpsim(*both, "--json", "--plot", plot).document
    assert [row["workload"] for row in document["rows"]] == ["tiny", "other"]
    assert document["best"] is None
    alone = ddpsim("plan", "--workload", other, *HERE, "--json").document
    assert document["best_by_workload"]["other"] == alone["best"] == alone["rows"][0]
    text = ddpsim(*both).out
    assert text.index("tiny\n") < text.index("other\n")
    assert text.count("DistributedDataParallel") == 2
    ddpsim(*both, "-o", tmp_path / "plan.json").refused("--out", "2 workloads", "one workload at a time")


def test_plan_keeps_workloads_of_one_name_apart(ddpsim: Callable, tiny: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text(tiny.read_text())
    both = ("plan", "--workload", tiny, "--workload", other, *HERE)
    for more in (("--bucket-cap-mb", "1"), ("--schemes", "ddp")):
        document = ddpsim(*both, *more, "--json").document
        assert len(document["rows"]) == 2
        assert list(document["best_by_workload"]) == [str(tiny), str(other)]


def test_plan_reads_a_machine_from_standard_input_once(
    ddpsim: Callable, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other.json"
    other.write_text(tiny.read_text().replace('"tiny"', '"other"'))
    monkeypatch.setattr("sys.stdin", io.StringIO("name: typed\nnode: dgx-1v\n"))
    both = ("--workload", tiny, "--workload", other, "--bucket-cap-mb", "1")
    rows = ddpsim("plan", *both, "--topology", "-", "--json").document["rows"]
    assert [(row["workload"], row["topology"]) for row in rows] == [("tiny", "typed"), ("other", "typed")]


def test_plan_with_caps_tries_only_those(ddpsim: Callable, tiny: Path) -> None:
    rows = ddpsim("plan", "--workload", tiny, *HERE, "--bucket-cap-mb", "1,2", "--json").document["rows"]
    assert [point["bucket_cap_mb"] for point in rows[0]["sweep"]] == [1, 2]
    first = ("--bucket-cap-mb", "2", "--first-bucket-mb", "1")
    [row] = ddpsim("plan", "--workload", tiny, *HERE, *first, "--json").document["rows"]
    alone = ddpsim("predict", "--workload", tiny, *HERE, *first, "--json").document
    assert row["sweep"][0]["iteration_s"] == pytest.approx(alone["iteration_s"], rel=1e-12)


def test_a_plan_in_words_says_the_same_without_pricing_other_settings_of_nccl(
    ddpsim: Callable, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("plan", "--workload", tiny, "--topology", "dgx-1v", "--nodes", "2", "--bucket-cap-mb", "1", "--workers", 1)
    whole = ddpsim(*words).out
    assert "P2P off" in ddpsim(*words, "-v").out
    monkeypatch.setattr("ddpsim.prediction.prediction.paths_taken", lambda *_: pytest.fail("not shown"))
    assert ddpsim(*words).out == whole


def test_a_machine_that_is_named_twice_has_its_nodes_once(ddpsim: Callable) -> None:
    told = ddpsim("plan", "--workload", "resnet50", *("--topology", "dgx-1v") * 2, "--nodes", "1")
    assert "on dgx-1v (1 node)" in told.out
    assert "1, 1" not in told.out
