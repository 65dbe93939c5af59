"""Ring against tree: the cases as read, the score, and how many are right."""

from __future__ import annotations

from dataclasses import replace

import pytest

from studies.accuracy.page import ring_against_tree
from studies.accuracy.residuals import constants
from studies.accuracy.ring_tree import ENOUGH, TABLES_OF_BOTH, Case, Score, Verdict, cases, judged
from studies.accuracy.systems import CITED, LATER, SYSTEMS

CASES = cases()
ONE = Case("owner/name path", "dgx-h100", 1, 8, 2029, 1 << 20, ring_s=1e-4, tree_s=1.04e-4)


def of(machine: str, size_bytes: int, nodes: int = 1) -> list[Case]:
    return [case for case in CASES if (case.machine, case.size_bytes, case.nodes) == (machine, size_bytes, nodes)]


def test_cases_of_tables_and_of_single_figures_are_read_with_their_conditions() -> None:
    counts = {name: sum(case.machine == name for case in CASES) for name in {case.machine for case in CASES}}
    assert counts == {"4xl40s-pcie": 18, "2xl40s-pcie": 18, "a3high": 21, "b200-12nic": 7, "dgx-b200": 8, "dgx-h100": 3}
    assert len(CASES) >= ENOUGH
    assert min(case.size_bytes for case in CASES) == 1024
    (far,) = of("a3high", 1 << 30, nodes=3)
    assert far == Case(
        source="elideng-sg/hypercomputer-internode-deepdive assets/lab-12/ringtree_ring.txt",
        machine="a3high",
        nodes=3,
        ranks=24,
        version=2022,
        size_bytes=1 << 30,
        ring_s=far.ring_s,
        tree_s=far.tree_s,
        simple_only=True,
        site="a3high",
    )
    assert (far.ring_s, far.tree_s) == pytest.approx((0.144533, 0.114453))
    (cards,) = of("4xl40s-pcie", 128 << 20)
    assert (cards.ring_s, cards.tree_s) == pytest.approx((13060.7e-6, 14329.5e-6))
    assert (cards.ranks, cards.version, cards.gpus_per_process, cards.simple_only) == (4, 2029, 4, False)


def test_times_come_from_the_bus_bandwidths_stated() -> None:
    (four,) = of("b200-12nic", 32 << 30, nodes=4)
    expected = [(32 << 30) / (busbw * 1e9) * 2 * 31 / 32 for busbw in (388.94, 191.70)]
    assert [four.ring_s, four.tree_s] == pytest.approx(expected, rel=1e-6)
    assert [len(of("dgx-b200", 16 << 30, nodes)) for nodes in (2, 4, 8, 16, 32, 46)] == [2, 1, 2, 1, 1, 1]


def test_no_case_is_of_a_site_that_its_constants_are_fitted_to() -> None:
    sites = {system.table: system.site for system in (*SYSTEMS, *CITED, *LATER)}
    for pattern, _, _, site in TABLES_OF_BOTH:
        assert {sites[pattern.format(name)] for name in ("ring", "tree")} == {site}
        assert site in constants()
    assert {case.site for case in CASES} == {"", *(site for *_, site in TABLES_OF_BOTH)}


def test_a_simple_only_case_is_predicted_without_the_other_protocols() -> None:
    (small,) = of("a3high", 1024, nodes=3)
    forced, free = small.predicted_s(), replace(small, simple_only=False).predicted_s()
    assert forced[0] > free[0]
    assert forced[1] > free[1]
    assert small.believed_s() > replace(small, simple_only=False).believed_s()


def test_apart_is_more_than_five_percent_of_the_faster() -> None:
    assert not ONE.is_apart
    assert replace(ONE, tree_s=1.06e-4).is_apart
    assert replace(ONE, tree_s=0.95e-4).is_apart


def test_a_score_counts_the_cases_whose_faster_one_is_told() -> None:
    tree_faster = replace(ONE, tree_s=0.5e-4)
    verdicts = [
        Verdict(ONE, ours_s=(1e-4, 2e-4), nccl_s=(2e-4, 1e-4)),
        Verdict(tree_faster, ours_s=(1e-4, 2e-4), nccl_s=(2e-4, 1e-4)),
        Verdict(tree_faster, ours_s=(2e-4, 1e-4), nccl_s=(2e-4, 1e-4)),
    ]
    assert Score.of(verdicts) == Score(cases=3, ours=2, nccl=2)
    assert Score.of([]) == Score(cases=0, ours=0, nccl=0)


def test_the_section_has_a_row_a_source_and_no_share_without_evidence() -> None:
    right = Verdict(ONE, ours_s=(1e-4, 2e-4), nccl_s=(2e-4, 1e-4))
    apart = Verdict(replace(ONE, tree_s=2e-4), ours_s=(2e-4, 1e-4), nccl_s=(1e-4, 2e-4))
    few = "\n".join(ring_against_tree([right] * (ENOUGH - 1)))
    assert "| owner/name | dgx-h100 | 19 | 19 | 0 | 0 | 0 | 0 |" in few
    assert "Insufficient evidence: 19 cases, 20 are wanted." in few
    assert "**all**" not in few
    enough = "\n".join(ring_against_tree([*[right] * (ENOUGH - 1), apart]))
    assert "| **all** | | 20 | 19 (95 %) | 1 (5 %) | 1 | 0 (0 %) | 1 (100 %) |" in enough
    assert "measured 100.0 us and 200.0 us, predicted 200.0 us and 100.0 us" in enough
    assert "Insufficient" not in enough


@pytest.mark.xfail(strict=True, reason="71 of 75: rings and trees of two L40S are predicted within 1 % of each other")
def test_the_faster_one_is_told_in_95_of_100_cases() -> None:
    score = Score.of(judged())
    assert score.ours >= 0.95 * score.cases


def test_the_faster_one_is_told_more_often_than_by_nccls_own_model() -> None:
    score = Score.of(judged())
    assert score.ours >= score.nccl + 0.2 * score.cases
