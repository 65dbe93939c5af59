"""The public trace of torch's DDP on A100s: its step told, and reproduced with DDP's own host costs as traced."""

import json
from pathlib import Path

import pytest

from ddpsim.cli.app import run

TRACE = Path(__file__).parents[2] / "data" / "traces" / "hta_resnet50_ddp_a100_rank0of2.json.gz"


@pytest.fixture(scope="module")
def document(tmp_path_factory):
    import contextlib
    import io

    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = run(["explain", str(TRACE.parent), "--shapes", "resnet50", "--untraced-step", "156ms", "--json"])
    assert code == 0
    return json.loads(out.getvalue())


def test_its_step_is_what_the_profiler_marked(document):
    marked = [222.442, 219.727, 224.936]  # of ProfilerStep#4 to #6 in the file, ms
    assert document["traced"]["step_s"] == pytest.approx(sorted(marked)[1] / 1e3, rel=2e-3)
    assert sum(document["traced"]["parts"].values()) == pytest.approx(document["traced"]["step_s"], rel=1e-9)


def test_it_is_reproduced_within_three_percent(document):
    assert abs(document["predicted"]["step_s"] / document["traced"]["step_s"] - 1) < 0.03
    assert document["predicted"]["inside_band"]


def test_its_buckets_are_torchs_default(document):
    sizes = [each["size_bytes"] for each in document["collectives"]]
    assert sizes == [4 * n for n in (2_049_000, 7_875_584, 6_563_840, 6_637_568, 2_431_040)]
    assert [each["parameters"] for each in document["collectives"]] == [2, 15, 12, 51, 81]
    assert document["buckets"].startswith("torch's default, [1, 25] MiB")


def test_the_missing_rank_is_named_and_nobody_is_late(document):
    assert document["missing_ranks"] == [1]
    assert document["late_rank"] is None
    assert document["bound"] == "host"


def test_the_profiler_costs_what_the_untraced_step_leaves(document):
    assert document["profiler_s"] == pytest.approx(document["traced"]["step_s"] - 0.156)
