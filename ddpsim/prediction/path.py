"""What a predicted step waits for, and what would help most: documents of its longest path and of its derivatives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from ddpsim.common.strict import list_mappings
from ddpsim.common.tables import ResultTable, break_line
from ddpsim.common.units import format_time
from ddpsim.trace.records import PathSpan, Trace

_MATTERS = 1e-6
"""Share of a step from which on what a resource saves is printed."""


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """What one per cent more of a resource saves.

    Attributes:
        resource: computation, the host, latency, or links of a kind: a rate that much higher, a time that much shorter.
        saved_s: of the iteration; below 0 where the step takes longer.
        retimed: whether it was found by retiming the run's graph rather than by a simulation.
    """

    resource: str
    saved_s: float
    retimed: bool

    @classmethod
    def read(cls, document: Mapping[str, object]) -> tuple[Sensitivity, ...]:
        """Return those of a checked predict document, the most first."""
        entries = list_mappings(document.get("sensitivities"))
        return tuple(cls(each["resource"], each["saved_s"], each.get("retimed", False)) for each in entries)

    def document(self) -> dict[str, object]:
        """Return it as JSON values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class CriticalPath:
    """The longest path of an iteration: each moment of it is spent on what everything else waited for then.

    Attributes:
        seconds: by cause, the most first; they sum to the iteration.
        spans: of the last iteration, in seconds from its start.
    """

    seconds: Mapping[str, float]
    spans: Sequence[PathSpan] = ()

    @classmethod
    def of(cls, trace: Trace, iteration_s: float) -> CriticalPath:
        """Return the path of an iteration of `iteration_s`, in the mean over those of a simulated trace."""
        by_cause: dict[str, float] = {}
        for span in trace.path:
            by_cause[span.cause] = by_cause.get(span.cause, 0.0) + span.end_s - span.start_s
        # The path crosses all simulated iterations; scaled, its causes sum to one.
        whole = sum(by_cause.values())
        scale = iteration_s / whole if whole else 0.0
        order = sorted(by_cause, key=lambda name: (-by_cause[name], name))
        # Ranks of asynchronous schemes end at moments of their own: the last iteration is that which the path ends
        # with.
        last = min(
            trace.iterations, key=lambda iteration: (abs(iteration.end_s - trace.path[-1].end_s), iteration.rank)
        )
        return cls({name: scale * by_cause[name] for name in order}, trace.path_of(last))

    @classmethod
    def read(cls, document: Mapping[str, object]) -> CriticalPath | None:
        """Return the path of a checked predict document; None where it has none."""
        causes, listed = (list_mappings(document.get(key)) for key in ("critical_path", "critical_path_spans"))
        seconds = {str(each["cause"]): float(each["seconds"]) for each in causes}
        names = ("stream", "cause", "start_s", "end_s")
        spans = [PathSpan(**{name: each[name] for name in names}) for each in listed]
        return cls(seconds, spans) if seconds else None

    def entries(self) -> dict[str, object]:
        """Return its keys of a document: `critical_path`, `critical_path_spans`."""
        return {
            "critical_path": self.document(),
            "critical_path_spans": [asdict(span) for span in self.spans],
        }

    def document(self) -> list[dict[str, object]]:
        """Return one entry a cause, with its seconds and its share of the iteration."""
        whole = sum(self.seconds.values())
        return [{"cause": name, "seconds": s, "share": s / whole if whole else 0.0} for name, s in self.seconds.items()]

    def text(self, lead: str = "") -> str:
        """Return the line on the critical path, behind `lead`, broken where it is too long."""
        whole = sum(self.seconds.values())
        shares = [f"{name} {100 * s / whole:.1f} %" for name, s in self.seconds.items() if s >= 0.001 * whole]
        return break_line(f"{lead}critical path of the step: {', '.join(shares)}")


def format_helps_most(
    sensitivities: Sequence[Sensitivity], iteration_s: float, steps: int = 1, where: str = ""
) -> list[str]:
    """Return the table of what would help most, as lines; none where nothing would.

    Args:
        sensitivities: the most first.
        iteration_s: that they are saved of.
        steps: iterations of a step of the optimizer, which times are printed of.
        where: under which condition, if any.
    """
    shown = sensitivity_table(sensitivities, iteration_s, steps)
    title = f"what would help most: time saved per step by each resource being one per cent faster{where}:"
    return [title, *shown.text("  ").splitlines()] if shown.rows else []


def sensitivity_table(sensitivities: Sequence[Sensitivity], iteration_s: float, steps: int = 1) -> ResultTable:
    """Return what one per cent more of each resource saves, of those that matter, the most first.

    Args:
        sensitivities, iteration_s, steps: as those of `format_helps_most`.
    """
    rows = (
        (each.resource, format_time(steps * each.saved_s), f"{100 * each.saved_s / iteration_s:.2f} %")
        for each in sensitivities
        if each.saved_s >= _MATTERS * iteration_s
    )
    return ResultTable(("resource", "saves", "of the step"), tuple(rows))
