"""The kept bench has every trace, and is what the bench says today."""

from __future__ import annotations

import json

import pytest

from ddpsim.common import shipped
from ddpsim.workload.order_trace import load_order_trace
from studies.orders.order_findings import KEPT, PREDICTORS, RATIOS, rows_of

FOUND = json.loads(KEPT.read_text())


def test_every_kept_trace_is_on_it() -> None:
    assert {row["trace"] for row in FOUND["rows"]} == set(shipped.names("order trace"))
    assert {row["ratio"] for row in FOUND["rows"]} == set(RATIOS)
    assert {row["predictor"] for row in FOUND["rows"]} == set(PREDICTORS)


def test_a_kept_row_is_what_the_bench_says_today() -> None:
    trace = load_order_trace(shipped.path("order trace", "checkpointing")).first(60)
    [row] = rows_of(trace, "lab-flat", 1.0, ("drift:0.95:20",), ("mean",))
    names = ("trace", "ratio", "policy", "predictor")
    wanted = ("checkpointing", 1.0, "drift:0.95:20", "mean")
    [kept] = [each for each in FOUND["rows"] if tuple(each[name] for name in names) == wanted]
    assert row.keys() == kept.keys()
    for key, value in row.items():
        assert kept[key] == (pytest.approx(value, rel=1e-6, abs=1e-9) if isinstance(value, float) else value)
