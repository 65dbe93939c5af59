"""Construction and the first iterations of a predicted job: how long until its steps are as the prediction says.

Start at `predict_first_iterations`; `construct`, before it, is what DDP's constructor sends before the first iteration:
a check that ranks have one model, and rank 0's state.

Source: torch 2.13, `torch/distributed/utils.py` (`_verify_param_shape_across_processes`, `_sync_module_states`) and
c10d's `broadcast_coalesced`: the number of parameters is gathered, their sizes and strides are broadcast, then
parameters and buffers, coalesced by dtype in pieces of 250 MiB, two in flight.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial

import simpy

from ddpsim.bucketing import Parameter
from ddpsim.bucketing.assign import assign_buckets, in_registration_order
from ddpsim.common.errors import InputError
from ddpsim.common.operation import Operation
from ddpsim.common.options.exclusions import refuse_excluded
from ddpsim.common.options.option import check_at_least_one
from ddpsim.prediction.prediction import Prediction
from ddpsim.schedules.named import scheme_named
from ddpsim.simulation.communication import Assumptions
from ddpsim.simulation.contention import UNDISTURBED, Processor
from ddpsim.simulation.engine import run_resolved
from ddpsim.simulation.graph import NodeKind, StepGraph
from ddpsim.simulation.jobs.plans import Plans
from ddpsim.simulation.jobs.representatives import SimulatedRank
from ddpsim.simulation.jobs.simulated import Options
from ddpsim.simulation.rank_builder import RankBuilder
from ddpsim.simulation.rank_config import RankConfiguration
from ddpsim.simulation.record import iterations_of
from ddpsim.simulation.resolve import WARM_UP, ResolvedJob, SimulatedIterations, resolve
from ddpsim.simulation.run import GraphRun
from ddpsim.trace.records import Iteration
from ddpsim.workload import Workload
from ddpsim.workload.iteration_profile import IterationProfile

PIECE_BYTES = 250 << 20
"""Bytes of a coalesced piece: `_broadcast_bucket_size` of torch's DDP."""

IN_FLIGHT = 2
"""Pieces on their way at once: `max_in_flight` of c10d's `broadcast_coalesced`."""

NUMBER_BYTES = 8
"""Counts, sizes and strides travel as int64."""


