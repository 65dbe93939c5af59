"""What order policies would have done on recorded arrivals."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ddpsim.bucketing.order.arrivals import Arrivals
from ddpsim.bucketing.order.policy import Decision, OrderPolicy

Assign = Callable[[Sequence[int]], Sequence[Sequence[int]]]


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """A rebuild that a policy asked for: before which iteration, in which order."""

    iteration: int
    order: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class OrderExchange:
    """When ranks exchanged what they expect: before which iteration, and what came of it."""

    iteration: int
    decision: Decision


def replay(
    arrivals: Sequence[Arrivals],
    policies: Sequence[OrderPolicy],
    groups: Sequence[Sequence[int]],
    assign: Assign,
) -> Iterator[Rebuilt]:
    """Yield the rebuilds that policies would have asked for on recorded arrivals; see `conferences`."""
    for conference in conferences(arrivals, policies, groups, assign):
        if (order := conference.decision.order) is not None:
            yield Rebuilt(conference.iteration, order)


def conferences(
    arrivals: Sequence[Arrivals],
    policies: Sequence[OrderPolicy],
    groups: Sequence[Sequence[int]],
    assign: Assign,
) -> Iterator[OrderExchange]:
    """Yield every conference that policies would have held on recorded arrivals.

    Args:
        arrivals: of every rank, `policies[rank]` sees those of its rank; iterations without all ranks are passed over.
        policies: one a rank, alike.
        groups: buckets in force at first.
        assign: buckets for an order, such as `lambda order: rebuilt_plan(parameters, caps, order).groups()`.

    Raises:
        InputError: a predictor that failed.
    """
    known = {(a.iteration, a.rank): a for a in arrivals}
    for iteration in sorted({iteration for iteration, _ in known}):
        if any((iteration, rank) not in known for rank in range(len(policies))):
            continue
        for rank, policy in enumerate(policies):
            policy.observe(known[iteration, rank])
            coming = known.get((iteration + 1, rank))
            policy.coming(None if coming is None else coming.context)
        if policies[0].due():
            decision = _decide(policies, groups)
            if decision.order is not None:
                groups = assign(decision.order)
            yield OrderExchange(iteration + 1, decision)


def _decide(policies: Sequence[OrderPolicy], groups: Sequence[Sequence[int]]) -> Decision:
    first, *others = policies
    decision = first.decide(groups, lambda mine: [mine, *(policy.expected() for policy in others)])
    for policy in others:
        policy.follow(decision)
    return decision
