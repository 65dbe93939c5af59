from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ddpsim.common.errors import TraceError
from ddpsim.trace.json import write_beside
from ddpsim.trace.records import Span, Trace
from tests.traces import example_trace


def later(trace: Trace, seconds: float) -> Trace:
    """Return `trace` as another clock has it, its last iteration twice as long."""
    iterations = [
        replace(it, start_s=it.start_s + seconds, end_s=it.end_s + seconds + (it.index == 2) * it.iteration_s)
        for it in trace.iterations
    ]

    def args(span: Span) -> dict[str, Any]:
        return {name: value + seconds if name.endswith("_s") else value for name, value in span.args.items()}

    spans = [replace(span, start_s=span.start_s + seconds, args=args(span)) for span in trace.spans]
    return replace(trace, iterations=iterations, spans=spans)


def events_of(path: Path) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    return events


@pytest.fixture
def events(tmp_path: Path) -> list[dict[str, Any]]:
    write_beside(later(example_trace(), 1000.0), example_trace(), tmp_path / "both.json.gz")
    return events_of(tmp_path / "both.json.gz")


def test_each_rank_has_a_process_for_each_side(events: list[dict[str, Any]]) -> None:
    names = {each["pid"]: each["args"]["name"] for each in events if each["name"] == "process_name"}
    assert names == {0: "rank 0 measured", 1: "rank 0 predicted", 2: "rank 1 measured", 3: "rank 1 predicted"}


def test_what_happened_at_the_same_time_after_the_start_is_at_the_same_time(events: list[dict[str, Any]]) -> None:
    def of(process: int) -> list[tuple[str, str, float]]:
        timed = [each for each in events if each["pid"] == process and each["ph"] in ("X", "b")]
        return sorted((each["cat"], each["name"].partition(" ")[0], round(each["ts"], 1)) for each in timed)

    for rank in range(2):
        assert of(2 * rank) == of(2 * rank + 1)
        assert {"forward", "backward", "optimizer", "iteration"} <= {name for _, name, _ in of(2 * rank)}
        assert min(at for _, _, at in of(2 * rank)) == 0


def test_what_viewers_tie_together_is_of_one_process(events: list[dict[str, Any]]) -> None:
    numbers = [each["id"] for each in events if each["ph"] == "b"]
    assert len(set(numbers)) == len(numbers)


def test_the_step_nearest_the_median_is_shown(events: list[dict[str, Any]]) -> None:
    shown = [each for each in events if each["name"].startswith("iteration")]
    assert [each["dur"] for each in shown] == pytest.approx([40_000] * 4)


def test_traces_that_cannot_be_compared_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="the run has 2 ranks, the prediction 4"):
        write_beside(example_trace(2), example_trace(4), tmp_path / "both.json.gz")
    with pytest.raises(TraceError, match="holds no iteration"):
        write_beside(Trace(2, "gloo", [], []), example_trace(2), tmp_path / "both.json.gz")
    assert list(tmp_path.iterdir()) == []
