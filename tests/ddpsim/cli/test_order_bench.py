from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ddpsim.bucketing.order.predictors import LastArrival

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


def test_what_is_bad_is_refused(ddpsim: Callable, tmp_path: Path) -> None:
    ddpsim("order-bench", "--traces", "nowhere").refused("order trace 'nowhere'")
    ddpsim("order-bench", "--traces", tmp_path).refused("holds no order trace")
    ddpsim("order-bench", *SHORT, "--predictor", "nearest").refused("predictor 'nearest'")
    ddpsim("order-bench", *SHORT, "--predictor", "ddpsim.bucketing.order.predictors:Nearest").refused(
        "cannot be imported"
    )
    ddpsim("order-bench", *SHORT, "--consensus", "all").refused("consensus 'all'")
    other = tmp_path / "other.json"
    other.write_text('{"schema": "ddpsim.workload/1"}')
    ddpsim("order-bench", "--traces", other).refused("ddpsim.orders/1")


class Raising(LastArrival):
    def predict(self) -> list[float]:
        raise KeyError("no such branch")


def test_a_predictor_that_fails_ends_the_bench_with_one_message(ddpsim: Callable) -> None:
    said = "Raising.predict() raised KeyError: 'no such branch'"
    ddpsim("order-bench", *SHORT, "--predictor", f"{__name__}:Raising").refused(said)
