"""Two ways in which many ranks may wait, each fitted and judged: `python -m studies.published.rank_forms`.

Either nodes differ, and a step waits for the slowest of them; or each collective waits for the last of its ranks, drawn
anew. The constant of each is fitted to the series of `many_ranks` that may be chosen on, GPU by GPU, and both stand
beside what the others lose.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from statistics import fmean, median

from ddpsim.prediction.predict import predict
from ddpsim.simulation.job import Job
from ddpsim.simulation.jobs.representatives import expected_largest
from ddpsim.simulation.jobs.simulated import Options
from studies.accuracy.systems import machine
from studies.command import parser
from studies.published.many_ranks import ALIKE, Loss, Series, judging, losses, series, slowest

_SPREADS = [0.001 * n for n in range(151)]
_WAITS_S = [5e-6 * n for n in range(1201)]

Form = Callable[[Series, Loss, float], float]
"""What a series loses, of what it loses where nodes and ranks are alike, and of one constant."""

Pairs = Sequence[tuple[Series, Sequence[Loss]]]

HALVES = {"choosing": False, "judging": True}


def by_nodes(one: Series, alike: Loss, spread: float) -> float:
    """Return the loss where nodes differ by `spread`, a `node_spread`."""
    gpus, fewest = (slowest(one, n, spread) / slowest(one, n, 0.0) for n in (alike.gpus, alike.fewest))
    return (1 + alike.predicted) * gpus / fewest - 1


def by_collective(counts: Mapping[str, int], one: Series, alike: Loss, wait_s: float) -> float:
    """Return the loss where each collective waits for the last of its ranks.

    Args:
        counts: collectives of a step, by series.
        wait_s: standard deviation of when ranks come to a collective.
    """
    more = expected_largest(alike.gpus) - expected_largest(alike.fewest)
    return alike.predicted + counts[one.name] * wait_s * more / one.measured_s[alike.fewest]


def collectives(one: Series) -> int:
    """Return how many collectives a step of `one` has."""
    fewest = min(one.measured_s)
    found = predict(
        Job(
            one.workload(one.measured_s[fewest]),
            machine(one.cluster.machine),
            nodes=fewest // 8,
            options=Options(scheme=one.cluster.scheme),
        ),
        band=False,
        local_s=1.0,
    )
    return len(found.plan.buckets if (schedule := found.run.schedule()) is None else list(schedule))


def fitted(form: Form, values: Sequence[float], pairs: Pairs) -> float:
    """Return the constant of least mean squared error, series alike."""

    def error(value: float) -> float:
        return fmean(fmean((form(one, loss, value) - loss.measured) ** 2 for loss in alike) for one, alike in pairs)

    return min(values, key=error)


def lines(each: Sequence[Series]) -> Iterator[str]:
    """Yield how either form does on both halves, by GPU."""
    judges = judging(each)
    found = [(one, losses(one, ALIKE)) for one in each]
    counts = {one.name: collectives(one) for one in each}
    waits: Form = partial(by_collective, counts)
    yield "| GPU | form | half | rows | loses, measured | predicted | median miss |"
    yield "|---|---|---|--:|--:|--:|--:|"
    for gpu in dict.fromkeys(one.cluster.gpu for one, _ in found):
        own = [pair for pair in found if pair[0].cluster.gpu == gpu]
        halves = {half: [pair for pair in own if (pair[0].name in judges) == judge] for half, judge in HALVES.items()}
        spread = fitted(by_nodes, _SPREADS, halves["choosing"])
        wait_s = fitted(waits, _WAITS_S, halves["choosing"])
        told: dict[str, tuple[Form, float]] = {
            f"nodes differ by {spread:.3f}": (by_nodes, spread),
            f"each collective waits, {1e3 * wait_s:.3f} ms": (waits, wait_s),
        }
        for (name, (form, constant)), (half, pairs) in product(told.items(), halves.items()):
            rows = [(loss.measured, form(one, loss, constant)) for one, alike in pairs for loss in alike]
            if rows:
                measured, predicted = (f"{fmean(column):.2%}" for column in zip(*rows, strict=True))
                miss = f"{median(abs(ours - theirs) for theirs, ours in rows):.2%}"
                yield "| " + " | ".join(map(str, (gpu, name, half, len(rows), measured, predicted, miss))) + " |"


def main(arguments: Sequence[str]) -> int:
    """Print the table."""
    parser(__doc__).parse_args(arguments)
    print("\n".join(lines(series())))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
