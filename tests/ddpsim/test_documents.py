"""The one way from pydantic's errors to the project's: every problem, with its place, value and remedy."""

from __future__ import annotations

from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from ddpsim.documents import Amount, Count, Document, File, Index, Text, document_error, problems, read_as
from ddpsim.errors import InputError


class Part(Document):
    sizes: list[Annotated[tuple[Index, Amount], Field(strict=False)]] = []  # noqa: RUF012
    kind: Literal["ring", "tree"] = "ring"

    @field_validator("sizes")
    @classmethod
    def _few(cls, value: list[tuple[int, float]]) -> list[tuple[int, float]]:
        if len(value) > 3:
            raise document_error(f"{len(value)} sizes are too many", 3)
        return value


class Example(File):
    SCHEMA = "ddpsim.example/1"
    KIND = "file of examples"

    name: Text
    count: Count | None
    flag: bool = False
    time_s: Amount = 0.0
    parts: list[Part] = []  # noqa: RUF012


EXPECTED = 'expected "schema": "ddpsim.example/1"; make it again'
GOOD = {"schema": "ddpsim.example/1", "name": "a", "count": 1}


def message(change: object) -> str:
    document = {**GOOD, **change} if isinstance(change, dict) else change
    with pytest.raises(InputError) as caught:
        read_as(Example, document, "e.json", InputError, "make it again")
    return str(caught.value)


def test_what_fits_is_read_and_keys_of_later_versions_are_left_out() -> None:
    read = read_as(Example, {**GOOD, "later": 3, "parts": [{"sizes": [[1, 2]]}]}, "e.json", InputError, "")
    assert read == Example(name="a", count=1, parts=[Part(sizes=[(1, 2.0)])])


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
        ({"time_s": float("nan")}, "e.json: time_s: nan is not a finite number; make it again"),
        ({"time_s": -1}, "e.json: time_s: -1.0 is not a number from 0 on; make it again"),
        ({"time_s": False}, "e.json: time_s: False is not a number; make it again"),
        ({"parts": {}}, "e.json: parts: {} is not a list; make it again"),
        ({"parts": [3]}, "e.json: parts.0: 3 is not an object with keys; make it again"),
        ({"parts": [{}, {"kind": "star"}]}, "e.json: parts.1.kind: 'star' is not 'ring' or 'tree'; make it again"),
        ({"parts": [{"sizes": [[1, "2"]]}]}, "e.json: parts.0.sizes.0.1: '2' is not a number; make it again"),
        ({"parts": [{"sizes": [[1, 2]] * 4}]}, "e.json: parts.0.sizes.3: 4 sizes are too many; make it again"),
    ],
)  # fmt: skip
def test_an_error_names_value_place_and_remedy(change: object, expected: str) -> None:
    assert message(change) == expected


def test_every_problem_is_said_on_a_short_line_of_its_own_up_to_a_thousand() -> None:
    several = message({"name": 3, "count": "x"})
    assert several == "e.json: \n  name: 3 is not a text\n  count: 'x' is not a whole number; make it again"
    many = message({"name": "n" * 5000, "time_s": "t" * 5000, "parts": [{"kind": "k" * 5000}] * 5000})
    first, *problems, last = many.splitlines()
    assert (first, last) == ("e.json: ", "  and 4001 more; make it again")
    assert len(problems) == 1000
    assert max(map(len, problems)) <= 130
    assert any("time_s: 'ttt" in line for line in problems)


def test_a_missing_key_is_named() -> None:
    with pytest.raises(InputError, match=r"^e.json: count: the key is missing; make it again$"):
        read_as(Example, {key: GOOD[key] for key in ("schema", "name")}, "e.json", InputError, "make it again")


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
