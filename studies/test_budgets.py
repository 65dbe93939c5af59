"""Budgets of rooms fall, move between rooms, and rise with a reason alone."""

from __future__ import annotations

import ast
from pathlib import Path

from studies.budgets import Budgets, total
from studies.size import ROOT, count_functions, pydantic_models, records, room_of

HERE = {"a": {"files": 3, "functions": 10}, "b": {"files": 2, "functions": 5}}


def test_what_is_above_its_budget_is_named_with_what_it_may_be() -> None:
    budgets = Budgets.begin(HERE)
    assert not list(budgets.excesses(HERE))
    [line] = budgets.excesses({**HERE, "a": {"files": 4, "functions": 9}})
    assert line == "a: files are 4, and may be 3: 1 too many"
    assert list(budgets.excesses({**HERE, "new": {"files": 1, "functions": 0}}))


def test_a_budget_falls_to_what_is_there_and_a_room_that_is_gone_goes() -> None:
    budgets = Budgets.begin(HERE)
    budgets.lower({"a": {"files": 1, "functions": 12}})
    assert budgets.rooms == {"a": {"files": 1, "functions": 10}}


def test_figures_move_with_files_and_the_sum_stays() -> None:
    budgets = Budgets.begin(HERE)
    after = {"a": {"files": 1, "functions": 4}, "b": {"files": 4, "functions": 12}}
    budgets.move("a", "b", after)
    assert budgets.rooms == {"a": {"files": 1, "functions": 4}, "b": {"files": 4, "functions": 11}}
    assert total(budgets.rooms) == total(HERE)
    assert [line.partition(":")[0] for line in budgets.excesses(after)] == ["b"]


def test_a_raise_stays_in_the_file_with_its_reason_and_no_other_is_taken(tmp_path: Path) -> None:
    budgets = Budgets.begin(HERE)
    budgets.raise_("a", "files", 2, 'a "feature" of the issue')
    budgets.write(tmp_path / "size.toml")
    again = Budgets.read(tmp_path / "size.toml")
    assert again == budgets
    assert not list(again.excesses({**HERE, "a": {"files": 5, "functions": 10}}))
    again.rooms["b"]["functions"] += 1
    assert [line.partition(":")[0] for line in again.excesses(HERE)] == ["size.toml"]


def test_records_are_found_by_decorator_and_by_base_also_through_another_module() -> None:
    strict = ast.parse("class Strict(pydantic.BaseModel): ...")
    text = ast.parse(
        "class File(Strict): x: int\n@dataclasses.dataclass\nclass A: ...\nclass B(typing.NamedTuple): ...\n"
        "class C(TypedDict): ...\nclass D(Enum): ...\nclass E:\n    def f(self): ..."
    )
    assert records(text, pydantic_models([strict, text])) == ["File", "A", "B", "C"]
    assert count_functions(text) == 1


def test_a_room_is_a_package_or_what_lies_beside_them() -> None:
    assert room_of(ROOT / "ddpsim/collectives/ring_search.py") == "ddpsim/collectives"
    assert room_of(ROOT / "ddpexec/errors.py") == "ddpexec"
