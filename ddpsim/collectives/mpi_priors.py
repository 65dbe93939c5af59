"""The constants of Open MPI's transport without measurements."""

from __future__ import annotations

from ddpsim.collectives.constant import Constant

_HERE = (
    "two ranks in shared memory of a busy two-core machine, Open MPI 4.1.4, mpi4py 4.1.2, torch 2.13, "
    "`python -m ddpexec microbench --backend mpi`: 0.14 ms for 4 KiB, 0.18 for 64 KiB"
)
_SHAPED = "as gloo's: four ranks over shaped links (tc tbf at 200 Mbit/s and 1 Gbit/s, MTU 1500); packet headers"

MPI_PRIORS = (
    Constant("mpi.launch_s", 1.2e-4, "s", f"{_HERE}; what is left after the steps, threads woken", log_std=1.0),
    Constant("mpi.step_s", 1.0e-5, "s", f"{_HERE}; a message's call and arrival", log_std=1.0),
    Constant("mpi.round_trips", 1.0, "1", "a message's way there and an answer's back, without a thread to be woken"),
    Constant("mpi.efficiency.network", 1 / 1.046, "1", _SHAPED, log_std=0.02),
    Constant("mpi.efficiency.loopback", 1.0, "1", "links of kind loopback state what a backend reaches", log_std=1.0),
    Constant("mpi.reduce.bandwidth", 8e9, "B/s", "as gloo's: float32 sum by one core"),
    Constant("mpi.host.bandwidth", 8e9, "B/s", "copies by shared memory between processes of a GPU node; estimate"),
    Constant("mpi.staging.efficiency", 0.8, "1", "as gloo's: copies between pinned host memory and GPU; estimate"),
)
