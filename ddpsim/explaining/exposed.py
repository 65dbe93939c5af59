"""What collectives that are not DDP's cost a step: the time in which they run and the rank computes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ddpsim.trace.metrics import Interval, intersection, union, without

Exposed = Mapping[str, Sequence[Interval]]
"""By operation, disjoint ascending stretches of a step; those of two operations are disjoint too."""


def find_exposed(spans: Iterable[tuple[str, float, float]], busy: Sequence[Interval]) -> dict[str, list[Interval]]:
    """Return when collectives were exposed, by operation.

    Args:
        spans: operation, start and end of each collective; what two do at once counts for the operation that comes
            first by name.
        busy: disjoint ascending stretches in which the rank computed, or waited for DDP's collectives.
    """
    by_operation: dict[str, list[Interval]] = {}
    for operation, start_s, end_s in spans:
        if end_s > start_s:
            by_operation.setdefault(operation, []).append((start_s, end_s))
    counted, found = list(busy), {}
    for operation, each in sorted(by_operation.items()):
        alone = without(union(each), counted)
        if alone:
            found[operation] = alone
            counted = union([*counted, *alone])
    return found


def blocked_s(exposed: Exposed, start_s: float, end_s: float) -> float:
    """Return how long of a stretch a rank was held up."""
    return sum(intersection([(start_s, end_s)], each) for each in exposed.values()) if end_s > start_s else 0.0


def exposed_parts(exposed: Exposed, start_s: float, end_s: float) -> dict[str, float]:
    """Return the parts of a step that collectives which are not DDP's have, by part's name."""
    return {f"{operation}_s": blocked_s({operation: each}, start_s, end_s) for operation, each in exposed.items()}
