"""What changed between two traced runs: the step, its parts, its collectives, who is late, how it was run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from math import hypot
from statistics import median

from ddpsim.common.tables import ResultTable, table_of
from ddpsim.common.tables.cells import ms_more, percent
from ddpsim.common.units import MIB, format_count, format_time
from ddpsim.explaining.explanation import CHANGES, MOVED, Explanation, part_name
from ddpsim.explaining.late import FEWEST, SHARE, SURE, standard_error
from ddpsim.explaining.ranks import PARTS, TracedRank
from ddpsim.trace.metrics import seconds_by_part


@dataclass(frozen=True, slots=True)
class TimeChange:
    """One time of a step in both runs, seconds.

    Attributes:
        sure: whether it is more than steps of either run differ by, and at least `SHARE` of the step.
    """

    name: str
    then_s: float
    now_s: float
    sure: bool

    @property
    def change_s(self) -> float:
        """Now less then."""
        return self.now_s - self.then_s

    def document(self) -> dict[str, object]:
        """Return it as JSON values."""
        return {
            "name": self.name,
            "then_s": self.then_s,
            "now_s": self.now_s,
            "change_s": self.change_s,
            "sure": self.sure,
        }


@dataclass(frozen=True, slots=True)
class OperationTotals:
    """All collectives of one operation in a usual step; sums over them.

    Attributes:
        size_bytes: None where a size is not known.
    """

    count: int
    size_bytes: int | None
    wait_s: float
    wire_s: float

    def text(self) -> str:
        """Return how many, and of what size in all, in words."""
        if not self.count:
            return "none"
        size = "" if self.size_bytes is None else f" of {self.size_bytes / MIB:.2f} MiB in all"
        return f"{self.count}{size}"


@dataclass(frozen=True, slots=True)
class RunComparison:
    """A run compared with an earlier one."""

    step: TimeChange
    parts: tuple[TimeChange, ...]
    """Parts of the step that either run has."""
    collectives: tuple[tuple[str, OperationTotals, OperationTotals], ...]
    """By operation, then and now."""
    changed: tuple[str, ...]
    """Sentences on all other differences, how the runs were started first."""

    def verdict(self) -> str:
        """Return in a sentence whether the step is longer, shorter or as long as before."""
        step = self.step
        both = f"{format_time(step.now_s)} now, {format_time(step.then_s)} before"
        if not step.sure:
            return f"the step is as long as before, within what its steps vary by: {both}"
        more = "longer" if step.change_s > 0 else "shorter"
        share = f"{100 * abs(step.change_s) / step.then_s:.1f} %"
        return f"the step is {format_time(abs(step.change_s))} ({share}) {more}: {both}"

    def tables(self) -> dict[str, ResultTable]:
        """Return the step's parts and the collectives in both runs as tables, by titles."""
        return _tables(self)

    def document(self) -> dict[str, object]:
        """Return it as JSON values."""
        return {
            "step": self.step.document(),
            "parts": [part.document() for part in self.parts],
            "collectives": [
                {"operation": name, "then": asdict(then), "now": asdict(now)} for name, then, now in self.collectives
            ],
            "changed": list(self.changed),
            "verdict": self.verdict(),
        }


def compare_runs(now: Explanation, then: Explanation) -> RunComparison:
    """Return what changed from one traced run to another; they may be of other sizes, machines and plans."""
    names = [*PARTS, *sorted({*now.parts, *then.parts} - {*PARTS})]
    pair = now.ranks.ranks[0], then.ranks.ranks[0]
    step_s = then.traced.iteration_s
    slowest = _find_slowest(now), _find_slowest(then)
    step = _change("step", step_s, now.traced.iteration_s, step_s, *(_lengths(rank) for rank in slowest))
    parts = tuple(
        _change(
            name, then.parts.get(name, 0.0), now.parts.get(name, 0.0), step_s,
            *([seconds_by_part(it).get(name, 0.0) for it in rank.iterations] for rank in pair),
        )
        for name in names
    )  # fmt: skip
    return RunComparison(step, parts, tuple(_collectives(now, then)), tuple(_list_changes(now, then)))


def _change(
    name: str, then_s: float, now_s: float, step_s: float, now_each: Sequence[float], then_each: Sequence[float]
) -> TimeChange:
    error_s = hypot(standard_error(now_each), standard_error(then_each))
    enough = min(len(now_each), len(then_each)) >= FEWEST
    return TimeChange(name, then_s, now_s, enough and abs(now_s - then_s) >= max(SHARE * step_s, SURE * error_s))


def _lengths(rank: TracedRank) -> list[float]:
    return [it.iteration_s for it in rank.counted]


