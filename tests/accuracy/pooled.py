"""Constants for machines nobody has measured: the documented ones, fitted to many sites' tables at once.

A table that stays more than twice as far off as the median table is set aside: something about its machine is not
known, and the constants of all others should not make up for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ddpsim.calibrating.fitting import Fit, Prior, Vector, fit
from ddpsim.calibrating.samples import Sample
from ddpsim.collectives.calibration import Calibration
from ddpsim.collectives.nccl.loads import GROUPS
from tests.accuracy.documented import documented

_FAR = 2.0


@dataclass(frozen=True)
class Pool:
    """Constants fitted to some tables.

    Attributes:
        values: by name.
        aside: the tables that were set aside.
    """

    values: Mapping[str, float]
    aside: tuple[str, ...]

    def calibration(self) -> Calibration:
        """Return the documented constants with these in their places."""
        return documented().with_values(self.values, source="pooled fit")


def pooled(samples: Sequence[Sample], near: Mapping[str, float] | None = None) -> Pool:
    """Return the constants that explain most of the tables, all thinned alike.

    Args:
        near: values to start the search from.
    """
    found = _fitted(samples, near)
    distances = [float(np.abs(part).mean()) for part in _parts(samples, found.residuals)]
    limit = _FAR * float(np.median(distances))
    kept = [sample for sample, distance in zip(samples, distances, strict=True) if distance <= limit]
    aside = tuple(s.table.name for s, distance in zip(samples, distances, strict=True) if distance > limit)
    return Pool(_fitted(kept, found.values).values if aside else found.values, aside)


def _fitted(samples: Sequence[Sample], near: Mapping[str, float] | None) -> Fit:
    start = documented()
    priors = {name: Prior(c.value, c.log_std) for name, c in start.constants.items() if c.log_std is not None}
    memories = [_Memory(sample, tuple(priors)) for sample in samples]

    def predict(values: Mapping[str, float]) -> Vector:
        calibration = start.with_values(values, source="trial")
        return np.concatenate([memory.predicted(calibration) for memory in memories])

    return fit(predict, priors, np.concatenate([sample.undisturbed for sample in samples]), near)


def _parts(samples: Sequence[Sample], rows: Vector) -> Iterator[Vector]:
    ends = np.cumsum([len(sample.sizes) for sample in samples])
    yield from np.split(rows, ends[:-1])


class _Memory:
    """A sample's times by the constants that it can depend on: a Jacobian asks for most of them many times."""

    def __init__(self, sample: Sample, names: Sequence[str]) -> None:
        self._sample = sample
        self._names = [name for name in names if concerns(sample, name)]
        self._known: dict[tuple[float, ...], Vector] = {}

    def predicted(self, calibration: Calibration) -> Vector:
        key = tuple(calibration[name] for name in self._names)
        if key not in self._known:
            if len(self._known) > 2 * len(self._names):
                self._known.clear()
            self._known[key] = self._sample.predicted(calibration)
        return self._known[key]


def concerns(sample: Sample, name: str) -> bool:
    """Whether the sample's times can depend on the constant."""
    layout = sample.layout()
    present = {*layout.ring.rates, *layout.tree.rates, layout.hop if layout.shape.nvlink else "pcie"}
    if layout.nodes > 1:
        present.add("net")
    if layout.shape.nvls is not None:
        present.update(layout.nvls.rates)
    parts = name.split(".")
    if "share" in parts:
        return parts[-1] == layout.nic_share
    if "hopper" in parts:
        return layout.shape.sm >= 90
    if "nvls" in parts:
        return layout.shape.nvls is not None
    return ("node" not in parts or layout.nodes == 1) and all(
        part not in GROUPS or part in present or part == layout.hop for part in parts
    )
