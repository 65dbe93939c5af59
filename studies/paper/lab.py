"""What the lab measured of the paper's figures: real DDP over gloo at 2 to 8 ranks, from the kept campaign.

`lab.json` beside this file is made from the runs kept in `traces/paper` by `python -m studies.paper.lab_runs`; a test
holds it to them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from statistics import median

FILE = Path(__file__).with_name("lab.json")


@dataclass(frozen=True, slots=True)
class Run:
    """A run is one configuration of the campaign.

    Attributes:
        network: its name.
        ranks: how many.
        wire: bytes on the wire over backward.
        impl: `torch`'s DDP or `ddpexec`'s.
        cap_mb: `bucket_cap_mb`; None is torch's default.
        overlap: whether buckets leave while backward goes on.
        groups: round-robin process groups.
        sync_every: iterations between two synchronisations.
        measured_s: median iteration; mean of a cycle where synchronisations are skipped.
        predicted_s: what was predicted before.
        low_s, high_s: 10th and 90th percentile of the measured iterations.
    """

    network: str
    ranks: int
    wire: float
    impl: str
    cap_mb: float | None
    overlap: bool
    groups: int
    sync_every: int
    measured_s: float
    predicted_s: float
    low_s: float
    high_s: float


_DEFAULTS = {"impl": "torch", "cap_mb": None, "overlap": True, "groups": 1, "sync_every": 1}


@lru_cache(maxsize=1)
def runs() -> tuple[Run, ...]:
    """Return the kept runs; none where there are none."""
    if not FILE.is_file():
        return ()
    return tuple(Run(**each) for each in json.loads(FILE.read_text())["runs"])


def run(network: str, wire: float, **options: object) -> Run | None:
    """Return the run of this configuration, of torch's DDP with defaults but `options`; None where there is none."""
    asked = {"network": network, "wire": wire} | _DEFAULTS | options
    return next((each for each in runs() if all(getattr(each, name) == value for name, value in asked.items())), None)


def best_cap(network: str, wire: float) -> str | None:
    """Return at which `bucket_cap_mb` a network's steps are shortest, measured and predicted; None of fewer."""
    found = [each for each in runs() if (each.network, each.wire, each.impl) == (network, wire, "torch")]
    found = [each for each in found if each.cap_mb is not None and each.sync_every == 1]
    if len(found) < 2:
        return None
    measured = min(found, key=lambda each: each.measured_s)
    predicted = min(found, key=lambda each: each.predicted_s)
    return f"{measured.ranks} ranks: {measured.cap_mb:g} MB (predicted {predicted.cap_mb:g})"


def falls(what: str, one: Run | None, other: Run | None) -> str | None:
    """Return by which part `other` is shorter than `one`, measured and predicted; None without either."""
    if one is None or other is None:
        return None
    measured, predicted = 1 - other.measured_s / one.measured_s, 1 - other.predicted_s / one.predicted_s
    return f"{what} {measured:.1%} (predicted {predicted:.1%})"


def joined(*parts: str | None) -> str | None:
    """Return the parts that there are in one text; None without any."""
    return "; ".join(part for part in parts if part) or None


def errors() -> str:
    """Return in a sentence by how much the steps were predicted wrongly; where there are no runs, that."""
    found = sorted(runs(), key=lambda each: abs(each.predicted_s / each.measured_s - 1))
    if not found:
        return "Nothing was run."
    off = [abs(each.predicted_s / each.measured_s - 1) for each in found]
    worst = found[-1]
    cap = "default" if worst.cap_mb is None else f"{worst.cap_mb:g} MB"
    return (
        f"Of {len(found)} configurations the step was predicted within {median(off):.1%} in the median, and at worst "
        f"within {off[-1]:.1%}, of {worst.ranks} ranks at a cap of {cap}."
    )
