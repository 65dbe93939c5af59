from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from studies.benchmarks.ratios import Measured, Results, line, ratio, summary

CONDITIONS = {"torch": "2", "allocator": "held"}


def made(value: float, launches: int = 4, blocks: int = 10, spread: float = 0.02, seed: int = 0) -> Measured:
    """Return a case whose blocks' ratios lie around `value`, launches apart by half of their spread."""
    draw = np.random.default_rng(seed)
    case = Measured(parameters=100, buckets=5)
    for shift in draw.normal(0, spread / 2, launches):
        ratios = value * np.exp(shift + draw.normal(0, spread, blocks))
        case.launches.append([[0.2 * one, 0.2, 0.15] for one in ratios])
    return case


def test_intervals_hold_the_truth_about_as_often_as_they_say() -> None:
    held = [found.low <= 1.02 <= found.high for found in (ratio([made(1.02, seed=s)], seed=s) for s in range(30))]
    assert 0.8 <= np.mean(held) <= 1.0


def test_the_geometric_mean_of_cases_and_its_narrower_interval() -> None:
    cases = [made(1.1, seed=1), made(1 / 1.1, seed=2), made(1.0, seed=3), made(1.0, seed=4)]
    together = ratio(cases)
    assert together.value == pytest.approx(math.prod(ratio([case]).value for case in cases) ** 0.25)
    widths = [math.log(found.high / found.low) for found in (ratio([case]) for case in cases)]
    assert math.log(together.high / together.low) < min(widths)
    assert together.low < 1 < together.high


def test_a_burst_in_a_few_blocks_moves_nothing() -> None:
    case = made(1.0, spread=0.005)
    for blocks in case.launches:
        blocks[0][0] *= 3
    assert ratio([case]).value == pytest.approx(1.0, abs=0.01)


def test_a_file_is_taken_up_again_and_never_left_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "found.json"
    first = Results(path, CONDITIONS)
    first.add("mlp-1-copy-default", 16, 4, [[0.2, 0.2, 0.1]])
    again = Results(path, CONDITIONS)
    assert again.launches("mlp-1-copy-default") == 1
    assert again.launches("mlp-2-copy-default") == 0
    before = path.read_text()
    monkeypatch.setattr(json, "dumps", lambda document: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        again.add("mlp-1-copy-default", 16, 4, [[0.2, 0.2, 0.1]])
    assert path.read_text() == before
    with pytest.raises(SystemExit, match="another file"):
        Results(path, CONDITIONS | {"allocator": "default"})


def test_what_is_printed_of_cases() -> None:
    few, many = Measured(100, 1, [[[0.22, 0.21, 0.2]] * 3]), Measured(100, 101, [[[0.24, 0.22, 0.2]] * 3])
    text = line("small-1-copy-default", few)
    assert "1.0476 [1.0476, 1.0476]" in text
    assert "100.00    50.00     10000.0     5000.0  (100, 1)" in text
    lines = list(summary({"small-1-copy-default": few, "small-1-copy-each": many}))
    assert lines[0].startswith("geometric mean of 1 cases 1.0476")
    assert lines[1] == "wholly above 1.03: small-1-copy-default"
    assert lines[2] == "small-1-copy-each: 100.00 us for each bucket more, torch's 50.00"
