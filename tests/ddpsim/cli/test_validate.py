from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = ("--topology", "loopback", "--gpus-per-node", "2", "--backend", "gloo")


@pytest.fixture
def pair(ddpsim: Callable, tiny: Path, tmp_path: Path) -> tuple[Path, Path]:
    """A prediction, and a trace of the same job on a host 20 % slower, in the measurement's place."""
    predicted, measured = tmp_path / "predicted.json", tmp_path / "measured"
    predicted.write_text(ddpsim("predict", "--workload", tiny, *HERE, "--json").out)
    ddpsim("predict", "--workload", tiny, *HERE, "--scale-compute", "1.2", "--trace", measured)
    return predicted, measured


def test_document_and_bound(ddpsim: Callable, pair: tuple[Path, Path], tmp_path: Path) -> None:
    result = ddpsim("validate", *pair, "--json", "--max-error", "50%", "--plot", tmp_path / "v.png")
    assert result.code == 0
    document = result.document
    step = document["iterations"]
    assert step["error"] == pytest.approx(step["predicted_s"] / step["measured_s"] - 1)
    assert step["error"] < 0
    assert {"overhead", "buckets", "baselines", "mean_abs_error", "max_error"} <= document.keys()
    assert (tmp_path / "v.png").read_bytes().startswith(b"\x89PNG")
    exceeded = ddpsim("validate", *pair, "--json", "--max-error", "1%")
    assert exceeded.code == 1
    assert exceeded.document == document
    assert "exceeds --max-error 1%" in exceeded.err


def test_text_has_the_trivial_predictors_and_says_where_one_process_is_from(
    ddpsim: Callable, pair: tuple[Path, Path]
) -> None:
    predicted, measured = pair
    out = ddpsim("validate", predicted, measured).out
    for words in (
        "one process plus communication",
        "overhead over one process (as predicted)",
        "largest error:",
        "finished",
    ):
        assert words in out
    run = json.loads((measured / "run.json").read_text())
    run["provenance"]["local_s"] = 0.01
    (measured / "run.json").write_text(json.dumps(run))
    assert "overhead over one process (measured with the run)" in ddpsim("validate", predicted, measured).out


def test_bad_input_is_named(ddpsim: Callable, pair: tuple[Path, Path], tmp_path: Path) -> None:
    predicted, measured = pair
    ddpsim("validate", predicted, measured, "--max-error", "5").refused("--max-error", "'5'", "5%")
    ddpsim("validate", predicted, tmp_path / "none").refused("none", "no such folder")
    ddpsim("validate", tmp_path / "none.json", measured).refused("none.json")
    document = json.loads(predicted.read_text())
    predicted.write_text(json.dumps(document | {"world_size": 4}))
    ddpsim("validate", predicted, measured).refused("measured", "2 ranks, the prediction 4")
    predicted.write_text("[]")
    ddpsim("validate", predicted, measured).refused("predicted.json", "not a prediction")
    rank = measured / "rank0.json.gz"
    rank.write_bytes(rank.read_bytes()[:200])
    predicted.write_text(json.dumps(document))
    ddpsim("validate", predicted, measured).refused("rank0.json.gz", "truncated")


@pytest.mark.usefixtures("busy_is_told")
def test_a_run_beside_other_work_is_told(ddpsim: Callable, pair: tuple[Path, Path]) -> None:
    quiet = ddpsim("validate", *pair, "--json")
    assert "the machine was busy" not in quiet.err
    assert "other_work_processors" not in quiet.document
    run = pair[1] / "run.json"
    told = json.loads(run.read_text())
    told["provenance"] |= {"other_work_processors": 1.3, "processors": 2}
    run.write_text(json.dumps(told))
    busy = ddpsim("validate", *pair, "--json")
    assert "note: the machine was busy: other work took 1.3 of its 2 processors" in busy.err
    assert (busy.document["other_work_processors"], busy.document["processors"]) == (1.3, 2)
