"""The scaling efficiency with its band: what makes one rank alone slower too does not lower it."""

from __future__ import annotations

from dataclasses import replace

from ddpsim.doubts import join
from ddpsim.doubts.doubt import Assumptions
from ddpsim.planning.band import Band
from ddpsim.prediction.predict import local_period_s
from ddpsim.prediction.prediction import Prediction


def efficiency_of(prediction: Prediction) -> Band:
    """Return share of one rank's speed without DDP that each rank keeps, every doubt drawn for both."""
    middle = prediction.scaling_efficiency
    effects = []
    for doubt, ends in prediction.ends:
        alone = (_local_s(prediction, assumptions) for assumptions in (doubt.low, doubt.high))
        shares = [local_s / step_s for local_s, step_s in zip(alone, ends, strict=True)]
        effects.append(join.effect(doubt, middle, shares))
    low, high = join.band(middle, effects)
    return middle, max(low, 0.0), min(high, max(1.0, middle))


def _local_s(prediction: Prediction, assumptions: Assumptions | None) -> float:
    if assumptions is None or (assumptions.compute == assumptions.host == 1.0):
        return prediction.local_s
    options = prediction.options
    scaled = replace(
        options,
        scale_compute=options.scale_compute * assumptions.compute,
        scale_host=options.scale_host * assumptions.host,
    )
    return local_period_s(prediction.workload, scaled)
