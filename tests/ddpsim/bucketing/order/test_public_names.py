"""What a script imports from `ddpsim.bucketing.order` is there, and is read only when it is asked for."""

from __future__ import annotations

import subprocess
import sys
from inspect import getmodule

import pytest

import ddpsim.bucketing.order
from ddpsim.bucketing.order.predictors import MeanReady, predictor

NAMES = [name for name in dir(ddpsim.bucketing.order) if not name.startswith("__")]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_that_of_its_module(name: str) -> None:
    found = getattr(ddpsim.bucketing.order, name)
    module = getmodule(found)
    assert module is None or module.__name__.startswith("ddpsim.bucketing.order.")


def test_a_predictor_may_be_named_by_the_package() -> None:
    assert isinstance(predictor("ddpsim.bucketing.order:MeanReady"), MeanReady)


def test_the_package_imports_none_of_its_modules_by_itself() -> None:
    package = "ddpsim.bucketing.order"
    code = f"import sys, {package}; print(*[name for name in sys.modules if name.startswith('{package}.')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_what_is_not_there_is_said() -> None:
    with pytest.raises(AttributeError, match=r"module 'ddpsim.bucketing.order' has no attribute 'Sorted'"):
        ddpsim.bucketing.order.Sorted  # noqa: B018