@dataclass(frozen=True, slots=True)
class ConstructionMessage:
    """A message of the constructor.

    Attributes:
        operation: of the process group.
        size_bytes: as nccl-tests counts.
        tensors: of the state that it carries; 0 of the check.
        finished_s: when all ranks had it, from the call of the constructor.
    """

    operation: Operation
    size_bytes: int
    tensors: int
    finished_s: float = 0.0

    def document(self) -> dict[str, object]:
        """Return the message as JSON values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Construction:
    """What the constructor takes of the slowest rank, from the moment at which all call it.

    Attributes:
        seconds: until rank 0's state is everybody's.
        messages: in order.
    """

    seconds: float
    messages: tuple[ConstructionMessage, ...]

    @property
    def state_bytes(self) -> int:
        """Bytes of parameters and buffers."""
        return sum(message.size_bytes for message in self.messages if message.tensors)


def messages_of(workload: Workload, world_size: int) -> Iterator[ConstructionMessage]:
    """Yield what the constructor sends, in order."""
    yield ConstructionMessage(Operation.ALL_GATHER, NUMBER_BYTES * world_size, 0)
    shapes = sum(2 * len(parameter.shape) for parameter in workload.parameters)
    yield ConstructionMessage(Operation.BROADCAST, NUMBER_BYTES * shapes, 0)
    buffers = [Parameter(buffer.name, buffer.shape, buffer.dtype) for buffer in workload.buffers]
    registered = in_registration_order(workload.all_parameters)
    state = [Parameter(each.name, each.shape, each.dtype) for _, each in registered] + buffers
    for piece in assign_buckets(state, [PIECE_BYTES]):
        yield ConstructionMessage(Operation.BROADCAST, piece.size_bytes, len(piece.parameters))


def construct(job: ResolvedJob) -> Construction:
    """Return what the constructor takes of a job: every rank calls it at once, and nothing else is on the links."""
    planned = list(messages_of(job.workload, job.job.placement.world_size))
    env, graph = simpy.Environment(), StepGraph()
    ends: list[list[int]] = []
    for draw, setting in zip(job.simulated_ranks, job.rank_configs, strict=True):
        to = RankBuilder(graph, setting.execution, setting.costs, setting.enter_s, draw.rank, 1)
        ends.append(_Constructor(to, setting).build(planned))
    shared = job.job.communication(env, job.rank_configs[0].scheduled(0))
    run = GraphRun(env, graph, shared.transfer, shared.collectives.streams_per_group)
    for rank in graph.ranks:
        run.add(rank, [Processor(env, UNDISTURBED, lambda busy: None)])
    times = run.run()
    done = [
        replace(message, finished_s=max(times.end[of_rank[place]] for of_rank in ends))
        for place, message in enumerate(planned)
    ]
    return Construction(max(times.end[rank.last] for rank in graph.ranks), tuple(done))


class _Constructor:
    """Writes the constructor of one rank; returns its collectives."""

    def __init__(self, to: RankBuilder, setting: RankConfiguration) -> None:
        self._to, self._costs = to, setting.costs

    def build(self, planned: list[ConstructionMessage]) -> list[int]:
        """Write all messages: the host waits for each check before the next; two pieces of the state are in flight."""
        sent: list[int] = []
        flying: deque[tuple[int, ConstructionMessage]] = deque()
        for message in planned:
            if len(flying) == IN_FLIGHT:
                self._take_in(*flying.popleft())
            sent.append(self._launch(message))
            if message.tensors:
                flying.append((sent[-1], message))
            else:
                self._to.on_host(NodeKind.WAIT, after=(sent[-1],))
        while flying:
            self._take_in(*flying.popleft())
        self._to.rank.last = self._to.event()
        return sent

    def _launch(self, message: ConstructionMessage) -> int:
        to, costs = self._to, self._costs
        copies_s = costs.copies_s(message.tensors, message.size_bytes) if message.tensors else 0.0
        if to.one_thread:
            to.serve(copies_s + costs.launch_s)
        else:
            to.copies(copies_s)
            to.host(costs.launch_s)
        return to.collective(message.size_bytes, (to.event(),), message.operation, 0)

    def _take_in(self, node: int, message: ConstructionMessage) -> None:
        to, copies_s = self._to, self._costs.copies_s(message.tensors, message.size_bytes)
        if to.one_thread:
            to.on_host(NodeKind.WAIT, after=(node,))
            to.serve(copies_s)
        else:
            to.add_on_stream(NodeKind.WAIT, after=(node,))
            to.copies(copies_s)


STEADY = 0.01
"""By how much of itself an iteration may be longer or shorter and count as steady; chosen by hand: a run's own
iterations differ by more."""

MOST = 1000
"""First iterations; chosen by hand: what is not steady by then does not become so."""


@dataclass(frozen=True, slots=True)
class FirstIteration:
    """One of the first iterations, of the first rank.

    Attributes:
        simulated: it.
        steady_s: what it takes with the buckets of the last one, as long after the first as it takes.
        buckets: that it reduces, or messages of a scheme; 0 where its gradients are kept for a later one.
        rebuilt: whether buckets were rebuilt before it.
    """

    simulated: Iteration
    steady_s: float
    buckets: int
    rebuilt: bool

    @property
    def steady(self) -> bool:
        """Whether it takes what it does once all is steady."""
        return abs(self.simulated.iteration_s / self.steady_s - 1) <= STEADY

    def document(self) -> dict[str, object]:
        """Return the iteration as JSON values."""
        it = self.simulated
        return {
            "index": it.index,
            "iteration_s": it.iteration_s,
            "steady_s": self.steady_s,
            "buckets": self.buckets,
            "rebuilt": self.rebuilt,
            "exposed_comm_s": it.exposed_comm_s,
            "buffer_broadcast_s": it.buffer_broadcast_s,
            "ddp_overhead_s": it.ddp_overhead_s,
        }


@dataclass(frozen=True, slots=True)
class FirstIterations:
    """The beginning of a job.

    Attributes:
        construction: of DDP; None of a scheme that another library carries out, whose own is not known.
        iterations: from the first on.
    """

    construction: Construction | None
    iterations: tuple[FirstIteration, ...]

    @property
    def steady_from(self) -> int | None:
        """The iteration from which all are steady; None where the last is not."""
        late = [each.simulated.index for each in self.iterations if not each.steady]
        begins = late[-1] + 1 if late else 0
        return begins if begins < len(self.iterations) else None

    @property
    def longer_s(self) -> float:
        """By how much all of them together are longer than as many steady ones, the construction left out."""
        return sum(each.simulated.iteration_s - each.steady_s for each in self.iterations)

    def document(self) -> dict[str, object]:
        """Return the key `first` of the `predict` document."""
        construction = self.construction
        constructed = None
        if construction is not None:
            constructed = {
                "construction_s": construction.seconds,
                "state_bytes": construction.state_bytes,
                "messages": [message.document() for message in construction.messages],
            }
        return {
            "construction": constructed,
            "iterations": [each.document() for each in self.iterations],
            "steady_from": self.steady_from,
            "longer_s": self.longer_s,
        }


def check_first(count: int, options: Options) -> None:
    """Refuse first iterations that no steady iteration can be compared with.

    Raises:
        InputError: no count, or options under which no two iterations are alike.
    """
    check_at_least_one("first", count, MOST)
    refuse_excluded(options, "predict --first", beside={"first": True})


def predict_first_iterations(prediction: Prediction, count: int) -> FirstIterations:
    """Return the construction of a predicted job and its first iterations.

    They begin with torch's first buckets, which are rebuilt as torch or the order policy has it, and with an idle
    device. Each is compared with the same recorded iteration in a job that has run for a while with the buckets of the
    last one.

    Args:
        prediction: of the steady state.
        count: iterations, micro-batches.

    Raises:
        InputError: as `check_first`.
    """
    check_first(count, prediction.options)
    if devices := prediction.workload.devices:
        what = f"{prediction.workload.name} has {len(devices)} devices a rank, whose construction is not known"
        raise InputError(what, place="first", remedy="leave it out, or take a step of one device")
    run = prediction.run
    # Messages of the last iteration may still be in flight at its end: one period more lets them finish.
    periods = math.ceil(count / run.options.period) + 1
    options, total = replace(run.options, order=_order(run.options)), periods * run.options.period
    began = run.under(options, extent=SimulatedIterations(0, total, total))
    iterations = iterations_of(began.graph, began.graph.ranks[0], began.times)[:count]
    plans = began.rank_configs[0].plans.plan
    # The steady job that these are compared with has the same recorded iterations in the same order and the buckets of
    # the last one from the start; its warm-up repeats the first iteration's draw (`_shift_draw`).
    shift = WARM_UP * run.options.period
    later = [replace(draw, pace=partial(_shift_draw, draw, shift)) for draw in began.simulated_ranks]
    steady = run_resolved(
        resolve(
            run.workloads,
            run.placement,
            began.job.options,
            Assumptions(run.calibration),
            extent=SimulatedIterations(shift, shift + total, shift + total),
            drawn=(later, Plans([0], [plans(count - 1)])),
        )
    )
    compared = zip(iterations, iterations_of(steady.graph, steady.graph.ranks[0], steady.times)[shift:], strict=False)
    rebuilt = {k for k in range(1, count) if plans(k).groups() != plans(k - 1).groups()}
    first = [FirstIteration(it, then.iteration_s, len(it.buckets), it.index in rebuilt) for it, then in compared]
    constructed_here = scheme_named(run.options.scheme).runner == "ddpexec"
    return FirstIterations(construct(began) if constructed_here else None, tuple(first))


def _order(options: Options) -> str | None:
    """Return when buckets are rebuilt: by `--order`, else once, as torch does, where torch assigns the buckets."""
    fixed = options.plan is not None or options.scheduled or options.assignment_in_force != "rebuilt"
    return options.order if options.order is not None or fixed else "once"


def _shift_draw(draw: SimulatedRank, shift: int, iteration: int) -> IterationProfile:
    return draw.pace(max(0, iteration - shift))
