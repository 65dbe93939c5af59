"""`explain A --against B`: what changed is told, and nothing that did not."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ddpsim.cli.app import run
from ddpsim.explaining.against import compare_runs
from ddpsim.explaining.explain import explain
from ddpsim.trace.json import write_trace
from tests.traces import example_trace

HERE = Path(__file__).parent
LATE, EXPERTS, NAIVE = HERE / "cpu-ddp", HERE / "cpu-ddp-all-to-all", HERE / "cpu-naive"
MORE_S = 0.004


@pytest.fixture
def longer(tmp_path):
    """Two folders of a run: in the second the optimizer takes 4 ms longer."""
    before = example_trace(iterations=6)
    period = before.iterations[0].iteration_s

    def later(it):
        by = it.index * MORE_S
        buckets = tuple(
            replace(
                b, ready_s=b.ready_s + by, launched_s=b.launched_s + by, started_s=b.started_s + by,
                wire_s=b.wire_s + by, finished_s=b.finished_s + by, written_s=b.written_s + by,
            )
            for b in it.buckets
        )  # fmt: skip
        start = it.index * (period + MORE_S)
        return replace(
            it, start_s=start, end_s=start + period + MORE_S, optimizer_s=it.optimizer_s + MORE_S, buckets=buckets
        )

    after = replace(before, iterations=[later(it) for it in before.iterations], spans=())
    write_trace(replace(before, spans=()), tmp_path / "then")
    write_trace(after, tmp_path / "now")
    return tmp_path / "now", tmp_path / "then"


def test_a_run_against_itself_has_not_changed():
    found = explain(EXPERTS)
    since = compare_runs(found, found)
    assert since.changed == ()
    assert not any(part.sure or part.change_s for part in (since.step, *since.parts))
    assert since.verdict().startswith("the step is as long as before")


def test_what_takes_longer_is_named_and_nothing_else(longer):
    now, then = map(explain, longer)
    since = compare_runs(now, then)
    assert since.step.change_s == pytest.approx(MORE_S)
    assert [part.name for part in since.parts if part.sure] == ["optimizer_s"]
    assert next(p for p in since.parts if p.name == "optimizer_s").change_s == pytest.approx(MORE_S)
    assert since.changed == ()
    assert "longer" in since.verdict()
    back = compare_runs(then, now)
    assert "shorter" in back.verdict()
    assert back.step.change_s == pytest.approx(-MORE_S)


def test_other_collectives_and_a_rank_that_is_late_no_more_are_told():
    since = compare_runs(explain(EXPERTS), explain(LATE))
    assert any(line.startswith("late rank: none; before: rank 1") for line in since.changed)
    assert any(line.startswith("all_to_all a step: 4 of 1.50 MiB in all instead of none") for line in since.changed)
    assert {name: (then.count, now.count) for name, then, now in since.collectives} == {
        "all_reduce": (1, 2), "all_to_all": (0, 4)
    }  # fmt: skip
    assert sum(part.now_s for part in since.parts) == pytest.approx(since.step.now_s)
    assert sum(part.then_s for part in since.parts) == pytest.approx(since.step.then_s)


def test_another_number_of_ranks_is_told(tmp_path):
    write_trace(example_trace(world_size=2), tmp_path / "two")
    write_trace(example_trace(world_size=4), tmp_path / "four")
    since = compare_runs(explain(tmp_path / "four"), explain(tmp_path / "two"))
    assert "4 ranks instead of 2" in since.changed


def test_an_option_of_the_run_that_changed_is_told(tmp_path):
    trace = example_trace()
    for name, cap in (("then", 25), ("now", 5)):
        provenance = {**trace.provenance, "options": {"bucket_cap_mb": cap}}
        write_trace(replace(trace, provenance=provenance), tmp_path / name)
    assert (
        "bucket_cap_mb: 5 instead of 25" in compare_runs(explain(tmp_path / "now"), explain(tmp_path / "then")).changed
    )


def test_the_command_tells_it_in_text_json_and_report(tmp_path, longer, capsys):
    now, then = map(str, longer)
    page = tmp_path / "page" / "r.html"
    page.parent.mkdir()
    assert run(["explain", now, "--against", then, "--report", str(page)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("the step is 4 ms (10.0 %) longer: 44 ms now, 40 ms before")
    assert "What changed" in page.read_text()
    assert run(["explain", now, "--against", then, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["against"]["step"]["change_s"] == pytest.approx(MORE_S)
    assert {part["name"] for part in document["against"]["parts"]} == set(document["traced"]["parts"])
    assert run(["explain", now, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["against"] is None
