"""What torchrun tells a process by its environment; without torchrun it is the only rank."""

from __future__ import annotations

import os
from pathlib import Path

from ddpsim.common.errors import InputError

RANKS_HERE = "DDPEXEC_RANKS_HERE"
"""Variable that tells a rank how many share this machine; in a lab, its namespace looks like a machine of its own."""


def is_first_rank() -> bool:
    """Return whether this is rank 0, which speaks for all."""
    return os.environ.get("RANK", "0") == "0"


def is_on_first_node() -> bool:
    """Return whether this rank is on rank 0's node, and so sees the files that rank 0 writes."""
    return os.environ.get("GROUP_RANK", "0") == "0"


def speaks(speaker: int | None) -> bool:
    """Return whether this rank is the one that is to tell of something, or any of them may be."""
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
