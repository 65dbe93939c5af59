"""Derive how far devices differ, by capability, from the choosing half: `python -m studies.published.devices_fit`.

With `devices_fit SPREAD` a `pace_spread` is given, as `device_spread` measures it, and `shared_compute_slowdown` alone
is fitted.

What a step is longer than one predicted with devices alike is `shared_compute_slowdown` less 1, and `pace_spread` times
what the slowest of so many is expected to be above the median: the two of least mean absolute error, systems alike.
Rows that send for more than a twentieth of their step tell of their link instead, and are left out; so are systems that
constants were fitted to before. Lambda's eight A100 go through host memory with next to nothing hidden, as their rows
of BERT tell (`studies/published/tried.md`), and are taken so here.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from itertools import groupby
from statistics import fmean

from ddpsim.collectives.calibration import Calibration
from ddpsim.collectives.constant import GIVEN
from ddpsim.collectives.execute import make_transport
from ddpsim.simulation.jobs.representatives import expected_largest
from ddpsim.workload.gpus import gpu_named
from studies.command import parser
from studies.published.gpu_steps import prediction
from studies.published.gpu_systems import FITTED, System, cases, step_s, systems

ALIKE = Calibration.priors("nccl").with_values(
    {"nccl.ddp.pace_spread": 0.0, "nccl.ddp.node_spread": 0.0, "nccl.ddp.shared_compute_slowdown": 1.0}, source=GIVEN
)
UNHIDDEN = {"lambda-a100-sxm": ALIKE.with_values({"nccl.ddp.staged_slowdown": 10.0}, source=GIVEN)}
"""Constants of systems whose collectives hardly get on beside computation."""

_SHARED = [0.0005 * n for n in range(41)]
_SPREADS = [0.0005 * n for n in range(81)]

_SENT = 0.05
"""Share of a step that its allreduces take at most where it tells of devices."""

Point = tuple[float, float]
"""What multiplies `pace_spread`, and the share of a step that is left."""


def points(system: System) -> Iterator[Point]:
    """Yield what each row of `system` says."""
    for dtype, row in cases(system):
        found = prediction(system, dtype, row, calibration=UNHIDDEN.get(system.name, ALIKE))
        transport = make_transport(found.placement, "nccl", None)
        sent_s = sum(transport.allreduce_s(bucket.size_bytes) for bucket in found.plan.buckets)
        alike_s = found.options.accumulate * found.iteration_s
        if sent_s < _SENT * alike_s:
            largest = found.workload.arithmetic_share * expected_largest(found.placement.world_size)
            yield largest, step_s(system, row) / alike_s - 1


def fitted(each: Sequence[Sequence[Point]], spreads: Sequence[float] = _SPREADS) -> tuple[float, float]:
    """Return `pace_spread`, one of `spreads`, and `shared_compute_slowdown` of the points of some systems."""

    def error(pair: tuple[float, float]) -> float:
        spread, shared = pair
        return fmean(fmean(abs(left - shared - spread * largest) for largest, left in points) for points in each)

    spread, shared = min(((a, b) for a in spreads for b in _SHARED), key=error)
    return spread, 1 + shared


def main(arguments: Sequence[str]) -> int:
    """Print both constants by compute capability."""
    asked = parser(__doc__)
    asked.add_argument("spreads", metavar="SPREAD", type=float, nargs="*", help="a `pace_spread` to fit the other with")
    spreads = asked.parse_args(arguments).spreads or _SPREADS

    def capability_of(system: System) -> int:
        return gpu_named(system.gpu).spec.sm or 0

    chosen = [system for system in systems() if not system.judges and system.name not in FITTED]
    for capability, group in groupby(sorted(chosen, key=capability_of), key=capability_of):
        found = {system.name: list(points(system)) for system in group}
        telling = [each for each in found.values() if each]
        if telling:
            spread, shared = fitted(telling, spreads)
            names = ", ".join(name for name, each in found.items() if each)
            print(f"sm_{capability}: pace_spread {spread:.4f}, shared_compute_slowdown {shared:.4f} ({names})")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