def _find_slowest(run: Explanation) -> TracedRank:
    return max(run.ranks.ranks, key=lambda rank: median(_lengths(rank)))


def _collectives(now: Explanation, then: Explanation) -> Iterator[tuple[str, OperationTotals, OperationTotals]]:
    both = _total_by_operation(now), _total_by_operation(then)
    nothing = OperationTotals(0, 0, 0.0, 0.0)
    for name in dict.fromkeys([*both[1], *both[0]]):
        yield name, both[1].get(name, nothing), both[0].get(name, nothing)


def _total_by_operation(run: Explanation) -> dict[str, OperationTotals]:
    sums: dict[str, OperationTotals] = {}
    for split in run.splits:
        name = _OPERATIONS.get(split.operation, split.operation)
        former = sums.get(name, OperationTotals(0, 0, 0.0, 0.0))
        known = former.size_bytes is not None and split.size_bytes is not None
        size = (former.size_bytes or 0) + (split.size_bytes or 0) if known else None
        sums[name] = OperationTotals(
            former.count + 1, size, former.wait_s + split.wait_s, former.wire_s + split.on_wire_s
        )  # fmt: skip
    return sums


_OPERATIONS = {"allreduce": "all_reduce", "allgather": "all_gather", "reducescatter": "reduce_scatter"}
"""torch's names of operations, by those in recorded runs."""


def _list_changes(now: Explanation, then: Explanation) -> Iterator[str]:
    """Yield what else is different, how the runs were made first."""
    first, former = now.ranks.ranks[0], then.ranks.ranks[0]
    if now.ranks.world_size != then.ranks.world_size:
        yield f"{format_count(now.ranks.world_size, 'rank')} instead of {then.ranks.world_size}"
    for what in ("backend", "device", "scheme"):
        if getattr(first, what) != getattr(former, what):
            yield f"{what}: {getattr(first, what)} instead of {getattr(former, what)}"
    for name in sorted({*first.options, *former.options}):
        if (mine := first.options.get(name)) != (theirs := former.options.get(name)):
            yield f"{name}: {mine} instead of {theirs}"
    for name, before, after in _collectives(now, then):
        if (before.count, before.size_bytes) != (after.count, after.size_bytes):
            yield f"{name} a step: {after.text()} instead of {before.text()}"
    called = "torch" in first.options and "torch" in former.options
    if now.buckets and then.buckets and _sizes(now) != _sizes(then) and not called:
        yield f"buckets: {now.buckets}; before {then.buckets}"
    if now.bound != then.bound:
        yield f"bottleneck: {now.bound_text}, before {then.bound_text}"
    yield from _list_late(now, then)
    if (now.link is None) != (then.link is None):
        link = now.link or then.link
        assert link is not None
        yield (
            f"a link is slow now: {link.text()}" if now.link is not None else f"no link is slow now; was {link.text()}"
        )


def _sizes(run: Explanation) -> Counter[tuple[int | None, int]]:
    return Counter((split.size_bytes, len(split.parameters)) for split in run.splits)


def _list_late(now: Explanation, then: Explanation) -> Iterator[str]:
    def who(run: Explanation) -> tuple[int, str] | None:
        return None if run.late is None else (run.late.rank, run.late.cause)

    def describe(run: Explanation) -> str:
        late = run.late
        if late is not None:
            return f"rank {late.rank} by {format_time(late.seconds)} in {late.phase} (cause: {late.cause})"
        return "none" if run.no_verdict_reason is None else "too few steps to tell"

    if who(now) != who(then):
        yield f"late rank: {describe(now)}; before: {describe(then)}"


def _tables(since: RunComparison) -> dict[str, ResultTable]:
    """Return what changed since an earlier run, in the step and in collectives; a `?` marks what may be chance."""
    step_s = since.step.then_s
    changes = [
        {
            "part": part.name if part is since.step else part_name(part.name),
            "now_s": part.now_s,
            "before_s": part.then_s,
            "change": f"{ms_more(part.change_s)}{'' if part.sure or not part.change_s else ' ?'}",
            "of the step before": percent(part.change_s / step_s, True),
        }
        for part in (*since.parts, since.step)
        if part.now_s or part.then_s
    ]
    tables = {CHANGES: table_of("", changes)}
    if since.collectives:
        moved = [
            {
                "collectives": name,
                "count before": before.count,
                "count now": now.count,
                "waiting_before_s": before.wait_s,
                "waiting_now_s": now.wait_s,
                "wire_before_s": before.wire_s,
                "wire_now_s": now.wire_s,
            }
            for name, before, now in since.collectives
        ]
        tables[MOVED] = table_of("", moved)
    return tables
