"""The best way to train on one machine: every candidate is ranked by a quick simulation, the leaders get their bands.

Branch and bound: `candidates.py` lists the candidates with a lower bound of each step, the seconds that it computes
whatever it sends. They are simulated in waves in the order of that bound, and those whose bound is above the step of
the last leader are never simulated. `quick_step.py` simulates one just far enough to rank it; only leaders get a row of
a plan, with a band. Start at `SearchQuestion.rank`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from ddpsim.bucketing import BucketCaps
from ddpsim.collectives.calibration import Calibration
from ddpsim.common.errors import InputError
from ddpsim.common.units import GIB, format_count
from ddpsim.common.workers.crew import WorkerPool
from ddpsim.planning.best_buckets import best_buckets
from ddpsim.planning.candidates import (
    MAY_NOT_FIT,
    NOT_FITTING,
    NOT_TOGETHER,
    SLOWER,
    CandidateRun,
    RuledOutCounts,
    SearchCandidate,
    SearchSpace,
    candidates_of,
    global_batch_size_of,
    plain_ddp_of,
)
from ddpsim.planning.quick_step import QuickStep, ask_quick_step
from ddpsim.planning.search_report import SearchReport, SearchRow
from ddpsim.prediction.answers import Answers, Compute, computing, name_job
from ddpsim.prediction.arguments import take_names
from ddpsim.prediction.memory import Memory
from ddpsim.prediction.models import Model
from ddpsim.simulation.job import Job
from ddpsim.simulation.jobs.simulated import Options
from ddpsim.simulation.run import Progress
from ddpsim.topology.cluster import Topology
from ddpsim.topology.placement import Placement, place
from ddpsim.workload import Workload

LEADERS = 5
"""Candidates that surely fit, or are not judged, that get a band and a row."""

IN_DOUBT = 2
"""Candidates that may not fit and are faster than all of those that get a band and a row; chosen by hand."""

_AT_ONCE = 16
"""Candidates of a wave. It does not depend on the number of workers, so that every machine leaves out the same ones."""

_SAME_MESSAGES = {"zero2": "zero1"}
"""Schemes that send the same messages as another and need less memory: its step is theirs, and is not simulated again
(`ddpsim/schedules/schemes.py`)."""


@take_names
def search(
    workload: Workload | str | Model,
    topology: Topology,
    *,
    nodes: int | None = None,
    space: SearchSpace | None = None,
    caps: Sequence[BucketCaps] | None = None,
    options: Options | None = None,
    gpus_per_node: int | None = None,
    calibration: Calibration | None = None,
    progress: Progress | None = None,
    executor: Executor | WorkerPool | None = None,
    cache: str | Path | None = None,
) -> SearchReport:
    """Find the schemes, groups that share layers, micro-batches and buckets that make a step of given samples shortest.

    Args:
        workload: put on the machine's own GPU, as `Model` does.
        space: what is looked over; None are sensible values.
        caps: tried beside torch's default; None are some from 5 MiB to one bucket.
        options: of the job, all that is not looked over; `memory_limit_bytes` decides what fits.
        progress: called with (candidates done, candidates in all).
        executor: where they are computed; None is here, one by one. The rows are the same.
        cache: file in which answers are kept, and found again.

    Raises:
        InputError: no candidate fits (the least need is named), or none divides ranks, layers and samples; and as
            `predict`.
    """
    question = SearchQuestion(
        Model.of(workload, options),
        topology,
        nodes,
        options=options or Options(),
        space=space or SearchSpace(),
        caps=caps,
        gpus_per_node=gpus_per_node,
        calibration=calibration,
    )
    with computing(executor, cache) as compute:
        return question.rank(compute, progress).report(compute)


@dataclass(frozen=True, slots=True)
class Leader:
    """A candidate that is to get a row.

    Attributes:
        job: that of its row.
        caps: tried in it beside torch's default.
    """

    candidate: SearchCandidate
    job: Job
    caps: tuple[BucketCaps, ...] = ()

    def same(self, other: Leader) -> bool:
        """Whether another has the same row."""
        return (self.candidate, self.caps) == (other.candidate, other.caps)


def leader_row(answers: Answers, leader: Leader) -> SearchRow:
    """Return the row of a leader."""
    return SearchRow(leader.candidate, best_buckets(answers, leader.job, leader.caps))


def _name_leader(leader: Leader) -> str:
    return name_job(leader.job)


def _name_candidate(item: tuple[Job, float]) -> str:
    return f"a candidate on {name_job(item[0])}"


@dataclass(frozen=True, slots=True)
class RankedCandidates:
    """The result of a quick look at all candidates: leaders, faster ones that may not fit, and why others are neither.

    Attributes:
        plain: DDP at torch's defaults, which the leaders are held against; where that cannot be, why.
        plain_among: whether that is a candidate.
    """

    question: SearchQuestion
    leaders: tuple[Leader, ...]
    plain: Leader | InputError
    candidates: int
    simulated: int
    ruled_out: RuledOutCounts
    plain_among: bool

    def _rows(self) -> list[Leader]:
        """Return all that get a row: plain DDP is the last, where no leader is just that."""
        plain = self.plain
        if isinstance(plain, InputError) or any(plain.same(leader) for leader in self.leaders):
            return list(self.leaders)
        return [*self.leaders, plain]

    def report(self, compute: Compute) -> SearchReport:
        """Return the report of the leaders' rows, the fastest first."""
        leaders = self._rows()
        of = list(zip(leaders, compute(leader_row, leaders, _name_leader), strict=True))
        rows = sorted((row for _, row in of[: len(self.leaders)]), key=lambda row: row.step_s[0])
        question, plain = self.question, self.plain
        return SearchReport(
            question.model.source.name,
            tuple(row for row in rows if not row.may_not_fit),
            global_batch_size_of(question.model, question.placement, question.options, question.space),
            self.candidates,
            self.simulated,
            self.ruled_out.list_all(),
            str(plain) if isinstance(plain, InputError) else next(row for each, row in of if plain.same(each)),
            self.plain_among,
            tuple(row for row in rows if row.may_not_fit),
        )


