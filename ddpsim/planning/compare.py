"""Machines side by side for one training: time, efficiency, memory and cost, each with its band."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path

from ddpsim.bucketing import BucketCaps
from ddpsim.collectives.calibration import Calibration
from ddpsim.common.errors import InputError, UnknownNameError
from ddpsim.common.options.option import check_given
from ddpsim.common.options.rates import link_rates as parse_rates
from ddpsim.common.workers.crew import WorkerPool
from ddpsim.planning.advice import advise
from ddpsim.planning.break_even import check_bound
from ddpsim.planning.comparison import Comparison, find_undominated
from ddpsim.planning.comparison_row import ComparisonRow, LabelledJob, comparison_row, name_labelled
from ddpsim.planning.goal import RateGoal
from ddpsim.planning.prices import NO_PRICES, Price, check_currencies, index_by_machine, machine_names, price_machine
from ddpsim.prediction.answers import Compute, computing
from ddpsim.prediction.arguments import take_names
from ddpsim.prediction.models import Model
from ddpsim.simulation.job import Job
from ddpsim.simulation.jobs.simulated import Options
from ddpsim.simulation.run import Progress
from ddpsim.topology.cluster import Topology
from ddpsim.topology.link_rates import has_link, link_names_of, with_link_rate
from ddpsim.topology.spec import load_topology
from ddpsim.workload import Workload

LinkRate = tuple[str, float]
"""A link, as `with_link_rate` takes it, and its rate in bytes per second."""


@take_names
def compare(
    workloads: Sequence[str | Workload],
    topologies: Sequence[str | Topology],
    *,
    nodes: Sequence[int | None] = (None,),
    batch_sizes: Sequence[int | None] = (None,),
    precisions: Sequence[str | None] = (None,),
    link_rates: str | Sequence[LinkRate | None] = (None,),
    caps: Sequence[BucketCaps] | None = None,
    schemes: Sequence[str] | None = None,
    prices: Mapping[str, Price | str] = NO_PRICES,
    samples_per_epoch: float | None = None,
    goal: RateGoal | None = None,
    advice: bool = False,
    efficiency: float = 0.8,
    options: Options | None = None,
    gpus_per_node: int | None = None,
    calibration: Calibration | None = None,
    executor: Executor | WorkerPool | None = None,
    cache: str | Path | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Predict every model on every machine, each with the workload of that machine's own GPU.

    Args:
        workloads: names, files or workloads, as `Model.of` takes them.
        topologies: names, files or machines.
        nodes: node counts; None is a machine's own.
        batch_sizes: samples a rank and step; None is the workload's own.
        precisions: `fp32`, `amp`, ...; None is the workload's own.
        link_rates: links whose rate is set, each rate a row, or as they are typed: `25,100Gb/s`; machines without the
            link keep theirs in one row.
        caps: bucket caps; None is that of `options`.
        schemes: as `--scheme` takes them; None is that of `options`.
        prices: of one node of each machine, by its name as asked for; each may be text, `32.77USD/h@2026-11-22`.
        samples_per_epoch: for times and costs of an epoch.
        goal: that the best has to meet.
        advice: whether to look for break-evens, placement and `no_sync` too, of each machine at its most nodes.
        efficiency: below which a machine is said to scale no longer.
        options: of the run.
        gpus_per_node: the first so many of each node; None is all.
        calibration: measured constants; None is the documented priors.
        executor: where the predictions are computed; None is here, one by one.
        cache: file in which they are kept, and found again.
        progress: called with (rows done, rows in all).

    Raises:
        InputError: nothing to compare, a link that no machine has, prices of two currencies, a goal that nothing meets
            (what comes nearest is named); and as `predict`.
    """
    request = ComparisonRequest(
        workloads=workloads,
        topologies=topologies,
        nodes=nodes,
        batch_sizes=batch_sizes,
        precisions=precisions,
        link_rates=link_rates,
        caps=caps,
        schemes=schemes,
        prices=prices,
        samples_per_epoch=samples_per_epoch,
        goal=goal,
        efficiency=efficiency,
        options=options,
        gpus_per_node=gpus_per_node,
        calibration=calibration,
    )
    with computing(executor, cache, progress) as compute:
        comparison = request.collect(compute(comparison_row, request.points, name_labelled))
        return request.advise(comparison, compute) if advice else comparison


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonRequest:
    """A comparison that was asked for: its points, and what is made of their rows.

    Attributes:
        workloads, ..., calibration: as those of `compare`.
        points: the jobs of its rows, in order.
        known_prices: of one node of each machine, by its name as asked for.

    Raises:
        InputError: nothing to compare, a link that no machine has, prices of two currencies; and as `Model.on`.
    """

    workloads: Sequence[str | Workload]
    topologies: Sequence[str | Topology]
    nodes: Sequence[int | None] = (None,)
    batch_sizes: Sequence[int | None] = (None,)
    precisions: Sequence[str | None] = (None,)
    link_rates: str | Sequence[LinkRate | None] = (None,)
    caps: Sequence[BucketCaps] | None = None
    schemes: Sequence[str] | None = None
    prices: Mapping[str, Price | str] = field(default_factory=lambda: NO_PRICES)
    samples_per_epoch: float | None = None
    goal: RateGoal | None = None
    efficiency: float = 0.8
    options: Options | None = None
    gpus_per_node: int | None = None
    calibration: Calibration | None = None
    points: tuple[LabelledJob, ...] = field(init=False)
    known_prices: Mapping[str, Price] = field(init=False)

    def __post_init__(self) -> None:
        for name in ("workloads", "topologies", "nodes"):
            check_given(name, getattr(self, name))
        check_bound(self.efficiency)
        machines = [_machine(each) for each in self.topologies]
        object.__setattr__(self, "known_prices", self._find_prices(machines))
        object.__setattr__(self, "points", tuple(self._points(machines)))

    def _find_prices(self, machines: Sequence[tuple[str, Topology]]) -> Mapping[str, Price]:
        prices = {
            name: each if isinstance(each, Price) else price_machine(name, each) for name, each in self.prices.items()
        }
        by_machine = index_by_machine(
            prices, machine_names((asked_name, machine.name) for asked_name, machine in machines)
        )
        check_currencies(by_machine)
        return by_machine

    def _points(self, machines: Sequence[tuple[str, Topology]]) -> Iterator[LabelledJob]:
        rates = parse_rates([self.link_rates]) if isinstance(self.link_rates, str) else self.link_rates
        _check_links([rate for rate in rates if rate is not None], [topology for _, topology in machines])
        base = self.options or Options()
        each = [
            replace(base, caps=cap, scheme=scheme)
            for cap in self.caps or [base.caps]
            for scheme in self.schemes or [base.scheme]
        ]
        for model in (Model.of(each, base) for each in self.workloads):
            for machine, topology in machines:
                for (rate, wired), precision, batch, count, options in product(
                    list(_list_wired(topology, rates)), self.precisions, self.batch_sizes, self.nodes, each
                ):
                    workload = model.on(wired, batch, precision, base)
                    job = Job(workload, wired, count, self.gpus_per_node, options, self.calibration)
                    link, link_rate = rate or (None, None)
                    yield job, {"model": model.name, "machine": machine, "link": link, "link_rate": link_rate}

    def price(self, rows: Iterable[ComparisonRow]) -> list[ComparisonRow]:
        """Return rows with what they cost."""
        return [
            replace(row, price=self.known_prices.get(row.machine), samples_per_epoch=self.samples_per_epoch)
            for row in rows
        ]

    def collect(self, rows: Sequence[ComparisonRow]) -> Comparison:
        """Return the comparison of the rows of all points.

        Raises:
            InputError: nothing meets the goal; what comes nearest is named.
        """
        comparison = Comparison(_with_pareto(self.price(rows)), self.goal)
        if self.goal is not None:
            _check_goal(comparison, self.goal)
        return comparison

    def advise(self, comparison: Comparison, compute: Compute) -> Comparison:
        """Return a comparison with advice on each of its machines."""
        items = [(self.points[each][0], comparison.rows[each]) for each in _find_most_nodes(comparison.rows)]
        return replace(
            comparison, advice=tuple(compute(partial(advise, efficiency=self.efficiency), items, _name_advice))
        )


