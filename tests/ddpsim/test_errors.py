from __future__ import annotations

import doctest

import pytest

from ddpsim import errors, units
from ddpsim.errors import InputError, PlanError, UnknownNameError


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


@pytest.mark.parametrize("module", [errors, units])
def test_examples_in_docstrings(module):
    failed, tried = doctest.testmod(module)
    assert tried > 0
    assert failed == 0