@dataclass(frozen=True, slots=True)
class SearchQuestion:
    """What a search is of: a model on one machine and node count.

    Attributes:
        placement: of all ranks.
    """

    model: Model
    topology: Topology
    nodes: int | None
    options: Options = field(default_factory=Options, kw_only=True)
    space: SearchSpace = field(default_factory=SearchSpace, kw_only=True)
    caps: Sequence[BucketCaps] | None = field(default=None, kw_only=True)
    gpus_per_node: int | None = field(default=None, kw_only=True)
    calibration: Calibration | None = field(default=None, kw_only=True)
    placement: Placement = field(init=False)

    def __post_init__(self) -> None:
        if self.model.source.devices:
            what = (
                f"{self.model.name} has {len(self.model.source.devices)} devices a rank, over which no plan is searched"
            )
            raise InputError(what, place="search", remedy="leave it out, or search over its step of one device")
        object.__setattr__(self, "placement", place(self.topology, self.nodes, self.gpus_per_node))

    def __str__(self) -> str:
        return f"{self.model.name} on {self.topology.name}, {format_count(self.placement.nodes, 'node')}"

    def rank(self, compute: Compute, progress: Progress | None = None) -> RankedCandidates:
        """Return the leaders of all candidates.

        Args:
            compute: who simulates.
            progress: called with (candidates done, candidates in all).

        Raises:
            InputError: as `search`.
        """
        ruled_out = RuledOutCounts()
        runs = candidates_of(self.model, self.topology, self.placement, self.options, self.space, ruled_out)
        ranking = _Ranking(runs, ruled_out, progress or (lambda *_: None))
        known = dict[SearchCandidate, QuickStep]()
        while wave := ranking.next_wave():
            under_way = len(wave)
            # First the candidates whose step no other has, then the rest, most of which are known by then.
            for alike in (False, True):
                left = [run for run in wave if (run.candidate.scheme in _SAME_MESSAGES) is alike]
                known |= {run.candidate: same for run in left if (same := _step_of_other(run, known)) is not None}
                left = [run for run in left if run.candidate not in known]
                items = [(self._job(run), ranking.beat_s) for run in left]
                look, show = partial(ask_quick_step, caps=self.caps), partial(ranking.show_some, under_way)
                steps = compute(look, items, _name_candidate, progress=show)
                known |= dict(zip((run.candidate for run in left), steps, strict=True))
                under_way -= len(left)
            for run in wave:
                ranking.take(run, known[run.candidate])
        if not ranking.found:
            raise ranking.make_error(self.options.memory_limit_bytes)
        # Leaders are what surely fits. Faster ones that may not fit get rows too, a few, apart from these.
        shown, least_s = ranking.sure[:LEADERS], ranking.sure[0][0] if ranking.sure else float("inf")
        faster = [each for each in ranking.found if _in_doubt(each[2]) and each[0] < least_s]
        leaders = [
            Leader(run.candidate, self._job(run), () if quick.caps is None else (quick.caps,))
            for _, run, quick in shown + faster[:IN_DOUBT]
        ]
        ruled_out.add(MAY_NOT_FIT, len(faster[IN_DOUBT:]))
        ruled_out.add(SLOWER, len(ranking.found) - len(shown) - len(faster) + ranking.unsimulated)
        count, simulated = ruled_out.total + len(leaders), len(ranking.found)
        plain = self._plain_ddp(compute)
        among = isinstance(plain, Leader) and any(run.candidate == plain.candidate for run in runs)
        return RankedCandidates(self, tuple(leaders), plain, count, simulated, ruled_out, among)

    def _plain_ddp(self, compute: Compute) -> Leader | InputError:
        """Return DDP at torch's defaults, whatever is looked over, and whether it fits or not."""
        try:
            run = plain_ddp_of(self.model, self.topology, self.placement, self.options, self.space)
        except InputError as error:
            return error
        leader = Leader(run.candidate, self._job(run))
        look = partial(ask_quick_step, caps=())
        [quick] = compute(look, [(leader.job, 0.0)], _name_candidate, progress=lambda *_: None)
        return quick.error or leader

    def _job(self, run: CandidateRun) -> Job:
        return Job(run.workload, self.topology, self.nodes, self.gpus_per_node, run.options, self.calibration)