def _name_advice(item: tuple[Job, ComparisonRow]) -> str:
    return f"advice on {item[1].model}, {item[1].machine}"


def _rank_key(row: ComparisonRow) -> tuple[bool, int, float]:
    return row.link is None, row.nodes, row.link_rate or 0.0


def _find_most_nodes(rows: Sequence[ComparisonRow]) -> list[int]:
    """Return of each machine, model, batch and precision where the row of the most nodes stands.

    Its links are as declared where any row has them so, else the fastest asked for.
    """
    positions: dict[tuple[object, ...], int] = {}
    for position, row in enumerate(rows):
        key = (row.machine, row.model, row.batch_size, row.prediction.workload.precision)
        if key not in positions or _rank_key(row) > _rank_key(rows[positions[key]]):
            positions[key] = position
    return list(positions.values())


def _machine(machine: str | Topology) -> tuple[str, Topology]:
    return (machine, load_topology(machine)) if isinstance(machine, str) else (machine.name, machine)


def _check_links(rates: Sequence[LinkRate], machines: Sequence[Topology]) -> None:
    for link, _ in rates:
        if not any(has_link(machine, link) for machine in machines):
            known = dict.fromkeys(name for machine in machines for name in link_names_of(machine))
            raise UnknownNameError.among("link", link, known, place="link_rate")


def _list_wired(topology: Topology, rates: Sequence[LinkRate | None]) -> Iterator[tuple[LinkRate | None, Topology]]:
    """Yield the machine at each rate of the links it has; once as declared where it has none of them."""
    wired = [(rate, with_link_rate(topology, *rate)) for rate in rates if rate and has_link(topology, rate[0])]
    if not wired or None in rates:
        yield None, topology
    yield from wired


def _with_pareto(rows: Sequence[ComparisonRow]) -> tuple[ComparisonRow, ...]:
    marks: dict[int, bool] = {}
    for model in dict.fromkeys(row.model for row in rows):
        own = [number for number, row in enumerate(rows) if row.model == model]
        marks |= dict(zip(own, find_undominated([rows[number] for number in own]), strict=True))
    return tuple(replace(row, pareto=marks[number]) for number, row in enumerate(rows))


def _check_goal(comparison: Comparison, goal: RateGoal) -> None:
    """Raise InputError where no row that may fit meets the goal: what comes nearest is named."""
    for model in comparison.models:
        ranked = comparison.list_ranked(model)
        rows = [row for row in ranked if row.fits is not False] or ranked
        if not rows or any(goal.is_met_by(row.samples_per_s[0]) for row in rows):
            continue
        nearest = max(rows, key=lambda row: row.samples_per_s[0])
        where = f"{nearest.machine}, {nearest.nodes} nodes" if nearest.nodes > 1 else f"{nearest.machine}, one node"
        raise InputError(
            f"nothing compared reaches {goal.describe()} with {model}; nearest comes {where}: "
            f"{goal.describe_reached(nearest.samples_per_s)}",
            place="samples_per_second" if goal.deadline_s is None else "deadline",
            remedy="ask for more nodes, other machines, or less",
        )
