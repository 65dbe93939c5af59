"""Which of the predicted plans are worth a trial, and which lie next to one that has won. No torch is needed."""

from __future__ import annotations

from collections.abc import Collection

from ddpexec.tuning.plan import DDP, Groups, TrialPlan
from ddpexec.tuning.ranking import Candidate, CapRanking
from ddpsim.planning.worth import may_gain

TRIED = 4
"""Plans that are tried beside the present one, before neighbours of one that wins."""
NEAR = 0.04
"""Share of the step by which a neighbour may be predicted slower than the best and be tried: predictions of single caps
are off by that much from each other (`python -m studies.tuning`)."""


def choose(ranking: CapRanking, present: TrialPlan) -> list[Candidate]:
    """Return the plans worth a trial, the best predicted first: those whose band reaches a gain of 1 %.

    Tried are the best two, and by DDP the best with more buckets than the present plan and with fewer: what a
    prediction has wrong of latency or of bandwidth moves all caps of one side.
    """
    others = [each for each in ranking.candidates if each.plan.key != present.key]
    by_ddp = [each for each in others if each.plan.scheme == DDP]
    smaller = [each for each in by_ddp if len(each.groups) > len(present.groups)]
    larger = [each for each in by_ddp if len(each.groups) < len(present.groups)]
    picked = (*others[:2], *smaller[:1], *larger[:1])
    worth = {each.plan.key: each for each in picked if may_gain(each.gain_high or 0.0)}
    return sorted(worth.values(), key=lambda each: -each.gain)[:TRIED]


def neighbours(ranking: CapRanking, winner: Candidate, tried: Collection[tuple[str, Groups]]) -> list[Candidate]:
    """Return the plans next to one that has won, of its scheme with more buckets and with fewer, that were not tried.

    Args:
        tried: the keys of those that were.
    """
    best, scheme = max(each.gain for each in ranking.candidates), winner.plan.scheme
    near = [each for each in ranking.candidates if each.gain >= best - NEAR and each.plan.scheme == scheme]
    count = len(winner.groups)
    more = sorted((each for each in near if len(each.groups) > count), key=lambda each: len(each.groups))
    fewer = sorted((each for each in near if len(each.groups) < count), key=lambda each: -len(each.groups))
    found = [each for each in (*more[:1], *fewer[:1]) if each.plan.key not in tried]
    return sorted(found, key=lambda each: -each.gain)
