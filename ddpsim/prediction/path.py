"""What a predicted step waits for, and what more of each resource would save: documents of its longest path."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ddpsim.simulation.record import savings
from ddpsim.trace.records import PathSpan, Trace
from ddpsim.units import format_time


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
        found: dict[str, float] = {}
        for span in trace.path:
            found[span.cause] = found.get(span.cause, 0.0) + span.end_s - span.start_s
        whole = sum(found.values())
        scale = iteration_s / whole if whole else 0.0
        order = sorted(found, key=lambda name: (-found[name], name))
        # Ranks that go their own ways end at moments of their own: the last iteration is that which the path ends with.
        last = min(
            trace.iterations, key=lambda iteration: (abs(iteration.end_s - trace.path[-1].end_s), iteration.rank)
        )
        return cls({name: scale * found[name] for name in order}, trace.path_of(last))

    @classmethod
    def read(cls, document: Mapping[str, object]) -> CriticalPath | None:
        """Return the path that a checked predict document tells; None where it tells none."""
        found = {str(each["cause"]): float(each["seconds"]) for each in _listed(document, "critical_path")}
        names = ("stream", "cause", "start_s", "end_s")
        spans = [PathSpan(**{name: each[name] for name in names}) for each in _listed(document, "critical_path_spans")]
        return cls(found, spans) if found else None

    def entries(self) -> dict[str, object]:
        """Return what documents say of it: `critical_path`, `critical_path_spans`, `sensitivities`."""
        return {
            "critical_path": self.document(),
            "critical_path_spans": [asdict(span) for span in self.spans],
            "sensitivities": self.sensitivities(),
        }

    def document(self) -> list[dict[str, object]]:
        """Return one entry a cause, with its seconds and its share of the iteration."""
        whole = sum(self.seconds.values())
        return [{"cause": name, "seconds": s, "share": s / whole if whole else 0.0} for name, s in self.seconds.items()]

    def sensitivities(self) -> list[dict[str, object]]:
        """Return by resource what one per cent more of it saves of the iteration, the most first."""
        saved = savings(dict(self.seconds))
        order = sorted(saved, key=lambda name: (-saved[name], name))
        return [{"resource": name, "saved_s": saved[name]} for name in order]

    def text(self) -> list[str]:
        """Return two lines: what the step waits for, and what one per cent more of each resource would save."""
        whole = sum(self.seconds.values())
        shares = [f"{name} {100 * s / whole:.1f} %" for name, s in self.seconds.items() if s >= 0.001 * whole]
        saved = {name: s for name, s in savings(dict(self.seconds)).items() if s >= 1e-6 * whole}
        helps = [f"{name} {format_time(saved[name])}" for name in sorted(saved, key=lambda name: -saved[name])]
        lines = [f"the step waits for: {', '.join(shares)}"]
        return [*lines, f"one per cent more of each would save: {', '.join(helps)}"] if helps else lines


def _listed(document: Mapping[str, object], key: str) -> list[Mapping[str, Any]]:
    found = document.get(key)
    return [each for each in found if isinstance(each, Mapping)] if isinstance(found, list) else []
