"""What Open MPI's `mpirun` tells a process by its environment, said as torchrun says it."""

from __future__ import annotations

import os

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
