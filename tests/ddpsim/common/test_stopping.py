"""A signal ends what runs though the exception that it raised was dropped."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from ddpsim.common.stopping import Interrupts, Stopped, stop_on_signals

MOST_S = 5.0


class Signalled:
    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0)


def end_in_a_destructor() -> None:
    dropped = Signalled()
    del dropped
    time.sleep(MOST_S)


Block = Callable[[], AbstractContextManager[None]]
BLOCKS = pytest.mark.parametrize(
    "block", [stop_on_signals, lambda: Interrupts().note_interrupts()], ids=["stopping", "noted"]
)


@BLOCKS
def test_a_signal_whose_exception_is_dropped_is_sent_again(block: Block, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Stopped, match="SIGINT"), block():
        end_in_a_destructor()
    assert capsys.readouterr().err == ""


@BLOCKS
def test_one_that_comes_while_another_is_dropped_is_sent_again_too(
    block: Block, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started: list[threading.Timer] = []

    class Slow(threading.Timer):
        def start(self) -> None:
            super().start()
            started.append(self)
            if len(started) == 1:
                self.join()  # the machine was busy: the time is up before who set the timer goes on
                time.sleep(0)

    monkeypatch.setattr(threading, "Timer", Slow)
    with pytest.raises(Stopped, match="SIGINT"), block():
        end_in_a_destructor()
    assert len(started) == 2
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
