"""Advice beside a comparison: keep a group in one machine, or accumulate gradients, and what each is worth."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ddpsim.collectives.calibration import Calibration
from ddpsim.planning.break_even import BreakEven, Search, What
from ddpsim.planning.comparison_row import ComparisonRow
from ddpsim.planning.worth import WORTH_IT, Trial
from ddpsim.prediction.answers import Answers
from ddpsim.prediction.predict import gain_band, predict
from ddpsim.prediction.prediction import Band
from ddpsim.simulation.job import Job

EVERY = (2, 4, 8)
"""Micro-batches over which gradients are tried to be accumulated, as Li et al. do (VLDB 2020, section 5.3)."""


@dataclass(frozen=True, slots=True)
class TwoNodeCost:
    """What it costs to put as many ranks on two nodes as fit one (Li et al., VLDB 2020, section 6.1).

    Attributes:
        row: whose machine and model it is about.
        ranks: in either placement.
        together_s, apart_s: an iteration, of a micro-batch, on one node, and on two with half the ranks on each.
        cost: share of the step on two nodes that one node saves, with its band.
    """

    row: ComparisonRow
    ranks: int
    together_s: float
    apart_s: float
    cost: Band

    @property
    def accumulate(self) -> int:
        """Of a step."""
        return self.row.prediction.options.accumulate

    def document(self) -> dict[str, object]:
        """Return this as JSON values."""
        middle, low, high = self.cost
        return {
            **_describe_row(self.row),
            "world_size": self.ranks,
            "one_node_s": self.together_s,
            "two_nodes_s": self.apart_s,
            "one_node_step_s": self.accumulate * self.together_s,
            "two_nodes_step_s": self.accumulate * self.apart_s,
            "cost": middle,
            "cost_low": low,
            "cost_high": high,
        }


@dataclass(frozen=True, slots=True)
class AccumulationAdvice:
    """What `no_sync` saves when gradients are reduced every so many micro-batches: a step is then of so many.

    Attributes:
        row: whose step, of one micro-batch, it is.
        every: micro-batches a reduction.
        saving: share of the time of a micro-batch, with its band.
    """

    row: ComparisonRow
    every: int
    saving: Band

    def document(self) -> dict[str, object]:
        """Return this as JSON values."""
        middle, low, high = self.saving
        at = {"nodes": self.row.nodes, "accumulate": self.every}
        return {**_describe_row(self.row), **at, "saving": middle, "saving_low": low, "saving_high": high}


@dataclass(frozen=True, slots=True)
class Advice:
    """What is worth knowing of one machine beside its rows.

    Attributes:
        row: that stands for its rows: of the most nodes.
        break_even: of the rates of its NICs, and of its node count; empty where there is no network.
        apart: None where a node has one GPU, or there is no network.
        accumulating: empty where hardly anything of a step waits for communication.
    """

    row: ComparisonRow
    break_even: tuple[BreakEven, ...] = ()
    apart: TwoNodeCost | None = None
    accumulating: tuple[AccumulationAdvice, ...] = ()


_Found = tuple[
    tuple[tuple[What, float | None, float | None, float | None, str, tuple[str, Band] | None, Trial | None], ...],
    tuple[int, float, float, Band] | None,
    tuple[tuple[int, Band], ...],
]
"""What is kept of advice: all but its row."""


def advise(answers: Answers, item: tuple[Job, ComparisonRow], efficiency: float) -> Advice:
    """Return what is worth knowing of the machine of a row, which stands for its rows.

    Args:
        answers: where it is looked up.
        item: the row of the most nodes, and its job.
        efficiency: below which a machine no longer scales.
    """
    job, row = item
    stored: _Found = answers.ask(_Found, lambda: _find(row, efficiency, job.calibration), job, efficiency, "advice")
    break_even, apart, accumulating = stored
    return Advice(
        row,
        tuple(BreakEven(row, *each) for each in break_even),
        None if apart is None else TwoNodeCost(row, *apart),
        tuple(AccumulationAdvice(row, *each) for each in accumulating),
    )


def _find(row: ComparisonRow, efficiency: float, calibration: Calibration | None) -> _Found:
    search, networked = Search(row, calibration), bool(row.prediction.placement.classes[0].template.nics)
    break_evens = [*search.rates(), *([search.nodes(efficiency)] if networked else [])]
    return (
        tuple((f.what, f.value, f.low, f.high, f.why, f.advised, f.trial) for f in break_evens),
        _compare_two_nodes(row, search),
        tuple(_advise_accumulation(row, calibration)),
    )


def _compare_two_nodes(row: ComparisonRow, search: Search) -> tuple[int, float, float, Band] | None:
    own = row.prediction
    template, per_node = own.placement.classes[0].template, own.placement.gpus_per_node
    topology = own.topology
    if per_node < 2 or not template.nics or topology.fabric.kind == "none":
        return None
    if topology.nodes < 2 and not topology.elastic:
        return None
    ranks = per_node - per_node % 2
    return ranks, *search.two_nodes(ranks)


def _advise_accumulation(row: ComparisonRow, calibration: Calibration | None) -> Iterator[tuple[int, Band]]:
    own = row.prediction
    if row.ranks == 1 or own.options.accumulate > 1 or row.bound.exposed_share < WORTH_IT:
        return
    for every in EVERY:
        options = replace(own.options, accumulate=every)
        job = Job(own.workload, own.topology, row.nodes, own.placement.gpus_per_node, options, calibration)
        local = predict(job, local_s=own.local_s)
        gain = 1 - local.iteration_s / own.iteration_s
        yield every, (gain, *gain_band(own, local))


def _describe_row(row: ComparisonRow) -> dict[str, object]:
    workload = row.prediction.workload
    return {
        "topology": row.prediction.topology.name,
        "machine": row.machine,
        "model": row.model,
        "precision": workload.precision,
        "batch_size": row.batch_size,
    }
