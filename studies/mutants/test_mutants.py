from __future__ import annotations

import ast

from studies.mutants.__main__ import ROOMS, ROOT, table
from studies.mutants.mutations import drawn, mutants_of, mutated

SOURCE = """
def least(values: list[int], bound: int = 3) -> int | None:
    if not values or len(values) < bound:
        return None
    return min(values) + 1
"""


def test_each_mutant_is_another_module_that_can_be_read() -> None:
    found = list(mutants_of("m.py", SOURCE))
    texts = {mutated(SOURCE, mutant) for mutant in found}
    assert len(texts) == len(found) == 7
    assert ast.unparse(ast.parse(SOURCE)) not in texts
    assert any("len(values) <= bound" in text for text in texts)


def test_the_same_hundred_are_drawn_each_time_and_counted() -> None:
    mutants = drawn(ROOT, ROOMS, 100, 1)
    assert mutants == drawn(ROOT, ROOMS, 100, 1)
    assert len(set(mutants)) == 100
    found = {str(each): "test" if number else "nothing" for number, each in enumerate(mutants)}
    assert table(found, mutants).splitlines()[-1] == "all | 100 | 99 | 99"
