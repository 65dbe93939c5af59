from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ddpsim.bucketing.order.agreement import order_report
from ddpsim.bucketing.order.arrivals import arrivals_of
from ddpsim.trace.json import read_trace, write_trace
from ddpsim.trace.records import Trace


def test_order_reports_a_simulated_trace(ddpsim: Callable, tiny: Path, tmp_path: Path) -> None:
    folder = tmp_path / "trace"
    assert ddpsim("predict", "--workload", tiny, "--topology", "dgx-1v", "--trace", folder).code == 0
    result = ddpsim("order", folder, "--json")
    assert result.code == 0
    expected = order_report(arrivals_of(read_trace(folder))).document()
    assert {key: result.document[key] for key in expected} == expected
    assert result.document["plan"]["held_back_s"] >= 0


def test_a_trace_without_gradients_is_refused(ddpsim: Callable, tmp_path: Path) -> None:
    write_trace(Trace(1, "gloo", []), tmp_path / "empty")
    ddpsim("order", tmp_path / "empty").refused("empty")
    ddpsim("order", tmp_path / "nowhere").refused("nowhere")
