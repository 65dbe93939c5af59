"""The public trace of torch's DDP on A100s: its step told, and reproduced with DDP's own host costs as traced."""

import gzip
import json
import shutil
from pathlib import Path

import pytest

from ddpsim.cli.app import run
from ddpsim.explaining.clocks import align_ranks
from ddpsim.explaining.files import read_ranks
from ddpsim.explaining.late import late_rank
from ddpsim.explaining.splits import splits_of

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


AHEAD_US = 5_000_000.0
MORE_US = 60_000.0


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """The trace beside another rank's: its clock 5 s ahead, a kernel at the end of backward 60 ms longer."""
    folder = tmp_path_factory.mktemp("pair")
    shutil.copy(TRACE, folder / "rank0.json.gz")
    trace = json.loads(gzip.decompress(TRACE.read_bytes()))
    trace["distributedInfo"]["rank"] = 1
    events = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    for event in events:
        event["ts"] += AHEAD_US
    for begin in [e["ts"] for e in events if e["name"] == "## backward ##" and e["cat"] == "user_annotation"]:
        kernels = [e for e in events if e["cat"] == "kernel" and begin < e["ts"] < begin + 80_000]
        last = max((e for e in kernels if "nccl" not in e["name"]), key=lambda event: event["ts"])
        last["dur"] += MORE_US
    (folder / "rank1.json").write_text(json.dumps(trace))
    return folder


def test_two_ranks_on_devices_are_aligned_and_the_slow_device_is_named(pair):
    ranks, alignment = align_ranks(read_ranks(pair, None, None).ranks)
    assert alignment.offsets_s[1] == pytest.approx(-AHEAD_US / 1e6, abs=1e-9)
    assert alignment.residual_s < 1e-6
    assert len(splits_of(ranks)) == 5
    late = late_rank(ranks)
    assert (late.rank, late.phase, late.cause) == (1, "backward", "backward")
