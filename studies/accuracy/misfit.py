"""How far rows of good tables lie from the constants fitted to them: `python -m studies.accuracy.misfit`.

The bound beyond which `ddpsim calibrate` refuses a fit, `ddpsim.calibrating.misfit`, is set above all of them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from ddpsim.calibrating.calibrate import fit_samples, with_versions
from ddpsim.calibrating.fitting import Vector
from ddpsim.calibrating.measured import read_table
from ddpsim.calibrating.samples import Sample
from ddpsim.collectives.calibration import Calibration
from ddpsim.topology.spec import load_topology
from studies.accuracy.systems import CITED, SYSTEMS, load
from studies.command import parser

_ROOT = Path(__file__).resolve().parents[2]
_RECORDED = (
    "traces/*/networks/*",
    "tests/ddpexec/lab/campaign/recorded/networks/*",
    "tests/ddpsim/collectives/recorded/*",
)


def tables() -> Iterator[tuple[str, str, list[Sample]]]:
    """Yield name, backend and samples of what is calibrated at once: a table, all of a site, a recorded network."""
    sites: dict[str, list[Sample]] = {}
    for system in (*SYSTEMS, *CITED):
        sample = load(system, smallest=0)
        sites.setdefault(f"{system.site}, all of {system.machine}", []).append(sample)
        yield system.name, "nccl", [sample]
    yield from ((name, "nccl", samples) for name, samples in sites.items() if len(samples) > 1)
    for folder in (folder for pattern in _RECORDED for folder in sorted(_ROOT.glob(pattern))):
        topology = load_topology(str(folder / "topology.yaml"))
        yield folder.name, "gloo", [Sample.of(read_table(folder / "allreduce.json"), topology)]


def log_residuals(backend: str, samples: Sequence[Sample]) -> Vector:
    """Return log(measured / fitted) of each row."""
    start = Calibration.priors(backend)
    return fit_samples(with_versions(samples, start), start)[0].residuals


def main() -> int:
    """Print a line a calibration, the worst last."""
    print("rows     mean  worst row  of")
    for name, backend, samples in tables():
        residuals = log_residuals(backend, samples)
        mean, worst = (float(np.exp(value)) for value in (np.abs(residuals).mean(), np.abs(residuals).max()))
        print(f"{len(residuals):4}  x/÷ {mean:.2f}  x/÷ {worst:5.2f}  {name} ({backend})", flush=True)
    return 0


if __name__ == "__main__":
    parser(__doc__).parse_args()
    sys.exit(main())
