from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest

from ddpsim.order.predictors import LastArrival

KEYS = {
    "trace", "machine", "policy", "predictor", "step_s", "oracle_s", "rebuilt_once_s", "regret_low", "regret_high",
    "tau", "rebuilds",
}  # fmt: skip
SHORT = ("--traces", "tasks", "--steps", "8", "--policy", "drift:1:1")


def test_a_kept_trace_from_end_to_end(ddpsim: Callable, tmp_path: Path) -> None:
    picture = tmp_path / "gains.png"
    result = ddpsim("order-bench", *SHORT, "--predictor", "mean", "--predictor", "context", "--json", "--plot", picture)
    assert result.code == 0
    rows = result.document["rows"]
    assert [row["predictor"] for row in rows] == ["mean", "context"]
    for row in rows:
        assert row.keys() >= KEYS
        assert row["regret_low"] <= row["regret"] <= row["regret_high"]
        assert row["step_s"] >= row["oracle_s"]
    assert picture.read_bytes().startswith(b"\x89PNG")
    again = ddpsim("order-bench", *SHORT, "--predictor", "mean", "--predictor", "context", "--json")
    assert again.document == result.document


def test_a_predictor_of_ones_own_by_its_path(ddpsim: Callable) -> None:
    text = ddpsim("order-bench", *SHORT, "--predictor", "ddpsim.order.predictors:MeanReady").out
    assert "ddpsim.order.predictors:MeanReady" in text


def test_what_is_bad_is_refused(ddpsim: Callable, tmp_path: Path) -> None:
    ddpsim("order-bench", "--traces", "nowhere").refused("order trace 'nowhere'")
    ddpsim("order-bench", "--traces", tmp_path).refused("holds no order trace")
    ddpsim("order-bench", *SHORT, "--predictor", "nearest").refused("predictor 'nearest'")
    ddpsim("order-bench", *SHORT, "--predictor", "ddpsim.order.predictors:Nearest").refused("cannot be imported")
    ddpsim("order-bench", *SHORT, "--consensus", "all").refused("consensus 'all'")
    other = tmp_path / "other.json"
    other.write_text('{"schema": "ddpsim.workload/1"}')
    ddpsim("order-bench", "--traces", other).refused("ddpsim.orders/1")


class Few(LastArrival):
    def predict(self) -> list[float]:
        return [0.1]


class Unknown(LastArrival):
    def predict(self) -> list[float]:
        return [math.nan for _ in super().predict()]


class Raising(LastArrival):
    def predict(self) -> list[float]:
        raise KeyError("no such branch")


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("Few", "Few.predict() gave 1 times for 100 parameters"),
        ("Unknown", "Unknown.predict() gave NaN for all 100 parameters after 1 backwards"),
        ("Raising", "Raising.predict() raised KeyError: 'no such branch'"),
    ],
)
def test_a_predictor_that_fails_ends_the_bench_with_one_message(ddpsim: Callable, kind: str, said: str) -> None:
    ddpsim("order-bench", *SHORT, "--predictor", f"{__name__}:{kind}").refused(said)
