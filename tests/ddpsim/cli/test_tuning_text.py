"""`ddpsim explain` of a tuner's folder: what was kept, what it cost, and every plan with what it measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ddpsim.cli.app import run
from ddpsim.explaining.tuned import Tried, Tuning, TuningRound, write_tuning

KEPT = 'ScheduledDataParallel(model, "dear", make_optimizer, caps=BucketCaps(bucket_cap_mb=5), learn=3)'
BEFORE = 'ScheduledDataParallel(model, "ddp", make_optimizer, learn=3)'


def test_a_folder_is_told_round_by_round(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plans = [
        Tried(
            call=KEPT, buckets=8, predicted_step_s=0.08, predicted_gain=0.2, predicted_gain_low=0.1,
            predicted_gain_high=0.3, measured_step_s=0.085, measured_steps=12, saved_s=0.015, saved_low_s=0.012,
        ),
        Tried(call=BEFORE, buckets=4, predicted_step_s=0.1, predicted_gain=0.0),
    ]  # fmt: skip
    only = TuningRound(
        first_step=0, steps=64, present=BEFORE, kept=KEPT, reason="measured 15.0% faster over 12 steps, at 95 %",
        present_step_s=0.1, kept_step_s=0.085, latency_s=1e-4, bandwidth=1e9, probed=0, lost_s=0.128, own_s=0.02,
        plans=plans,
    )  # fmt: skip
    write_tuning(Tuning(rounds=[only]), tmp_path)
    assert run(["explain", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    for words in (
        "round 1, from step 0: measured 15.0% faster over 12 steps",
        f"kept     {KEPT}, 85",
        f"before   {BEFORE}, 100",
        "64 steps, 128",
        "2.0 % of their time",
        "+20.0 %",
    ):
        assert words in said, said
    assert run(["explain", str(tmp_path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["rounds"][0]["plans"][0]["call"] == KEPT
