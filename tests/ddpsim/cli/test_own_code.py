"""Code that people bring, and that would end the process, is an error with its name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ddpsim.bucketing.order.predictors import predictor
from ddpsim.common.errors import InputError
from ddpsim.common.options.own import convert_exit
from ddpsim.schedules.named import scheme_named

MODULE = "import sys\ndef function(*setup): sys.exit()\n"


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Write a module and return its name, which no other test has."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(text: str) -> str:
        name = f"ending_{tmp_path.name}".replace("-", "_")
        (tmp_path / f"{name}.py").write_text(text)
        return name

    return write


@pytest.mark.parametrize("read", [scheme_named, predictor])
def test_a_module_that_exits_where_it_is_imported(module: Callable[[str], str], read: Callable[[str], object]) -> None:
    name = module("raise SystemExit(0)\n")
    with pytest.raises(InputError, match=r"cannot be imported: .*it ends the process: SystemExit\(0\)") as refused:
        read(f"{name}:function")
    assert name in str(refused.value)


def test_a_function_that_exits_where_it_is_called(module: Callable[[str], str]) -> None:
    name = module(MODULE)
    scheme = scheme_named(f"{name}:function")
    with pytest.raises(InputError, match="it ends the process") as refused:
        scheme.make(None)  # type: ignore[arg-type]
    assert f"{name}.py:2" in str(refused.value)
    with pytest.raises(InputError, match="it ends the process"):
        predictor(f"{name}:function")


def test_a_signals_own_kind_passes() -> None:
    class Signalled(SystemExit):
        pass

    with pytest.raises(Signalled), convert_exit(RuntimeError):
        raise Signalled
