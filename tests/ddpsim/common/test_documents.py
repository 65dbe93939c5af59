"""The one way from pydantic's errors to the project's: every problem, with its place, value and remedy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

import pytest
from pydantic import BaseModel, ConfigDict, ValidationError

from ddpsim.common.documents.errors import problems
from ddpsim.common.documents.fields import (
    STATED,
    WRITTEN,
    Amount,
    AsColumns,
    AsRows,
    ByName,
    Checked,
    Count,
    Index,
    Key,
    NotInFile,
    OneOf,
    Text,
    document_of,
)
from ddpsim.common.documents.records import read_as
from ddpsim.common.errors import InputError


@dataclass(frozen=True, slots=True)
class Size:
    of: Index
    time_s: Amount


def check_few(sizes: tuple[Size, ...]) -> tuple[Size, ...]:
    if len(sizes) > 3:
        raise InputError(f"{len(sizes)} sizes are too many", place="3")
    return sizes


@dataclass(frozen=True, slots=True)
class Part:
    sizes: Annotated[tuple[Size, ...], Checked(check_few), AsRows()] = ()
    kind: Annotated[str, OneOf(("ring", "tree"))] = "ring"
    name: str = "a"


@dataclass(frozen=True, slots=True)
class Example:
    SCHEMA: ClassVar = "ddpsim.example/1"
    KIND: ClassVar = "file of examples"

    name: Text
    count: Count | None
    flag: Annotated[bool, WRITTEN] = False
    time_s: Annotated[Amount, Key(("times", "s"))] = 0.0
    parts: tuple[Part, ...] = ()
    known: Annotated[Mapping[str, Part], ByName(), STATED] = ()  # type: ignore[assignment]
    columns: Annotated[tuple[Part, ...], AsColumns()] = ()
    asked: Annotated[int, NotInFile] = 7


EXPECTED = 'expected "schema": "ddpsim.example/1"; make it again'
GOOD = {"schema": "ddpsim.example/1", "name": "a", "count": 1, "known": []}


def message(change: object) -> str:
    document = {**GOOD, **change} if isinstance(change, dict) else change
    with pytest.raises(InputError) as caught:
        read_as(Example, document, "e.json", InputError, "make it again")
    return str(caught.value)


def test_what_fits_is_read_and_keys_of_later_versions_are_left_out() -> None:
    told = {"later": 3, "asked": 8, "parts": [{"sizes": [[1, 2]]}], "times": {"s": 1}}
    read = read_as(Example, {**GOOD, **told}, "e.json", InputError, "")
    assert read == Example("a", 1, time_s=1.0, parts=(Part((Size(1, 2.0),)),), known={})


def test_a_record_is_written_as_it_is_read() -> None:
    parts = (Part(kind="tree"), Part(name="b"))
    record = Example("a", None, time_s=2.0, parts=parts, known={"a": parts[0], "b": parts[1]}, columns=parts)
    document = document_of(record)
    assert document == {
        "schema": "ddpsim.example/1", "name": "a", "count": None, "flag": False, "times": {"s": 2.0},
        "parts": [{"kind": "tree"}, {"name": "b"}], "known": [{"kind": "tree"}, {"name": "b"}],
        "columns": {"kind": ["tree", "ring"], "name": ["a", "b"]},
    }  # fmt: skip
    assert read_as(Example, document, "e.json", InputError, "") == record


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ([], f"e.json: not a file of examples; {EXPECTED}"),
        ({"schema": "ddpsim.plan/1"}, f"e.json: not a file of examples: its schema is 'ddpsim.plan/1'; {EXPECTED}"),
        ({"name": ""}, "e.json: name: '' is not a text with something in it; make it again"),
        ({"name": 3}, "e.json: name: 3 is not a text; make it again"),
        ({"count": True}, "e.json: count: True is not a whole number; make it again"),
        ({"count": 0}, "e.json: count: 0 is not a number above 0; make it again"),
        ({"count": 1.0}, "e.json: count: 1.0 is not a whole number; make it again"),
        ({"flag": 0}, "e.json: flag: 0 is not true or false; make it again"),
        ({"times": {"s": float("nan")}}, "e.json: times.s: nan is not a finite number; make it again"),
        ({"times": {"s": -1}}, "e.json: times.s: -1.0 is not a number from 0 on; make it again"),
        ({"times": {"s": False}}, "e.json: times.s: False is not a number; make it again"),
        ({"parts": {}}, "e.json: parts: {} is not a list; make it again"),
        ({"parts": [3]}, "e.json: parts.0: 3 is not an object with keys; make it again"),
        ({"parts": [{}, {"kind": "star"}]}, "e.json: parts.1.kind: 'star' is not 'ring' or 'tree'; make it again"),
        ({"parts": [{"sizes": [[1, "2"]]}]}, "e.json: parts.0.sizes.0.1: '2' is not a number; make it again"),
        ({"parts": [{"sizes": [[1, 2]] * 4}]}, "e.json: parts.0.sizes.3: 4 sizes are too many; make it again"),
        ({"columns": {"kind": ["ring"], "name": []}}, "e.json: columns: columns of 1, 0 entries; make it again"),
        ({"columns": {"kind": ["star"]}}, "e.json: columns.kind.0: 'star' is not 'ring' or 'tree'; make it again"),
    ],
)  # fmt: skip
def test_an_error_names_value_place_and_remedy(change: object, expected: str) -> None:
    assert message(change) == expected


def test_every_problem_is_said_on_a_short_line_of_its_own_up_to_a_thousand() -> None:
    several = message({"name": 3, "count": "x"})
    assert several == "e.json: \n  name: 3 is not a text\n  count: 'x' is not a whole number; make it again"
    many = message({"name": "n" * 5000, "times": {"s": "t" * 5000}, "parts": [{"kind": "k" * 5000}] * 5000})
    first, *problems, last = many.splitlines()
    assert (first, last) == ("e.json: ", "  and 4001 more; make it again")
    assert len(problems) == 1000
    assert max(map(len, problems)) <= 130
    assert any("times.s: 'ttt" in line for line in problems)


def test_a_missing_key_is_named() -> None:
    with pytest.raises(InputError, match=r"^e.json: count: the key is missing; make it again$"):
        read_as(Example, {key: GOOD[key] for key in ("schema", "name", "known")}, "e.json", InputError, "make it again")


class Inner(BaseModel):
    model_config = ConfigDict(extra="forbid")
    bandwidth: int = 0


class Outer(BaseModel):
    inner: dict[str, Inner]


def test_an_unknown_key_names_the_nearest_and_a_line_is_told_where_there_is_one() -> None:
    with pytest.raises(ValidationError) as caught:
        Outer.model_validate({"inner": {"a": {"bandwith": 3}}})
    found = problems(caught.value, Outer, under=("runs", 2), line=lambda path: len(path))
    assert found == ["runs.2.inner.a.bandwith (line 3): unknown key 'bandwith'; did you mean bandwidth?"]
