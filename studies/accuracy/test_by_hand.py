"""The figures behind constants chosen by hand: each is moved alone, and put back."""

from __future__ import annotations

from ddpsim.collectives.nccl import transport
from studies.accuracy import by_hand
from studies.accuracy.systems import CITED, load

TABLE = next(system for system in CITED if system.name == "crusoe_2node_16xA100_ib")


def test_a_constant_is_held_at_a_factor_and_put_back() -> None:
    before = transport._SHARPNESS
    with by_hand.held(transport, "_SHARPNESS", 0.5):
        assert before / 2 == transport._SHARPNESS
    assert before == transport._SHARPNESS


def test_each_constant_moves_the_figure_it_is_judged_by() -> None:
    samples = [load(TABLE)]
    for constants, figure in ((by_hand.MODEL, by_hand.errors), (by_hand.DOUBTS, by_hand.width)):
        found = set()
        for module, name in constants:
            with by_hand.held(module, name, 0.5):
                found.add(figure(samples))
        assert found - {figure(samples)}
