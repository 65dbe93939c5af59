"""The command that says how large and how slow a step's graph is counts what is there."""

from pathlib import Path

import pytest

from studies.benchmarks.reach import becomes, files_of_schemes, lines, seconds_of
from studies.size import simulation


def test_a_bucket_becomes_a_planned_message_a_collective_and_its_times() -> None:
    assert {"Bucket", "PlannedMessage", "MessageNodes", "Collective", "BucketTimes", "BucketSummary"} <= set(becomes())


def test_each_scheme_is_named_somewhere() -> None:
    assert min(files_of_schemes().values()) >= 1


def test_a_process_takes_some_time_of_the_processor(tmp_path: Path) -> None:
    cpu_s, wall_s = seconds_of(("-c", "sum(range(10**6))"), str(tmp_path), times=1)
    assert 0 < cpu_s < 10
    assert wall_s > 0


def test_a_process_that_is_timed_finds_its_modules_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lately_written.py").write_text("")
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    seconds_of(("-c", "import lately_written"), str(tmp_path / "compiled"), times=1)
    assert list((tmp_path / "compiled").rglob("lately_written.*.pyc"))


def test_the_first_measures_are_the_sizes() -> None:
    told = lines(every=1)
    assert [next(told)[1] for _ in range(3)] == list(simulation().values())
