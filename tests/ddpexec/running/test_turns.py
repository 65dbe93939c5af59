"""Runs that take turns with one process."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("torch")

from ddpexec.running.run import Run
from ddpexec.running.settings import DISCARDED, RunSettings
from ddpexec.running.turns import STEPS, train_in_turns
from ddpsim.bucketing import BucketCaps
from tests.ddpexec.groups import ranks
from tests.ddpexec.running.runs import CPU
from tests.ddpexec.small import small_workload

SETTINGS = RunSettings(implementation="torch", iterations=12, caps=BucketCaps(bucket_cap_mb=0.02))


def take_turns(rank: int) -> list[Any]:
    whole = replace(SETTINGS, caps=BucketCaps(bucket_cap_mb=100), accumulate=2, iterations=24)
    runs = [Run(each, CPU, workload=small_workload()) for each in (SETTINGS, whole)]
    blocks: list[str] = []
    for name, run in zip("BC", runs, strict=True):
        run.train_block = _noted(run.train_block, blocks, name)  # type: ignore[method-assign]
    turns = train_in_turns(runs, lambda done, total, seconds: None)
    traces = [run.trace() for run in runs]
    return [blocks, turns, traces, [len(run.first()["iterations_s"]) for run in runs]]


def _noted(train_block: Any, blocks: list[str], name: str) -> Any:
    def noted(steps: int, *, local: bool = False) -> float:
        blocks.append("A" if local else name)
        seconds: float = train_block(steps, local=local)
        return seconds

    return noted


def test_each_round_goes_there_and_back_and_the_trace_holds_the_steps_that_count() -> None:
    mine, other = ranks.run(2, take_turns)
    blocks, turns, (plain, accumulated), first = mine
    assert blocks == ["A", *["A", "B", "C", "C", "B", "A"] * 2]
    assert turns == other[1]
    assert [len(each) for each in turns] == [2, 2]
    assert first == [DISCARDED, DISCARDED]
    assert [len(plain.iterations), len(accumulated.iterations)] == [4 * STEPS, 2 * 4 * STEPS]
    assert [it.synced for it in plain.iterations] == [True] * 4 * STEPS
    assert [it.synced for it in accumulated.iterations] == [False, True] * 4 * STEPS
    # Timed layers take their time alone too: a step with communication is never quicker.
    assert all(turn.step_s >= turn.local_s > 0.008 for turn in turns[0])
