"""Step times of two implementations by turns, kept in one file, and what they say: ratios with 95 % intervals."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ddpsim.common.files import write_whole

ARMS = ("ddpexec", "torch", "none")
RESAMPLES = 2000
Blocks = list[list[float]]
"""Of each block the summed seconds of each arm, in the order of `ARMS`."""


@dataclass
class Measured:
    """What is known of one case: `launches` are its runs in processes of their own."""

    parameters: int
    buckets: int
    launches: list[Blocks] = field(default_factory=list)

    def seconds(self, arm: str) -> float:
        """Return the median step of an arm; a block sums two."""
        place = ARMS.index(arm)
        return statistics.median(block[place] for blocks in self.launches for block in blocks) / 2

    def logarithms(self) -> list[NDArray[np.float64]]:
        """Return for each launch the logarithm of each block's ratio of ours to torch's."""
        return [np.log([ours / theirs for ours, theirs, _ in blocks]) for blocks in self.launches]


@dataclass(frozen=True)
class Ratio:
    """A ratio and its 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.4f} [{self.low:.4f}, {self.high:.4f}]"


def ratio(measured: Sequence[Measured], seed: int = 0) -> Ratio:
    """Return the geometric mean over cases of ours to torch's, a case's ratio being the median over its blocks.

    The interval is a percentile bootstrap: in each case launches are drawn, and of each drawn one its blocks, since
    the blocks of one launch share where its tensors lie in memory.
    """
    generator = np.random.default_rng(seed)
    cases = [case.logarithms() for case in measured]
    drawn = np.mean([_resampled(launches, generator) for launches in cases], axis=0)
    value = statistics.fmean(float(np.median(np.concatenate(launches))) for launches in cases)
    low, high = np.quantile(drawn, [0.025, 0.975])
    return Ratio(math.exp(value), math.exp(low), math.exp(high))


def _resampled(launches: Sequence[NDArray[np.float64]], generator: np.random.Generator) -> NDArray[np.float64]:
    """Return the median of each of `RESAMPLES` drawings of launches and blocks."""
    medians = np.empty(RESAMPLES)
    for i in range(RESAMPLES):
        picked = [launches[k] for k in generator.integers(len(launches), size=len(launches))]
        medians[i] = np.median(np.concatenate([generator.choice(blocks, size=len(blocks)) for blocks in picked]))
    return medians


class Results:
    """Measured cases by name, kept in a file that is replaced whole after each launch.

    Args:
        path: of the file; None keeps nothing. What it holds already is taken up.
        conditions: what makes measurements comparable; a file made under others is refused.
    """

    def __init__(self, path: Path | None, conditions: dict[str, str]) -> None:
        self._path, self._conditions = path, conditions
        self.cases: dict[str, Measured] = {}
        if path is not None and path.exists():
            document = json.loads(path.read_text())
            if document["conditions"] != conditions:
                raise SystemExit(
                    f"{path}: measured under {document['conditions']}, not {conditions}; give another file"
                )
            self.cases = {name: Measured(**case) for name, case in document["cases"].items()}

    def add(self, name: str, parameters: int, buckets: int, blocks: Blocks) -> None:
        """Take one launch's blocks and write the file anew."""
        self.cases.setdefault(name, Measured(parameters, buckets)).launches.append(blocks)
        if self._path is not None:
            document = {"conditions": self._conditions, "cases": {name: asdict(c) for name, c in self.cases.items()}}
            write_whole(self._path, json.dumps(document) + "\n")

    def launches(self, name: str) -> int:
        """Return how often a case has been run."""
        return len(self.cases[name].launches) if name in self.cases else 0


HEADER = (
    f"{'case':24} {'ours / torch [95 %]':25} {'ours':>8} {'torch':>8} {'none':>8} ms   "
    "us over none, ours and torch's: a parameter, a bucket (how many)"
)


def line(name: str, case: Measured) -> str:
    """Return one line for a case: times of a step, and what each implementation adds to the model alone."""
    ours, theirs, alone = (case.seconds(arm) for arm in ARMS)
    times = " ".join(f"{seconds * 1e3:8.2f}" for seconds in (ours, theirs, alone))
    over = [(seconds - alone) * 1e6 for seconds in (ours, theirs)]
    each = f"{over[0] / case.parameters:8.2f} {over[1] / case.parameters:8.2f}"
    bucket = f"{over[0] / case.buckets:10.1f} {over[1] / case.buckets:10.1f}"
    return f"{name:24} {ratio([case])!s:25} {times}   {each}  {bucket}  ({case.parameters}, {case.buckets})"


def summary(cases: dict[str, Measured]) -> Iterator[str]:
    """Yield the lines below the table; buckets of one gradient each stand apart."""
    judged = {name: case for name, case in cases.items() if not name.endswith("-each")}
    if judged:
        alone = {name: ratio([case]) for name, case in judged.items()}
        above = [name for name, found in alone.items() if found.low > 1.03]
        yield f"geometric mean of {len(judged)} cases {ratio(list(judged.values()))}"
        yield f"wholly above 1.03: {', '.join(above) or 'none'}"
    for name, many in cases.items():
        few = cases.get(name.replace("-each", "-default"))
        if name.endswith("-each") and few is not None:
            ours, theirs = (
                (many.seconds(arm) - few.seconds(arm)) / (many.buckets - few.buckets) * 1e6 for arm in ARMS[:2]
            )
            yield f"{name}: {ours:.2f} us for each bucket more, torch's {theirs:.2f}"
