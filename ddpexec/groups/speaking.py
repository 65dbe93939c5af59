"""Which rank says what went wrong: one for all, and it is given the time to."""

from __future__ import annotations

import os
import sys
import time

from ddpexec.groups.mpi_environment import is_under_mpirun
from ddpexec.groups.torchrun import is_on_first_node, is_under_torchrun, speaks
from ddpsim.common.stopping import Stopped, stop_on_signals

LET_SPEAK_S = 10.0
"""Seconds that a failing rank leaves the one that speaks for all, chosen by hand: ranks import torch seconds apart.

torchrun and mpirun end every rank of a node, within 0.1 s, with the first that fails.
"""


def speak(message: str, speaker: int | None = 0) -> None:
    """Write `message` to stderr where this rank speaks; else wait until the launcher ends this rank, as it then does.

    A rank that nobody ends in `LET_SPEAK_S` failed by itself, and says so.

    Args:
        speaker: the rank that speaks for all; None where each rank does.
    """
    if speaks(speaker):
        print(message, file=sys.stderr)
        return
    if not (is_under_mpirun() or (is_under_torchrun() and is_on_first_node())):
        return
    try:
        with stop_on_signals():
            time.sleep(LET_SPEAK_S)
    except Stopped:
        return
    print(f"{message} (rank {os.environ['RANK']})", file=sys.stderr)
