from __future__ import annotations

import re
from pathlib import Path

import pytest

from ddpsim.common.tables.cells import format_band
from ddpsim.planning.rows import PlanReport, PlanRow
from ddpsim.report import plan_report
from ddpsim.report.model import TimelineChart
from ddpsim.report.rows import MOST_TIMELINES
from tests import pages


def changed(planned: PlanReport) -> list[PlanRow]:
    """Return the rows that are advised other buckets than torch's, the largest gain first."""
    return sorted((row for row in planned.rows if not row.keep_default), key=lambda row: -row.gain)


def place(row: PlanRow) -> str:
    return f"4 nodes of {row.chosen.topology.name}"


def test_the_plan_has_rows_of_both_kinds(planned: PlanReport) -> None:
    assert 0 < len(changed(planned)) < len(planned.rows)


def test_one_file_of_less_than_2_mb_needs_nothing_else(plan_page: Path) -> None:
    text = plan_page.read_text()
    assert plan_page.stat().st_size < 2e6
    parts = {f"#{part.attributes['id']}" for part in pages.sections(text).values()}
    marks = {f"#{mark.attributes['id']}" for mark in pages.parse(text).all("path") if "id" in mark.attributes}
    assert parts <= set(pages.addresses(text)) <= parts | marks
    style = pages.parse(text).all("style")[0].text
    assert "url(" not in style
    assert set(re.findall(r"url\(.", text)) <= {"url(#"}
    assert "@import" not in style
    assert "default-src 'none'" in text


def test_the_verdict_names_the_best_row_and_the_largest_gain(planned: PlanReport, plan_page: Path) -> None:
    first, second = pages.data(plan_page.read_text())["verdict"]
    best = planned.best.chosen
    assert best.topology.name in first
    assert f"{8 * best.summary.world_size / best.iteration_s:,.0f} samples a second" in first
    largest, *others = changed(planned)
    assert f"save {100 * largest.gain:.1f} %" in second
    assert re.findall(r"4 nodes of [\w.-]+\w", second) == [place(largest)]
    assert re.findall(r"pay in (\d+) more row", second) == ([str(len(others))] if others else [])
    assert [sentence.count(". ") for sentence in (first, second)] == [0, 0]


def test_a_plan_that_changes_nothing_says_so(planned: PlanReport) -> None:
    kept = PlanReport(tuple(row for row in planned.rows if row.keep_default))
    assert kept.rows
    assert plan_report([kept]).verdict[1].startswith("Keep torch's default buckets")


def test_the_line_to_paste_stands_with_its_places(planned: PlanReport, plan_page: Path) -> None:
    pasted = pages.data(plan_page.read_text())["paste"]
    places = {line: where.removeprefix("On ").removesuffix(":").split(", ") for where, line in pasted}
    assert len(places) == len(pasted)
    assert {line: sorted(found) for line, found in places.items()} == {
        row.advice: sorted(place(other) for other in planned.rows if other.advice == row.advice) for row in planned.rows
    }
    shown = [code.text for code in pages.parse(plan_page.read_text()).all("code")]
    assert all(row.advice in shown for row in planned.rows)


def test_the_table_holds_what_the_document_holds(planned: PlanReport, plan_page: Path) -> None:
    rows = pages.table(pages.sections(plan_page.read_text())["Steps"])
    for shown, document in zip(rows, planned.document()["rows"], strict=True):  # type: ignore[call-overload]
        step, low, high = (document[key] * 1e3 for key in ("step_s", "step_low_s", "step_high_s"))
        assert shown["machine"] == document["topology"]
        assert shown["step ms"] == format_band((step, low, high))
        assert shown["eff."] == f"{100 * document['scaling_efficiency']:.1f} %"


def test_timelines_hold_the_buckets_of_both_plans(planned: PlanReport, plan_page: Path) -> None:
    sections = pages.data(plan_page.read_text())["sections"]
    [timeline] = [section for section in sections if section["kind"] == "timeline"]
    for row, choice in zip(planned.rows, timeline["choices"], strict=True):
        assert choice["label"] == place(row)
        for prediction, step in zip((row.default, row.best), choice["steps"], strict=False):
            assert step["iteration_us"] == pytest.approx(prediction.iteration_s * 1e6, abs=0.2)
            for summary, values in zip(prediction.summary.buckets, step["buckets"], strict=True):
                bucket = dict(zip(step["columns"], values, strict=True))
                assert bucket["size_bytes"] == summary.size_bytes
                assert bucket["parameters"] == len(summary.parameters)
                for name in ("ready", "launched", "started", "wire", "finished", "written"):
                    assert bucket[f"{name}_us"] == pytest.approx(getattr(summary, f"{name}_s") * 1e6, abs=0.2)
            assert len(step["gradients_us"]) == len(row.default.workload.parameters)
    [selected] = [o for o in pages.parse(plan_page.read_text()).all("option") if "selected" in o.attributes]
    assert planned.rows[int(str(selected.attributes["value"]))] is changed(planned)[0]
    assert selected.text == place(changed(planned)[0])


def test_sources_of_machines_workloads_and_constants_are_named(plan_page: Path) -> None:
    parts = pages.sections(plan_page.read_text())
    assert "nvidia-smi topo -m" in pages.table(parts["Machines"])[1]["sources"]
    assert "V100 data sheet" in pages.table(parts["Workloads"])[0]["source"]
    [constants] = [part for name, part in parts.items() if name.startswith("Constants")]
    listed = {row["constant"]: row for row in pages.table(constants)}
    assert "NCCL src/graph/tuning.cc" in listed["nccl.start.ll_s"]["source"]
    doubts = pages.table(parts["What is in doubt"])
    assert "estimated compute times" in {row["cause"] for row in doubts}
    assert all(row["what would remove it"] for row in doubts)


def test_of_many_rows_those_that_change_something_keep_their_timelines(planned: PlanReport) -> None:
    kept, others = [row for row in planned.rows if row.keep_default], changed(planned)
    many = PlanReport((*kept * MOST_TIMELINES, *reversed(others)))
    timeline = next(part for part in plan_report([many]).sections if isinstance(part, TimelineChart))
    assert len(timeline.choices) == MOST_TIMELINES
    labels = [choice.label for choice in timeline.choices]
    assert labels[-len(others) :] == [place(row) for row in reversed(others)]
    assert labels[timeline.first] == place(others[0])


def test_why_other_buckets_take_less_sums_to_what_they_save(planned: PlanReport, plan_page: Path) -> None:
    rows = {
        row["saved on"]: row
        for row in pages.table(pages.sections(plan_page.read_text())["Why other buckets take less"])
    }
    assert {place(row) for row in changed(planned)} <= set(rows)
    named = {f"{place(row)}{', not advised' if row.keep_default else ''}": row for row in planned.rows}
    for label, shown in rows.items():
        saved = (named[label].default.iteration_s - named[label].best.iteration_s) * 1e3
        assert shown["together ms"] == f"{saved:.2f}"
        parts = [float(cell) for name, cell in shown.items() if name not in ("saved on", "together ms")]
        assert sum(parts) == pytest.approx(saved, abs=0.03)
