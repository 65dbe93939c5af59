"""The cases that `make test` leaves for the time that they take."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

from tests.leaving import APART, LIST, WHOLE, chosen, further, listed

ROOT = Path(__file__).parent.parent


@cache
def functions(file: str) -> set[str]:
    if not (ROOT / file).exists():
        return set()
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_the_list_is_of_tests_that_are_there() -> None:
    """All but a few: a test that is renamed or gone leaves a line that does no harm."""
    gone = [case for case in listed() if _name(case) not in functions(case.partition("::")[0])]
    assert len(gone) <= len(listed()) / 10, f"measure {LIST.name} anew (tests/leaving.py): {gone[:3]} are gone"


def _name(case: str) -> str:
    return case.partition("::")[2].partition("[")[0]


@pytest.fixture
def seconds() -> dict[str, float]:
    """Ninety cheap cases, and ten that take from one to ten seconds: three of one test, one alone of the model."""
    cases = {f"tests/test_a.py::test_cheap[{number}]": 0.01 for number in range(90)}
    cases |= {f"tests/test_a.py::test_alone_{number}": float(number) for number in range(1, 7)}
    cases |= {f"tests/test_b.py::test_several[{number}]": float(number) for number in (7, 8, 9)}
    return cases | {f"{WHOLE[0]}test_c.py::test_model": 10.0, "imports and collection": 99.0}


def test_the_costliest_cases_are_left_until_enough_are_kept(seconds: dict[str, float]) -> None:
    left = chosen(seconds, 0.95)
    assert [left[case] for case in left] == [9.0, 8.0, 6.0, 5.0, 4.0]
    assert chosen(seconds, 1.0) == {}


def test_a_test_keeps_its_cheapest_case_and_the_model_every_test(seconds: dict[str, float]) -> None:
    left = chosen(seconds, 0.9)
    assert {"tests/test_b.py::test_several[9]", "tests/test_b.py::test_several[8]"} <= left.keys()
    assert "tests/test_b.py::test_several[7]" not in left
    assert not any(case.startswith(WHOLE) for case in left)


def test_what_takes_little_time_is_kept_however_many_there_are() -> None:
    assert chosen({f"tests/test_a.py::test_{number}": 0.1 for number in range(10)}, 0.0) == {}


def test_of_several_cases_the_costly_are_further_ones_while_another_stays(seconds: dict[str, float]) -> None:
    several = {case for case in seconds if "test_several" in case}
    costly = several - {"tests/test_b.py::test_several[7]"}
    assert further(seconds, costly | {"tests/test_a.py::test_alone_6"}) == costly
    assert further(seconds, several) == set()
    blocks = {f"{APART[0]}::test_page[{number}]" for number in range(2)}
    assert further(blocks, {f"{APART[0]}::test_page[1]"}) == set()
