from __future__ import annotations

from pathlib import Path

import pytest

from ddpsim import BucketCaps, load_topology, load_workload, sweep
from ddpsim.report import render, sweep_report
from ddpsim.report.model import Report
from ddpsim.report.rows import MOST_ROWS, MOST_TIMELINES
from ddpsim.simulation.job import Job
from tests import pages
from tests.browser import Page

CAPS = (1, 25, 100)
MACHINE = load_topology("p3.16xlarge")
RESNET = load_workload("resnet50")


@pytest.fixture(scope="module")
def documents() -> list[dict[str, object]]:
    caps = [BucketCaps(bucket_cap_mb=cap) for cap in CAPS]
    return [found.document() for found in sweep(RESNET, MACHINE, nodes=[1, 4], caps=caps)]


def report(documents: list[dict[str, object]], caps: list[str] | None = None) -> Report:
    labels = caps or [f"{cap}" for cap in CAPS] * 2
    return sweep_report(documents, labels, Job(RESNET, MACHINE), backend="nccl")


def test_the_verdict_names_the_fastest_and_what_the_cap_moves(documents: list[dict[str, object]]) -> None:
    first, second = report(documents).verdict
    steps = {(d["nodes"], cap): d["iteration_s"] for d, cap in zip(documents, CAPS * 2, strict=True)}
    fastest = min(CAPS, key=lambda cap: steps[4, cap])
    slowest = max(CAPS, key=lambda cap: steps[4, cap])
    assert f"4 nodes of p3.16xlarge with cap {fastest} MiB" in first
    assert f"{32 * 32 / steps[4, fastest]:,.0f} samples a second" in first
    assert f"by at most {100 * (steps[4, slowest] / steps[4, fastest] - 1):.1f} %" in second
    assert f"with cap {slowest} MiB" in second


def test_one_cap_tells_of_nodes_and_one_point_of_waiting(documents: list[dict[str, object]]) -> None:
    one_cap = report([documents[1], documents[4]], ["default", "default"])
    efficiency = documents[4]["scaling_efficiency"]
    assert f"{100 * efficiency:.1f} % on 4 nodes of p3.16xlarge" in one_cap.verdict[1]  # type: ignore[operator]
    assert "torch's default buckets" in one_cap.verdict[0]
    one = report([documents[4]], ["plan"])
    assert one.verdict[1].startswith("Waiting for communication takes ")
    assert "the plan's buckets" in one.verdict[0]


def test_the_table_has_a_row_a_prediction(documents: list[dict[str, object]]) -> None:
    rows = pages.table(pages.sections(render(report(documents)))["Steps"])
    assert [(row["cap MiB"], row["nodes"]) for row in rows] == [(f"{cap}", f"{n}") for n in (1, 4) for cap in CAPS]
    for row, document in zip(rows, documents, strict=True):
        assert row["exposed ms"] == f"{document['exposed_comm_s'] * 1e3:.2f}"  # type: ignore[operator]


def test_the_timeline_is_of_the_longest_and_the_shortest_step(documents: list[dict[str, object]]) -> None:
    page = render(report(documents))
    timeline = next(part for part in pages.data(page)["sections"] if part["kind"] == "timeline")
    slow, fast = timeline["choices"][1]["steps"]
    assert slow["iteration_us"] > fast["iteration_us"]
    by_cap = {f"cap {cap} MiB": document for cap, document in zip(CAPS, documents[3:], strict=True)}
    for step in (slow, fast):
        document = by_cap[step["label"]]
        assert step["iteration_us"] == pytest.approx(document["iteration_s"] * 1e6, abs=0.1)  # type: ignore[operator]
        for values, bucket in zip(step["buckets"], document["buckets"], strict=True):  # type: ignore[call-overload]
            shown = dict(zip(step["columns"], values, strict=True))
            assert shown["finished_us"] == pytest.approx(bucket["finished_s"] * 1e6, abs=0.1)
            assert shown["parameters"] == len(bucket["parameters"])
        phases = {name: (low, high) for name, low, high in step["phases"]}
        assert phases["backward"][1] == pytest.approx(max(b[3] for b in step["buckets"]), abs=0.2)


def test_a_long_sweep_keeps_its_page_small(documents: list[dict[str, object]]) -> None:
    many = [dict(documents[number % 6], nodes=1 + number // 3) for number in range(1800)]
    page = render(report(many, [str(cap) for cap in CAPS] * 600))
    assert len(pages.table(pages.sections(page)["Steps"])) == MOST_ROWS
    timeline = next(part for part in pages.data(page)["sections"] if part["kind"] == "timeline")
    assert len(timeline["choices"]) == MOST_TIMELINES
    assert len(page) < 2e6


@pytest.mark.parametrize("width", [1280, 390])
def test_it_opens_at_both_widths(browser: Page, documents: list[dict[str, object]], tmp_path: Path, width: int) -> None:
    path = tmp_path / "sweep.html"
    path.write_text(render(report(documents)))
    browser.open(path, width)
    assert browser.complaints() == []
    assert browser.run("document.documentElement.scrollWidth <= window.innerWidth")
    shown = browser.run("document.querySelector('.choice').selectedOptions[0].textContent")
    assert shown == "4 nodes of p3.16xlarge"
    assert browser.run("document.querySelectorAll('.step').length") == 2
