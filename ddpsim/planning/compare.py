"""Machines side by side for one training: time, efficiency, memory and cost, each with its band."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial

from ddpsim.bucketing import BucketCaps
from ddpsim.collectives.calibration import Calibration
from ddpsim.errors import InputError, UnknownNameError
from ddpsim.options.rates import link_rates as parse_rates
from ddpsim.planning.advice import Advice, advise
from ddpsim.planning.bound import bound_of
from ddpsim.planning.break_even import check_bound
from ddpsim.planning.comparison import Comparison, undominated
from ddpsim.planning.comparison_row import ComparisonRow
from ddpsim.planning.efficiency import efficiency_of, local_s
from ddpsim.planning.goal import Goal
from ddpsim.planning.models import Model
from ddpsim.planning.prices import NO_PRICES, Price, check_currencies, priced
from ddpsim.prediction.predict import predict
from ddpsim.simulation import Options
from ddpsim.simulation.rank import Progress
from ddpsim.topology.cluster import Topology
from ddpsim.topology.link_rates import has_link, link_names_of, with_link_rate
from ddpsim.topology.spec import load_topology
from ddpsim.units import counted
from ddpsim.workers.crew import Crew, crew_of
from ddpsim.workers.points import Points, in_order
from ddpsim.workload import Workload

LinkRate = tuple[str, float]
"""A link, as `with_link_rate` takes it, and its rate in bytes per second."""


@dataclass(frozen=True, slots=True)
class Point:
    """A point is one row to be predicted."""

    workload: Workload
    topology: Topology
    nodes: int | None
    options: Options
    model: str
    machine: str
    rate: LinkRate | None

    def __str__(self) -> str:
        nodes = "" if self.nodes is None else f", {counted(self.nodes, 'node')}"
        return f"{self.model} on {self.machine}{nodes}"


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
    goal: Goal | None = None,
    advice: bool = False,
    efficiency: float = 0.8,
    options: Options | None = None,
    gpus_per_node: int | None = None,
    calibration: Calibration | None = None,
    executor: Executor | Crew | None = None,
    keep: Callable[[ComparisonRow], None] | None = None,
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
        keep: called with each row as soon as it and those before it are done.
        progress: called with (rows done, rows in all).

    Raises:
        InputError: nothing to compare, a link that no machine has, prices of two currencies, a goal that nothing meets
            (what comes nearest is named); and as `predict`.
    """
    for name, given in (("workloads", workloads), ("topologies", topologies), ("nodes", nodes)):
        if not given:
            raise InputError("nothing is given", place=name, remedy="give at least one")
    known = {name: given if isinstance(given, Price) else priced(name, given) for name, given in prices.items()}
    check_currencies(known)
    rates = parse_rates([link_rates]) if isinstance(link_rates, str) else link_rates
    check_bound(efficiency)
    machines = [_machine(each) for each in topologies]
    _check_links([rate for rate in rates if rate is not None], [topology for _, topology in machines])
    base = options or Options()
    points = [
        Point(
            model.on(wired, batch, precision),
            wired,
            count,
            replace(base, caps=cap, scheme=scheme),
            model.name,
            machine,
            rate,
        )
        for model in map(Model.of, workloads)
        for machine, topology in machines
        for rate, wired in _wired(topology, rates)
        for precision in precisions
        for batch in batch_sizes
        for count in nodes
        for cap in caps or [base.caps]
        for scheme in schemes or [base.scheme]
    ]
    one = partial(_row, gpus_per_node, calibration)
    rows: list[ComparisonRow] = []
    crew = crew_of(executor)
    show = progress or (lambda done, total: None)
    for row in in_order(Points(one, points, crew)):
        price = known.get(row.machine) or known.get(row.prediction.topology.name)
        rows.append(replace(row, price=price, samples_per_epoch=samples_per_epoch))
        if keep is not None:
            keep(rows[-1])
        show(len(rows), len(points))
    comparison = Comparison(_with_pareto(rows), goal)
    if goal is not None:
        _check_goal(comparison, goal)
    if not advice:
        return comparison
    find = partial(_advice, efficiency, calibration)
    most = _most_nodes(comparison.rows)
    return replace(comparison, advice=tuple(in_order(Points(find, most, crew, _named))))