def _step_of_other(run: CandidateRun, known: Mapping[SearchCandidate, QuickStep]) -> QuickStep | None:
    """Return the quick step of the candidate with the same messages, where it fits: this one needs less memory."""
    scheme = _SAME_MESSAGES.get(run.candidate.scheme)
    other = None if scheme is None else known.get(replace(run.candidate, scheme=scheme))
    return None if other is None or other.step_s is None else other


@dataclass(slots=True)
class _Ranking:
    """The candidates that are left, and those that were simulated, the fastest first.

    Attributes:
        unsimulated: how many were left out because they compute longer than the leaders' steps take.
        nearest: the least memory of those that do not fit, and whose it is.
    """

    left: list[CandidateRun]
    ruled_out: RuledOutCounts
    show: Progress
    found: list[tuple[float, CandidateRun, QuickStep]] = field(default_factory=list)
    unsimulated: int = 0
    nearest: tuple[Memory, SearchCandidate] | None = None
    _total: int = field(init=False)

    def __post_init__(self) -> None:
        self.left.sort(key=lambda run: run.least_s)
        self._total = len(self.left)
        self.show(0, self._total)

    @property
    def sure(self) -> list[tuple[float, CandidateRun, QuickStep]]:
        """Those found that surely fit, or are not judged."""
        return [each for each in self.found if not _in_doubt(each[2])]

    @property
    def beat_s(self) -> float:
        """The step of the last leader; without end as long as there are not so many."""
        sure = self.sure
        return sure[LEADERS - 1][0] if len(sure) >= LEADERS else float("inf")

    def next_wave(self) -> list[CandidateRun]:
        """Return the candidates to be simulated next; none where none that is left can be a leader."""
        able = [run for run in self.left if run.least_s < self.beat_s]
        self.unsimulated += len(self.left) - len(able)
        wave, self.left = able[:_AT_ONCE], able[_AT_ONCE:]
        self.show_some(len(wave))
        return wave

    def show_some(self, under_way: int, done: int = 0, _total: int = 0) -> None:
        """Show how far the search is when so many of those of a wave that are under way are done."""
        self.show(self._total - len(self.left) - under_way + done, self._total)

    def take(self, run: CandidateRun, quick: QuickStep) -> None:
        """Take in what a quick simulation says of a candidate."""
        if quick.error is not None:
            self.ruled_out.add(NOT_TOGETHER, 1, quick.error)
        elif quick.step_s is None:
            assert quick.memory is not None
            self.ruled_out.add(NOT_FITTING)
            if self.nearest is None or quick.memory.least_bytes < self.nearest[0].least_bytes:
                self.nearest = quick.memory, run.candidate
                self.ruled_out.explain(NOT_FITTING, _describe_need(*self.nearest))
        else:
            self.found.append((quick.step_s, run, quick))
            self.found.sort(key=lambda each: each[0])

    def make_error(self, limit_bytes: float | None) -> InputError:
        """Return why there is no leader: what comes nearest to fitting, or what ruled out the first candidate."""
        if self.nearest is None:
            return self.ruled_out.first or InputError("nothing is given", place="schemes", remedy="give at least one")
        memory, _ = self.nearest
        room = f"{(memory.capacity_bytes or 0) / GIB:.1f} GiB"
        what = f"nothing that was looked over fits {room} of a GPU: {_describe_need(*self.nearest)}"
        remedy = "allow more, or look over more nodes, ranks that share layers, or schemes that shard more"
        return InputError(what, place=None if limit_bytes is None else "memory_limit", remedy=remedy)


def _in_doubt(quick: QuickStep) -> bool:
    return quick.memory is not None and quick.memory.in_doubt


def _describe_need(memory: Memory, candidate: SearchCandidate) -> str:
    return f"the least is {memory.least_bytes / GIB:.1f} GiB, of {candidate}"
