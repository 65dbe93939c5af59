"""After how many iterations a trace repeats: micro-batches of a step, steps of a scheme; and what its options say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeVar

from ddpsim.trace.records import Trace


class _Stepping(Protocol):
    @property
    def stepped(self) -> bool: ...


Iterated = TypeVar("Iterated", bound=_Stepping)
"""A record of one iteration that says whether a step of the optimizer ends it."""


def _options(trace: Trace) -> Mapping[str, object]:
    """Return the options that the provenance of `trace` has; none where it has none."""
    options = trace.provenance.get("options")
    return options if isinstance(options, Mapping) else {}


def leaves_layers_out(trace: Trace) -> bool:
    """Return whether iterations of `trace` leave layers out, as its provenance says."""
    drop = _options(trace).get("drop")
    return isinstance(drop, Mapping) and any(drop.values())


def follows_schedule(trace: Trace) -> bool:
    """Return whether a schedule took DDP's place, as the provenance of `trace` says: ranks then wait in its order."""
    options = _options(trace)
    return options.get("scheme", "ddp") != "ddp" or options.get("overlap", "on") != "on"


def fused_by_times(trace: Trace) -> bool:
    """Return whether which gradients share a message went by when they came, as in Horovod's cycles."""
    return str(_options(trace).get("scheme")).partition(":")[0] == "horovod"


def period_steps(trace: Trace) -> int:
    """Return the optimizer's steps after which what `trace` sends repeats, as its provenance says: 1 of most."""
    steps = _options(trace).get("steps", 1)
    return steps if isinstance(steps, int) and steps > 0 else 1


def cycles(iterations: Sequence[Iterated], steps: int = 1) -> list[list[Iterated]]:
    """Group one rank's iterations into cycles that end with a step of the optimizer; an unfinished one is left out.

    Without any step each iteration is a cycle of its own.

    Args:
        steps: of the optimizer, that a cycle has; where there are not so many, one has all.
    """
    if not any(it.stepped for it in iterations):
        return [[it] for it in iterations]
    if steps > 1:
        singles = cycles(iterations)
        steps = min(steps, len(singles))
        begins = range(0, len(singles) - steps + 1, steps)
        return [[it for single in singles[begin : begin + steps] for it in single] for begin in begins]
    groups: list[list[Iterated]] = [[]]
    for it in iterations:
        groups[-1].append(it)
        if it.stepped:
            groups.append([])
    whole = groups[:-1]
    longest = max(len(group) for group in whole)
    return [group for group in whole if len(group) == longest]


def sync_length(trace: Trace) -> int:
    """Return of how many iterations one reduces gradients: a cycle's, where its last alone does."""
    cycle = cycles(trace.of_rank(trace.ranks[0]))[0]
    return len(cycle) if sum(it.synced for it in cycle) <= 1 else 1
