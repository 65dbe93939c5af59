"""What a script imports from `ddpsim.order` is there, and is read only when it is asked for."""

from __future__ import annotations

import subprocess
import sys
from inspect import getmodule

import pytest

import ddpsim.order
from ddpsim.order.predictors import MeanReady, predictor

NAMES = [name for name in dir(ddpsim.order) if not name.startswith("__")]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_that_of_its_module(name: str) -> None:
    found = getattr(ddpsim.order, name)
    module = getmodule(found)
    assert module is None or module.__name__.startswith("ddpsim.order.")


def test_a_predictor_may_be_named_by_the_package() -> None:
    assert isinstance(predictor("ddpsim.order:MeanReady"), MeanReady)


def test_the_package_imports_none_of_its_modules_by_itself() -> None:
    code = "import sys, ddpsim.order; print(*[name for name in sys.modules if name.startswith('ddpsim.order.')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_what_is_not_there_is_said() -> None:
    with pytest.raises(AttributeError, match=r"module 'ddpsim.order' has no attribute 'Sorted'"):
        ddpsim.order.Sorted  # noqa: B018
