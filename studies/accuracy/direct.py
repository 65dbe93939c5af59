"""Allreduces inside a node over NVLink, each table beside what is predicted, by NCCL's version and cards in use.

`python -m studies.accuracy.direct [--constants]` prints mean signed errors of times by size: up to 64 KiB (latency), up
to 1 MiB (changes of protocol), up to 16 MiB, up to 256 MiB, and beyond. A site's own tables have no part in its
constants; those of `FOUND_LAST` had none in any. With `--constants` it prints what rings and in-switch reductions
inside a node are by, fitted to `INSIDE` alone while all other constants are the shipped ones.

Sites sorted by name, the first, third, ... are those that structure was chosen on, all others judge. Of the tables in
`systems.py` the errors had been seen before the halves were made; of `FOUND_LAST` none had been predicted.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import mean, median

import numpy as np

from ddpsim.calibrating.fitting import Prior, Vector, fit
from ddpsim.collectives.calibration import Calibration
from ddpsim.common.units import MIB
from studies.accuracy.documented import make_documented_calibration
from studies.accuracy.pooled import BEND, CachedTimes, thin_rows
from studies.accuracy.residuals import constants, systems
from studies.accuracy.systems import System, load
from studies.command import parser

FOUND_LAST = (
    System("digitalocean_2of8_h100.csv", "dgx-h100", 1, "digitalocean"),
    System("hantian_2of8_a100_nccl2.20.5.csv", "dgx-a100", 1, "hantian"),
    System("hantian_4of8_a100_nccl2.20.5.csv", "dgx-a100", 1, "hantian"),
    System("lambda_4of8_h100_nccl2.26.2.csv", "dgx-h100", 1, "dudeperf3ct"),
    System("pangu_4of8_b300_nccl2.29.7.csv", "dgx-b300", 1, "b300-pangu"),
    System("sdumont_4xv100_nccl2.29.3.csv", "abci-v", 1, "sdumont"),
)
"""Tables of two and four cards, most of boards of eight, that no constant is fitted to."""

INSIDE = (
    *("abci_A_a100_8gpu", "abci_V_v100_4gpu", "aws_p5_1node_8xH100", "azure_nd_A100_v4_1node_8gpu"),
    *("sheffield_stanage_4xA100sxm", "superbench_8xA100_nvswitch", "gcp_a3high_1node_8xH100_nccl2.22.3"),
    *("together_1node_8xH100_nvls", "h100_4of8_nvswitch", "modal_1node_8xA100_sxm40", "h20_1node_8gpu"),
    *("a100_80gb_1node_8gpu_thanos_g8", "a100_80gb_1node_8gpu_thanos_mpi", "voltagepark_1node_8xH100"),
    *("azure_nc48ads_a100_v4_2gpu_topo_only", "gcp_a4_1node_8xB200", "oci_1node_8xA100_40gb_horovod_container"),
    "polaris_1node_4xA100",
)
"""The tables of `systems.py` that are of NVLink inside a node."""

UNSURE = "polaris_1node_4xA100"
"""A table whose times fit NCCL_PROTO=Simple, which its page states of another job: no part of `--constants`."""

FREE = (*("pull.hop", "hopper.hop.ll128", "ll_max_share.newer", "nvls.start_s", "nvls.efficiency", "nvls.round_bytes"),)
"""The constants that `--constants` fits."""

EDGES = (0, 64 << 10, MIB, 16 * MIB, 256 * MIB, 1 << 60)


@dataclass(frozen=True, slots=True)
class Beside:
    """A table beside its prediction.

    Attributes:
        system: where the table is.
        chooses: whether structure was chosen on it.
        nccl: the version that its header states, else `-`.
        ranks: cards in use.
        errors: of times, `predicted / measured - 1`, by size in bytes.
    """

    system: System
    chooses: bool
    nccl: str
    ranks: int
    errors: Mapping[int, float]

    def signed(self, first: int, last: int) -> float | None:
        """Return the mean error of sizes from `first` to below `last` bytes; None where there is none."""
        found = [error for size, error in self.errors.items() if first <= size < last]
        return mean(found) if found else None

    @property
    def error(self) -> float:
        """The mean unsigned error of sizes from 1 MiB on."""
        return mean(abs(error) for size, error in self.errors.items() if size >= MIB)


def choosing() -> frozenset[str]:
    """Return the sites that structure is chosen on: of those sorted by name the first, third, ..."""
    return frozenset(sorted({system.site for system in _systems()})[::2])


def beside(chosen: Sequence[System] | None = None) -> Iterator[Beside]:
    """Yield each table, or each of those `chosen`, beside its prediction."""
    fitted, priors, chooses = constants(), Calibration.priors("nccl"), choosing()
    for system in _systems() if chosen is None else chosen:
        sample = load(system)
        predicted = sample.predict(fitted.get(system.site, priors))
        yield Beside(
            system,
            system.site in chooses,
            sample.table.header.get("nccl", "-").split("+")[0].split(" ")[0],
            sample.placement.world_size,
            {size: float(p / m - 1) for size, p, m in zip(sample.sizes, predicted, sample.measured, strict=True)},
        )


def fit_constants() -> Mapping[str, float]:
    """Return by name the constants of `FREE` that tables inside a node agree on, from where their releases document."""
    shipped, documented = Calibration.priors("nccl"), make_documented_calibration().constants
    names = [f"nccl.{name}" for name in FREE]
    priors = {name: Prior(documented[name].value, documented[name].log_std or 0.0) for name in names}
    samples = [thin_rows(load(system)) for system in systems() if system.name in INSIDE and system.name != UNSURE]
    memories = [CachedTimes(sample, names, shipped) for sample in samples]

    def predict(values: Mapping[str, float]) -> Vector:
        calibration = shipped.with_values(values, source="trial")
        return np.concatenate([memory.predict(calibration) for memory in memories])

    return fit(predict, priors, np.concatenate([sample.undisturbed for sample in samples]), bend=BEND).values


def _systems() -> tuple[System, ...]:
    return (*(system for system in systems() if system.name in INSIDE), *FOUND_LAST)


def _row(each: Beside) -> str:
    bands = [each.signed(first, last) for first, last in pairwise(EDGES)]
    cells = ["" if error is None else f"{error:+.0%}" for error in bands]
    return f"| {each.system.name} | {each.nccl} | {each.ranks} | {' | '.join(cells)} | {each.error:.1%} |"


def main() -> int:
    """Print a line a table of each half, fewest cards first, and the medians; or the constants."""
    options = parser(__doc__)
    options.add_argument("--constants", action="store_true", help="fit the constants of paths inside a node (minutes)")
    if options.parse_args().constants:
        for name, value in fit_constants().items():
            print(f"{name} {value:.3g}")
        return 0
    found = sorted(beside(), key=lambda each: (each.ranks, each.nccl, each.system.name))
    for half in (True, False):
        own = [each for each in found if each.chooses is half]
        print(f"\n| {'choosing' if half else 'judging'} | NCCL | cards | ..64K | ..1M | ..16M | ..256M | .. | off |")
        print("|---|---|--:|--:|--:|--:|--:|--:|--:|")
        print("\n".join(map(_row, own)))
        print(f"| median | | | | | | | | {median(each.error for each in own):.1%} |")
    last = [each.error for each in found if each.system in FOUND_LAST]
    print(f"\nfound last, in no fit: median {median(last):.1%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
