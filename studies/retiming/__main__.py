"""`python -m studies.retiming [--every N]`: how far retimed ends are from simulated ones, and what bands cost."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from statistics import median

import ddpsim
from ddpsim.common.errors import DdpsimError
from ddpsim.prediction import periods
from ddpsim.prediction.doubts.causes import doubts_of
from ddpsim.prediction.prediction import Prediction
from ddpsim.simulation.communication import Assumptions
from ddpsim.topology.spec import load_topology
from tests.unchanged.jobs import Job, jobs, options_of

BOUNDS = (0.001, 0.005, 0.02)
"""Shares of a step within which retimed ends are counted."""


@dataclass(frozen=True)
class Told:
    """An end of a doubt: its step as retimed and as simulated, over the step; the first is None where it was not."""

    job: str
    doubt: str
    retimed: float | None
    simulated: float

    @property
    def off(self) -> float | None:
        """How far off the retimed end is, as a share of the step."""
        return None if self.retimed is None else abs(self.retimed - self.simulated)


TURNS = 3
"""How often a prediction without and one with its band are timed, one after the other, once both have run before."""


@dataclass(frozen=True)
class Cost:
    """What a prediction and its band took, in seconds of the processor: medians over turns."""

    central_s: float
    band_s: float


def cost_of(predicted: Callable[[bool], object]) -> Cost:
    """Return what a prediction costs and what its band, both of which run once before they are timed.

    Args:
        predicted: makes the prediction, with its band or without.
    """
    predicted(True)
    turns = [[_time_of(partial(predicted, band)) for band in (False, True)] for _ in range(TURNS)]
    central_s, banded_s = map(median, zip(*turns, strict=True))
    return Cost(central_s, banded_s - central_s)


def _time_of(called: Callable[[], object]) -> float:
    """Return how many seconds of the processor a call takes."""
    begun_s = time.process_time()
    called()
    return time.process_time() - begun_s


def ends_of(job: Job) -> tuple[Cost, list[Told]]:
    """Return what the band of a job costs, and each of its ends, retimed and simulated."""
    topology, options = load_topology(job.machine), options_of(**dict(job.options))
    workload = job.workload()

    def predicted(band: bool) -> Prediction:
        return ddpsim.predict(workload, topology, nodes=job.nodes, options=options, band=band)

    cost, prediction = cost_of(predicted), predicted(False)
    sizes = [bucket.size_bytes for bucket in prediction.plan.buckets]
    doubts = doubts_of(prediction.workload, prediction.placement, options, None, sizes)
    named = [(doubt.name, end) for doubt in doubts for end in (doubt.low, doubt.high) if end is not None]
    fidelity = "flow" if options.fidelity == "steps" else options.fidelity
    flows = replace(prediction, run=replace(prediction.run, options=replace(options, fidelity=fidelity)))
    now_s = periods.with_assumptions(flows.run, Assumptions()).iteration_s
    retimed = periods.retime(prediction.run, [end for _, end in named])
    told = []
    for (name, end), found_s in zip(named, retimed, strict=True):
        moved_s = periods.with_assumptions(flows.run, end).iteration_s - now_s
        over = None if found_s is None else found_s / prediction.iteration_s
        told.append(Told(str(job), name, over, 1 + moved_s / prediction.iteration_s))
    return cost, told


def lines(costs: list[Cost], told: list[Told]) -> Iterator[str]:
    """Yield what was found."""
    off = sorted(each.off for each in told if each.off is not None)
    ratio = sum(each.band_s for each in costs) / sum(each.central_s for each in costs)
    yield f"{len(costs)} jobs, {len(told)} ends: {100 * len(off) / len(told):.1f} % retimed"
    yield f"the band takes {ratio:.2f} times the central run"
    for bound in BOUNDS:
        within = 100 * sum(each <= bound for each in off) / len(off)
        yield f"{within:.1f} % of retimed ends within {100 * bound:g} % of the step"
    yield f"farthest {100 * off[-1]:.2f} % of the step"
    simulated = Counter(each.doubt for each in told if each.off is None)
    yield "simulated: " + ", ".join(f"{count} of {name}" for name, count in simulated.most_common(6))


def measured(every: int) -> dict[str, float]:
    """Return what bands cost, how many of their ends are retimed and how near, over one job of `every`."""
    costs, told = _over(every)
    off = [each.off for each in told if each.off is not None]
    ratio = sum(each.band_s for each in costs) / sum(each.central_s for each in costs)
    near = {bound: sum(each <= bound for each in off) / len(off) for bound in BOUNDS}
    within = {f"share of retimed ends within {100 * bound:g} %": share for bound, share in near.items()}
    return {"band over the central run": ratio, "share of ends that are retimed": len(off) / len(told), **within}


def _over(every: int) -> tuple[list[Cost], list[Told]]:
    costs: list[Cost] = []
    told: list[Told] = []
    for job in list(jobs())[::every]:
        try:
            cost, ends = ends_of(job)
        except DdpsimError:  # a job that is refused has no step
            continue
        costs.append(cost)
        told += ends
    return costs, told


def main() -> int:
    """Print each end that is farther off than the widest bound, then the counts; return 1 where there is one."""
    parser = argparse.ArgumentParser(prog="python -m studies.retiming", description=__doc__)
    parser.add_argument("--every", type=int, default=1, metavar="N", help="one job of N")
    given = parser.parse_args()
    costs, told = _over(given.every)
    for each in told:
        if each.off is not None and each.off > BOUNDS[-1]:
            print(f"{each.job}: {each.doubt} {each.retimed:.4f}, simulated {each.simulated:.4f}", flush=True)
    print("\n".join(lines(costs, told)))
    return int(any(each.off is not None and each.off > BOUNDS[-1] for each in told))


if __name__ == "__main__":
    sys.exit(main())
