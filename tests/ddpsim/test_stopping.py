"""A signal ends what runs though the exception that it raised was dropped."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from ddpsim.stopping import Interrupts, Stopped, stop_on_signals

MOST_S = 5.0


class Signalled:
    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0)


def end_in_a_destructor() -> None:
    dropped = Signalled()
    del dropped
    time.sleep(MOST_S)


@pytest.mark.parametrize("block", [stop_on_signals, lambda: Interrupts().note_interrupts()], ids=["stopping", "noted"])
def test_a_signal_whose_exception_is_dropped_is_sent_again(
    block: Callable[[], AbstractContextManager[None]], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(Stopped, match="SIGINT"), block():
        end_in_a_destructor()
    assert capsys.readouterr().err == ""


def test_other_dropped_exceptions_are_shown_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[object] = []
    monkeypatch.setattr("sys.unraisablehook", shown.append)

    class Failing:
        def __del__(self) -> None:
            raise ValueError

    with stop_on_signals():
        failing = Failing()
        del failing
    assert len(shown) == 1
