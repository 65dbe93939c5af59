"""Plans tried in turns: one that joins the race is known to every rank, whichever runs first after it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

from ddpexec.tuning import racing
from ddpexec.tuning.decision import Trials
from ddpexec.tuning.plan import TrialPlan
from ddpexec.tuning.ranking import Candidate, CapRanking
from ddpexec.tuning.wires import Wire
from ddpsim.bucketing import BucketCaps

STEP_S = {1: 1.0, 2: 0.8, 4: 0.79}
"""Seconds of a step by how many buckets a plan has."""


class AloneChannel:
    """A group of one rank, which leads and hears itself."""

    leads = True

    def follow(self, what: Any) -> Any:
        return what

    def gather(self, what: Any) -> list[Any]:
        return [what]


def plan(buckets: int) -> TrialPlan:
    return TrialPlan(BucketCaps(bucket_cap_mb=buckets), tuple((number,) for number in range(buckets)))


def candidate(buckets: int) -> Candidate:
    return Candidate(plan(buckets), step_s=STEP_S[buckets], gain=1 - STEP_S[buckets])


@pytest.mark.parametrize("rounds", [3, 4])
def test_a_neighbour_joins_after_any_number_of_rounds(monkeypatch: pytest.MonkeyPatch, rounds: int) -> None:
    monkeypatch.setattr(racing, "CLEAR_STEPS", rounds * racing.BLOCK)
    ranking = CapRanking(1.0, 1.0, Wire(0.0, 1e-9, ((1, 1.0),), 0.0), (candidate(4), candidate(2)))
    in_force: list[int] = []

    def use(given: TrialPlan) -> int:
        in_force.append(len(given.groups))
        return 0

    switch = SimpleNamespace(use=use, forget=lambda plan: None)
    taken: list[float] = []
    trials = Trials(AloneChannel(), switch, plan(1), [candidate(2)], ranking)  # type: ignore[arg-type]
    running = trials.run(lambda: 100 - len(taken), taken)
    seconds: Any = None
    stays: int | None = None
    while stays is None:
        try:
            running.send(seconds)
        except StopIteration as ended:
            stays = ended.value
        # Alternate a little, so that a spread is known.
        seconds = STEP_S[in_force[-1]] * (1 + 0.001 * (len(taken) % 2))
    assert [len(each.groups) for each in trials.plans] == [1, 2, 4]
    assert in_force.count(4) > 0
    assert in_force[-1] == len(trials.plans[stays].groups)
