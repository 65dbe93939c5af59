"""What the constants chosen by hand are worth: `python -m studies.accuracy.by_hand`.

Each stands at half its value, at its own and at double of it, once, while all others stay; the tables are those kept
here, the other constants the shipped priors. Of a constant of the model the figure is the mean of |predicted /
measured - 1| over all rows, and over those of 1 MiB and more. Of a constant of the doubt between measured rows it is
the width (upper over lower edge, geometric mean) of bands of as many doubts as hold 80 % of the rows left out, where
every fourth row of a table corrects the model: of two bands that hold as much, the narrower is better.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import ModuleType

import numpy as np

from ddpsim.calibrating.samples import Sample
from ddpsim.collectives import curve
from ddpsim.collectives.calibration import Calibration
from ddpsim.collectives.curve import CurveTransport
from ddpsim.collectives.nccl import costs, transport
from ddpsim.common.units import MIB
from studies.accuracy.systems import CITED, load
from studies.command import parser

MODEL = ((transport, "_SHARPNESS"), (transport, "_LEAST_WEIGHT"), (costs, "CORNER"))
DOUBTS = ((curve, "_REPEATS"), (curve, "_APART"), (curve, "_BEYOND"))
FACTORS = (0.5, 1.0, 2.0)
_SHIPPED = Calibration.priors("nccl")


@contextmanager
def held(module: ModuleType, name: str, factor: float) -> Iterator[None]:
    """Hold a constant of `module` at `factor` times its value, and put it back."""
    value = getattr(module, name)
    setattr(module, name, factor * value)
    try:
        yield
    finally:
        setattr(module, name, value)


def errors(samples: list[Sample]) -> str:
    """Return the mean error of the shipped priors over all rows, and over those of 1 MiB and more."""
    off = np.concatenate([np.abs(each.predict(_SHIPPED) / each.measured - 1) for each in samples])
    large = np.concatenate([np.array(each.sizes) >= MIB for each in samples])
    return f"{off.mean():6.1%} {off[large].mean():6.1%}"


def width(samples: list[Sample]) -> str:
    """Return the width of bands of as many doubts as hold 80 % of the rows left out."""
    residuals: list[float] = []
    doubts: list[float] = []
    for each in samples:
        known, asked = (
            each.select_rows([n for n in range(len(each.sizes)) if (n % 4 == 0) is kept]) for kept in (True, False)
        )
        corrected = asked.transport(replace(_SHIPPED, curves=(known.curve(),)))
        assert isinstance(corrected, CurveTransport)
        residuals += np.log(
            [t / corrected.allreduce_s(s) for s, t in zip(asked.sizes, asked.measured, strict=True)]
        ).tolist()
        for size in asked.sizes:
            doubt = corrected.doubt(size)
            assert doubt is not None
            doubts.append(doubt)
    low, high = np.percentile(np.array(residuals) / np.array(doubts), [10, 90])
    return f"x/÷ {np.exp((high - low) * np.mean(doubts) / 2):.3f}"


def main() -> int:
    """Print a line a constant: its name and value, then the figure at half, at one and at double."""
    samples = [load(system) for system in CITED]
    judged: list[tuple[tuple[tuple[ModuleType, str], ...], Callable[[list[Sample]], str]]] = [
        (MODEL, errors),
        (DOUBTS, width),
    ]
    for constants, figure in judged:
        for module, name in constants:
            found = []
            for factor in FACTORS:
                with held(module, name, factor):
                    found.append(figure(samples))
            print(f"{module.__name__}.{name} = {getattr(module, name)}:  {'   '.join(found)}", flush=True)
    return 0


if __name__ == "__main__":
    parser(__doc__).parse_args()
    sys.exit(main())
