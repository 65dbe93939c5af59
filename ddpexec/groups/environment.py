"""How this rank was launched, by its environment: torchrun's variables, those of Open MPI's mpirun, or neither.

`adopt_mpirun` writes mpirun's rank and size under torchrun's names, so that the rest of the program reads those names
alone. Without a launcher this process is rank 0 of one. When a job fails, one rank prints the error for all (`speak`).
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from ddpsim.common.errors import InputError
from ddpsim.common.stopping import Stopped, stop_on_signals

_SAME = {
    "RANK": "OMPI_COMM_WORLD_RANK",
    "WORLD_SIZE": "OMPI_COMM_WORLD_SIZE",
    "LOCAL_RANK": "OMPI_COMM_WORLD_LOCAL_RANK",
    "LOCAL_WORLD_SIZE": "OMPI_COMM_WORLD_LOCAL_SIZE",
}
"""torchrun's variables, and Open MPI's that say the same: mpirun(1), "Exported Environment Variables"."""


def is_under_mpirun() -> bool:
    """Return whether Open MPI's mpirun started this process."""
    return all(name in os.environ for name in _SAME.values())


def adopt_mpirun() -> None:
    """Set torchrun's variables from mpirun's, where mpirun started this process and torchrun did not.

    A rank is on the first node where fewer ranks are before it than the node has, as mpirun places them by slot. A rank
    computes on one thread unless the environment says otherwise, as under torchrun.
    """
    if not is_under_mpirun() or "RANK" in os.environ:
        return
    for name, theirs in _SAME.items():
        os.environ[name] = os.environ[theirs]
    os.environ["GROUP_RANK"] = str(int(os.environ["RANK"]) // int(os.environ["LOCAL_WORLD_SIZE"]))
    os.environ.setdefault("OMP_NUM_THREADS", "1")


LET_SPEAK_S = 10.0
"""Seconds that a failing rank leaves the one that speaks for all, chosen by hand: ranks import torch seconds apart.

torchrun and mpirun end every rank of a node, within 0.1 s, with the first that fails.
"""


def speak(message: str, speaker: int | None = 0) -> None:
    """Print `message` to stderr where this rank speaks for all; else wait until the launcher ends this rank.

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


RANKS_HERE = "DDPEXEC_RANKS_HERE"
"""Variable that tells a rank how many share this machine; in a lab, its namespace looks like a machine of its own."""


def is_first_rank() -> bool:
    """Return whether this is rank 0, which speaks for all."""
    return os.environ.get("RANK", "0") == "0"


def is_on_first_node() -> bool:
    """Return whether this rank is on rank 0's node, and so sees the files that rank 0 writes."""
    return os.environ.get("GROUP_RANK", "0") == "0"


def speaks(speaker: int | None) -> bool:
    """Return whether this rank is the one that prints an error; every rank is where none is named."""
    return speaker is None or os.environ.get("RANK", "0") == str(speaker)


def is_under_torchrun() -> bool:
    """Return whether torchrun started this process, which ends all ranks of a node with the first that fails."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def has_others() -> bool:
    """Return whether there is more than one rank."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def refuse_shared_input(*paths: str | None) -> None:
    """Raise InputError where several ranks would read one standard input.

    Args:
        paths: of files that every rank reads; None where none is given.
    """
    if has_others() and "-" in paths:
        raise InputError("several ranks cannot read one standard input", place="-", remedy="name a file")


def module_environment() -> dict[str, str]:
    """Return the environment in which `python -m ddpexec...` finds this very package from any folder."""
    path = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))}
