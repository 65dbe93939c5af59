"""Constants for machines nobody has measured are the documented ones, fitted to many sites' tables at once.

A table that stays more than twice as far off as the median table is set aside: something about its machine is not
known, and the constants of all others should not make up for it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ddpsim.calibrating.fitting import Fit, Prior, Vector, fit
from ddpsim.calibrating.samples import Sample
from ddpsim.collectives.calibration import Calibration
from ddpsim.collectives.nccl.costs import efficient_as
from ddpsim.collectives.nccl.loads import GROUPS
from ddpsim.collectives.nccl.transport import NcclTransport
from ddpsim.collectives.nccl.versions import PROTOCOLS, RING, TREE
from ddpsim.common.units import MIB, format_count
from studies.accuracy.documented import make_documented_calibration

_FAR = 2.0
"""A table's mean log error over the median table's from which it is set aside; chosen by hand.

`python -m studies.accuracy --constants` names the tables that are set aside.
"""

BEND = 0.7
"""Scales beyond which a row counts linearly, less than for one machine: sites differ by more than rows scatter.

Chosen by hand on the tables kept here, in eight folds of sites: their median error is 15.2 %, and with 1.345 16.0 %.
"""

_ROWS = 12
"""Rows of a table that a pooled fit takes, so that a site with long tables does not outweigh the others."""


@dataclass(frozen=True)
class Pool:
    """What many sites' tables agree on.

    Attributes:
        values: the fitted constants, by name.
        aside: the names of the tables that were set aside.
        unused: the constants that no row depends on, which stay as documented.
        residuals: log(measured / fitted) of each row of the tables that were kept.
    """

    values: Mapping[str, float]
    aside: tuple[str, ...]
    unused: tuple[str, ...]
    residuals: Vector

    def calibration(self) -> Calibration:
        """Return the documented constants with these in their places."""
        return make_documented_calibration().with_values(self.values, source="pooled fit")


def fit_pooled(
    samples: Sequence[Sample],
    near: Mapping[str, float] | None = None,
    progress: Callable[[str], None] = lambda message: None,
) -> Pool:
    """Return the constants that explain most of the tables, all thinned alike.

    Args:
        near: values to start the search from.
        progress: is told what is about to be fitted.
    """
    rows = format_count(sum(len(each.sizes) for each in samples), "row")
    progress(f"fitting {rows} of {format_count(len(samples), 'table')}")
    found = _fit_samples(samples, near)
    distances = [float(np.abs(part).mean()) for part in _parts(samples, found.residuals)]
    limit = _FAR * float(np.median(distances))
    kept = [sample for sample, distance in zip(samples, distances, strict=True) if distance <= limit]
    aside = tuple(s.table.name for s, distance in zip(samples, distances, strict=True) if distance > limit)
    if aside:
        progress(f"fitting again without {', '.join(aside)}")
        found = _fit_samples(kept, found.values)
    return Pool(found.values, aside, found.unused, found.residuals)


def thin_rows(sample: Sample) -> Sample:
    """Return at most twelve rows: those of 1 MiB and more and every third below, evenly.

    Of 31 rows, 8 B to 8 GiB by factors of 2, 20 are such (14 from 1 MiB, every third of the 17 below), and 12 of
    those stay. Of a table of more than 100 rows it is the rows 0, 1, 3, 7, 15, ...
    """
    rows = [row for row, size in enumerate(sample.sizes) if size >= MIB or row % 3 == 0]
    if len(sample.sizes) > 100:
        rows = [2**k - 1 for k in range(len(sample.sizes).bit_length()) if 2**k <= len(sample.sizes)]
    if len(rows) > _ROWS:
        rows = [rows[round(n * (len(rows) - 1) / (_ROWS - 1))] for n in range(_ROWS)]
    return sample.select_rows(rows)


def _fit_samples(samples: Sequence[Sample], near: Mapping[str, float] | None) -> Fit:
    start = make_documented_calibration()
    priors = {name: Prior(c.value, c.log_std) for name, c in start.constants.items() if c.log_std is not None}
    memories = [CachedTimes(sample, tuple(priors), start) for sample in samples]

    def predict(values: Mapping[str, float]) -> Vector:
        calibration = start.with_values(values, source="trial")
        return np.concatenate([memory.predict(calibration) for memory in memories])

    return fit(predict, priors, np.concatenate([sample.undisturbed for sample in samples]), near, BEND)


def _parts(samples: Sequence[Sample], rows: Vector) -> Iterator[Vector]:
    ends = np.cumsum([len(sample.sizes) for sample in samples])
    yield from np.split(rows, ends[:-1])


class CachedTimes:
    """A sample's times, each row's by the constants that it can depend on: a Jacobian asks for most of them many times.

    Constants of NCCL's choice are not fitted here, so that a row's entries stay the same.
    """

    def __init__(self, sample: Sample, names: Sequence[str], start: Calibration) -> None:
        transport = sample.transport(start)
        assert isinstance(transport, NcclTransport)
        entries = [frozenset((e.algorithm, e.protocol) for e in transport.entries(size)) for size in sample.sizes]
        self._size = len(entries)
        self._parts = [
            _Part(sample, [row for row, each in enumerate(entries) if each == found], found, names)
            for found in dict.fromkeys(entries)
        ]

    def predict(self, calibration: Calibration) -> Vector:
        """Return the time of each row in seconds, as the sample does."""
        times = np.empty(self._size)
        for part in self._parts:
            times[part.rows] = part.predict(calibration)
        return times


class _Part:
    """Rows of a sample that NCCL may carry out by the same entries."""

    def __init__(self, sample: Sample, rows: list[int], entries: frozenset[tuple[str, str]], names: Sequence[str]):
        self.rows, self._sample = rows, sample.select_rows(rows)
        self._names = [name for name in names if depends_on(sample, name) and _loads(entries, name)]
        self._known: dict[tuple[float, ...], Vector] = {}

    def predict(self, calibration: Calibration) -> Vector:
        key = tuple(calibration[name] for name in self._names)
        if key not in self._known:
            if len(self._known) > 2 * len(self._names):
                self._known.clear()
            self._known[key] = self._sample.predict(calibration)
        return self._known[key]


def _loads(entries: Collection[tuple[str, str]], name: str) -> bool:
    """Whether a constant is of one of `entries`: of its protocol, of a ring's hops or of a tree's."""
    parts = name.removesuffix("_s").split(".")
    protocol = parts[-1] if parts[-1] in PROTOCOLS else None
    pattern = parts[1] if parts[1] in (RING, TREE) else None
    return any(
        protocol in (None, of) and (pattern is None or (pattern == RING) == (algorithm == RING))
        for algorithm, of in entries
    )


def depends_on(sample: Sample, name: str) -> bool:
    """Whether the sample's times can depend on the constant."""
    layout = sample.layout()
    present = {*layout.ring.rates, *layout.tree.rates, layout.hop if layout.shape.nvlink else "pcie"}
    if layout.nodes > 1:
        present.add("net")
    if layout.shape.nvls is not None:
        present.update(layout.nvls.rates)
    parts = name.split(".")
    if parts[1] == "efficiency":
        present = {efficient_as(group, layout.shape.sm) for group in present}
    if name == "nccl.nic.lone":
        return layout.nodes > 1 and layout.per_node == 1
    if "socket" in parts:
        return layout.nodes > 1 and layout.socket_threads > 0
    if "share" in parts:
        return parts[-1] == layout.nic_share
    if "hopper" in parts:
        return layout.shape.sm >= 90 and (layout.nodes == 1 or "hop" not in parts)
    if parts[1] == "pull":
        return layout.shape.sm == 80 and layout.nodes == 1 and layout.shape.nvlink
    if parts[1] == "ll_max_share":
        return (layout.nodes == 1) is (parts[2] != "net")
    if "nvls" in parts:
        return layout.shape.nvls is not None
    return ("node" not in parts or layout.nodes == 1) and all(
        part not in GROUPS or part in present or part == layout.hop for part in parts
    )
