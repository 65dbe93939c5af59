from __future__ import annotations

import doctest

import pytest

from ddpsim.common import errors, units
from ddpsim.common.errors import InputError, PlanError, UnknownNameError, join_problems


def test_an_error_reads_place_message_remedy():
    assert str(InputError("bad", place="a.yaml: x", remedy="do y")) == "a.yaml: x: bad; do y"
    assert str(InputError("bad")) == "bad"


def test_at_puts_a_place_before_the_place_and_keeps_the_class():
    with pytest.raises(PlanError) as caught:
        PlanError("bad", place="buckets.0", remedy="do y").at("plan.json")
    assert str(caught.value) == "plan.json: buckets.0: bad; do y"
    with pytest.raises(InputError, match=r"^plan.json: bad$"):
        InputError("bad").at("plan.json")


def test_at_works_for_every_error_of_the_tree():
    for name in dir(errors):
        kind = getattr(errors, name)
        if isinstance(kind, type) and issubclass(kind, InputError):
            with pytest.raises(kind) as caught:
                kind("bad").at("here")
            assert type(caught.value) is kind


def test_an_unknown_name_without_near_ones_lists_all():
    assert str(UnknownNameError.among("model", "zzz", ["b", "a"])) == "unknown model 'zzz'; known: a, b"


def test_an_unknown_name_without_near_ones_lists_the_first_of_many():
    message = str(UnknownNameError.among("model", "zzz", [f"m{n:03}" for n in range(100)]))
    assert message.startswith("unknown model 'zzz'; known: m000, m001, ")
    assert message.endswith("m019 and 80 more")


@pytest.mark.parametrize("part", ["message", "place", "remedy"])
def test_no_message_has_more_than_1000_characters(part):
    parts = {"message": "bad", "place": "a.yaml", "remedy": "do y"} | {part: f"begin {'x' * 5000} end"}
    text = str(InputError(parts["message"], place=parts["place"], remedy=parts["remedy"]))
    assert len(text) <= 1000
    for word in ("a.yaml", "bad", "do y", "begin x", "x end", "(5010 characters)"):
        assert word in text or word in ("a.yaml", "bad", "do y")[["place", "message", "remedy"].index(part)]
    long = "x" * 5000
    assert len(str(InputError(long, place=long, remedy=long))) <= 1000


def test_many_problems_of_a_file_are_told_on_a_line_each_and_the_rest_counted():
    assert join_problems(["alone"]) == "alone"
    assert join_problems(["a", "b"]) == "\n  a\n  b"
    many = [f"runs.{n}: {'x' * 90}" for n in range(200)]
    assert str(InputError(join_problems(many), place="a.yaml")).count("\n  runs.") == 200
    assert join_problems([f"runs.{n}" for n in range(1002)]).endswith("\n  runs.999\n  and 2 more")
    assert "characters" not in str(InputError(join_problems(many), place="c.yaml"))


@pytest.mark.parametrize("module", [errors, units])
def test_examples_in_docstrings(module):
    failed, tried = doctest.testmod(module)
    assert tried > 0
    assert failed == 0


def test_an_error_that_is_told_whole_keeps_a_long_remedy():
    class WholeError(InputError):
        whole = True

    assert str(WholeError("m" * 900, remedy="r" * 900)) == f"{'m' * 900}; {'r' * 900}"
