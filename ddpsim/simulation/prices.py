"""What each node of a graph takes under several assumptions at once: a column an assumption.

Nodes' seconds are linear in DDP's costs, which `StepGraph.terms` has, and beside those in the pace of the rank's device
or host. Nothing is built anew for that. What would make another graph, is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
import simpy
from numpy.typing import NDArray

from ddpsim.collectives.calibration import Calibration
from ddpsim.dataclass import dataclass
from ddpsim.simulation.assumptions import Assumptions
from ddpsim.simulation.communication import Communication
from ddpsim.simulation.costs import CODEC_KERNEL_S, CODEC_RATE, ENTER_S, TIMES, Costs
from ddpsim.simulation.graph import BUFFERS_PART, PER, Cause, NodeKind, StepGraph
from ddpsim.simulation.job_run import Columns, JobRun
from ddpsim.simulation.representatives import LATEST, RankKind, SimulatedRank
from ddpsim.simulation.setting import RankConfiguration
from ddpsim.workload.gpus import AchievedGpu

_COMPUTED = (Cause.FORWARD, Cause.BACKWARD, Cause.OPTIMIZER)
_KEPT, _HOST, _DEVICE = 0, 1, 2
_ROUNDING_S = 1e-15
"""What is less is left over of sums."""


@dataclass(frozen=True, slots=True)
class RankPrices:
    """Prices of one rank, each by assumption.

    Attributes:
        costs: of DDP on the rank's device.
        compute, host: factors on its device's and its host's time, over those of the run.
        late_s: how long a collective waits for multiprocessors.
        constants: by the names that terms have.
    """

    costs: Sequence[Costs]
    compute: Columns
    host: Columns
    late_s: Columns
    constants: Mapping[str, Columns]


def has_prices(run: JobRun) -> bool:
    """Whether other constants price each node of a run.

    Threads of one process and compiled graphs have hosts' times of which only a part is the pace; ranks that were given
    have paces of no kind.
    """
    if run.job.options.compiled or (run.schedule is not None and run.schedule.one_process):
        return False
    return all(any(kind.paces is draw.records for kind in run.kinds) for draw in run.draws)


class Prices:
    """The prices of a run under several assumptions.

    Args:
        run: whose calibration and factors are taken as given.
        assumed: other assumptions.

    Attributes:
        assumed: the columns: the run's own assumptions, then the others.
        ranks: in the order of the graph's.
        costs: of the job, as its first rank's workload has them, by assumption.
        another: whether a column needs another graph than the run had.
        jobs: what its ranks compute and communicate on.
        seconds: what nodes take with nothing beside them: (nodes, assumptions).
    """

    def __init__(self, run: JobRun, assumed: Sequence[Assumptions]) -> None:
        assumed = [Assumptions(run.job.calibration, run.job.wire_factor, latency=run.job.latency), *assumed]
        self._run, self.assumed = run, assumed
        self._costs_of: dict[tuple[int, int], Costs] = {}
        job = run.job
        self.costs = [self._costs(each.calibration, job.gpu) for each in assumed]
        self.ranks = [self._of_rank(draw, setting) for draw, setting in zip(run.draws, run.settings, strict=True)]
        self.jobs = [job, *map(job.under, assumed[1:], self.costs[1:])]
        self.another = np.zeros(len(assumed), dtype=bool)
        for draw in run.draws:
            kind = self._kind(draw)
            others = [replace(kind, spread=c.pace_spread, node_spread=c.node_spread) for c in self.costs]
            self.another |= [len(kind.paces) == 1 and other.differs != kind.differs for other in others]
        if run.schedule is not None and any(message.delay_s > 0 for message in run.schedule):
            self.another |= [each.compute != 1 or not job.keeps_transports(each) for each in assumed]
        used = {name for terms in run.graph.terms.values() for name, _ in terms} | {ENTER_S}
        for rank, graph in zip(self.ranks, run.graph.ranks, strict=True):
            for name in used if not graph.one_thread else ():
                now = rank.constants[name]
                self.another |= (now[0] == 0) & (now > 0)
        self.seconds = self._seconds()

    def _seconds(self) -> Columns:
        graph, names = self._run.graph, list(self.ranks[0].constants)
        plain = np.array(graph.seconds)
        numbers = {name: number for number, name in enumerate(names)}
        terms = [(node, numbers[name], times) for node, each in graph.terms.items() for name, times in each]
        nodes, constants, times = (np.array(each) for each in zip(*terms, strict=True)) if terms else ((), (), ())
        paces, found = _paces(graph), np.zeros((len(plain), len(self.assumed)))
        for rank, prices in zip(graph.ranks, self.ranks, strict=True):
            of = slice(rank.nodes.start, rank.nodes.stop)
            values = np.stack([prices.constants[name] for name in names])
            factors = np.stack([np.ones_like(prices.host), prices.host, prices.compute])
            own = slice(*np.searchsorted(nodes, (of.start, of.stop))) if terms else slice(0)
            np.subtract.at(plain, nodes[own], times[own] * values[constants[own], 0])
            left = np.where(np.abs(plain[of]) < _ROUNDING_S, 0.0, plain[of])
            paced = np.where((paces[of] == _HOST) & rank.one_thread, _KEPT, paces[of])
            found[of] = left[:, None] * factors[paced]
            np.add.at(found, nodes[own], times[own][:, None] * values[constants[own]])
        return found

    def wire(self, size_bytes: int) -> Columns:
        """Return the factor on the time of a collective of so many bytes, by assumption."""
        return np.array([1.0 if each.wire_factor is None else each.wire_factor(size_bytes) for each in self.assumed])

    @cached_property
    def shared(self) -> list[Communication]:
        """What the ranks communicate on, by assumption; factors on the time of collectives apart."""
        run = self._run
        scheduled, of_transports = run.settings[0].scheduled, {(id(run.job.transports), run.job.latency): run.shared}
        for job in self.jobs:
            key = (id(job.transports), job.latency)
            if key not in of_transports:
                plain = replace(job, wire_factor=run.job.wire_factor)
                of_transports[key] = plain.communication(simpy.Environment(), scheduled)
        return [of_transports[id(job.transports), job.latency] for job in self.jobs]

    def _of_rank(self, draw: SimulatedRank, setting: RankConfiguration) -> RankPrices:
        options, kind = self._run.job.options, self._kind(draw)
        costs = [self._costs(each.calibration, setting.gpu) for each in self.assumed]
        device, host = (np.array([getattr(each, name) for each in self.assumed]) for name in ("compute", "host"))
        kernels_s = setting.kernel_s * device
        compute = device * self._devices(draw, kind)
        constants = {name: np.array([getattr(each, name) for each in costs]) for name in TIMES}
        constants[PER + "copy_Bps"] = np.array([1 / each.copy_Bps for each in costs])
        codecs = [each.codec(options.codec.name, one_thread=setting.execution.one_thread) for each in costs]
        constants[CODEC_KERNEL_S] = np.array([each.launch_s for each in codecs])
        constants[PER + CODEC_RATE] = np.array([1 / each.memory_bandwidth for each in codecs])
        meets = np.array([not each.silent for each in self.assumed], dtype=float)
        constants |= {BUFFERS_PART + name: values * meets for name, values in constants.items()}
        if setting.alone or options.comm == "noop":
            meets = np.zeros_like(meets)
        entered = [each.entering_s(s) for each, s in zip(costs, kernels_s.tolist(), strict=True)]
        constants[ENTER_S] = np.array(entered) * meets
        late_s = np.array([each.late_kernels for each in costs]) * kernels_s * meets
        return RankPrices(costs, compute, host, late_s, constants)

    def _devices(self, draw: SimulatedRank, kind: RankKind) -> Columns:
        """Return the factors by which devices beside each other, and the slowest of them, take longer than they did."""
        factors = np.array([each.shared_compute_slowdown if kind.beside_others else 1.0 for each in self.costs])
        if draw.rank == LATEST and not kind.execution.sleeps:
            others = [replace(kind, spread=each.pace_spread, node_spread=each.node_spread) for each in self.costs]
            factors = factors * [other.slowest() for other in others]
        found: Columns = factors / factors[0]
        return found

    def _kind(self, draw: SimulatedRank) -> RankKind:
        return next(kind for kind in self._run.kinds if kind.paces is draw.records)

    def _costs(self, calibration: Calibration | None, gpu: AchievedGpu | None) -> Costs:
        key = (id(calibration), id(gpu))
        if key not in self._costs_of:
            self._costs_of[key] = Costs.of(self._run.job.backend, calibration, gpu)
        return self._costs_of[key]


def _paces(graph: StepGraph) -> NDArray[np.intp]:
    """Return by whose pace each node's seconds go that are none of DDP's costs; only a device's host has its own."""
    kind, cause = (np.fromiter(each, dtype=np.intp, count=len(graph.kind)) for each in (graph.kind, graph.cause))
    delays = kind == NodeKind.DELAY
    computed = ((kind == NodeKind.COMPUTE) | (kind == NodeKind.PACED)) & np.isin(cause, _COMPUTED)
    found = np.where(computed | (delays & (cause == Cause.OPTIMIZER)), _DEVICE, _KEPT)
    return np.where(delays & (cause == Cause.HOST), _HOST, found)