def _named(row: ComparisonRow) -> str:
    return f"advice on {row.model}, {row.machine}"


def _advice(efficiency: float, calibration: Calibration | None, row: ComparisonRow) -> Advice:
    return advise(row, efficiency, calibration)


def _standing(row: ComparisonRow) -> tuple[bool, int, float]:
    return row.link is None, row.nodes, row.link_rate or 0.0


def _most_nodes(rows: Sequence[ComparisonRow]) -> list[ComparisonRow]:
    """Return of each machine, model, batch and precision the row of the most nodes.

    Its links are as declared where any row has them so, else the fastest asked for.
    """
    found: dict[tuple[object, ...], ComparisonRow] = {}
    for row in rows:
        key = (row.machine, row.model, row.batch_size, row.prediction.workload.precision)
        known = found.get(key)
        if known is None or _standing(row) > _standing(known):
            found[key] = row
    return list(found.values())


def _machine(asked: str | Topology) -> tuple[str, Topology]:
    return (asked, load_topology(asked)) if isinstance(asked, str) else (asked.name, asked)


def _check_links(rates: Sequence[LinkRate], machines: Sequence[Topology]) -> None:
    for link, _ in rates:
        if not any(has_link(machine, link) for machine in machines):
            known = dict.fromkeys(name for machine in machines for name in link_names_of(machine))
            raise UnknownNameError.among("link", link, known, place="link_rate")


def _wired(topology: Topology, rates: Sequence[LinkRate | None]) -> Iterator[tuple[LinkRate | None, Topology]]:
    """Yield the machine at each rate of the links it has; once as declared where it has none of them."""
    found = [(rate, with_link_rate(topology, *rate)) for rate in rates if rate and has_link(topology, rate[0])]
    if not found or None in rates:
        yield None, topology
    yield from found


def _row(gpus_per_node: int | None, calibration: Calibration | None, point: Point) -> ComparisonRow:
    """Return the row of one point, without what it costs."""
    prediction = predict(
        point.workload,
        point.topology,
        nodes=point.nodes,
        gpus_per_node=gpus_per_node,
        options=point.options,
        calibration=calibration,
        local_s=local_s(point.workload, point.options) if point.topology.compute_device != "cpu" else None,
        brief=True,
        coarse=True,
    )
    link, rate = point.rate or (None, None)
    return ComparisonRow(
        prediction=prediction,
        machine=point.machine,
        model=point.model,
        efficiency=efficiency_of(prediction),
        bound=bound_of(prediction, calibration),
        link=link,
        link_rate=rate,
    )


def _with_pareto(rows: Sequence[ComparisonRow]) -> tuple[ComparisonRow, ...]:
    marks: dict[int, bool] = {}
    for model in dict.fromkeys(row.model for row in rows):
        own = [number for number, row in enumerate(rows) if row.model == model]
        marks |= dict(zip(own, undominated([rows[number] for number in own]), strict=True))
    return tuple(replace(row, pareto=marks[number]) for number, row in enumerate(rows))


def _check_goal(comparison: Comparison, goal: Goal) -> None:
    """Raise InputError where no row that may fit meets the goal: what comes nearest is named."""
    for model in comparison.models:
        rows = [row for row in comparison.of(model) if row.fits is not False] or list(comparison.of(model))
        if any(goal.met_by(row.samples_per_s[0]) for row in rows):
            continue
        nearest = max(rows, key=lambda row: row.samples_per_s[0])
        where = f"{nearest.machine}, {nearest.nodes} nodes" if nearest.nodes > 1 else f"{nearest.machine}, one node"
        raise InputError(
            f"nothing compared reaches {goal.said()} with {model}; nearest comes {where}: "
            f"{goal.reached(nearest.samples_per_s)}",
            place="samples_per_second" if goal.deadline_s is None else "deadline",
            remedy="ask for more nodes, other machines, or less",
        )
