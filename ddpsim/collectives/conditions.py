"""The conditions that a process group's collectives are run under: over which library, how exactly, beside what."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from ddpsim.common.errors import UnknownNameError

Fidelity = Literal["flow", "steps", "closed"]
FIDELITIES: tuple[Fidelity, ...] = get_args(Fidelity)


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveOptions:
    """The conditions that every collective of a process group is run under.

    An allreduce of 64 MiB over NCCL that takes 1 ms back to back takes 1 ms and `nccl.isolated_s` where `isolated`;
    where one process launches on 8 GPUs, no allreduce takes less than 8 times `nccl.launch_s`.

    Attributes:
        algorithm: the one forced; `auto` is the backend's own choice.
        fidelity: `flow` is one fluid demand a collective, `steps` is every transfer of its schedule, `closed` is the
            time it takes alone, whatever else is in flight.
        isolated: one collective runs at a time on an idle stream, as DDP issues them; else they run back to back, as in
            nccl-tests.
        gpus_per_process: the GPUs that one process launches NCCL's kernels on, one after the other.
        rings: over gloo, reduce-scatters and all-gathers are rings of sends, of half an allreduce's bytes each, as
            ddpexec carries schedules out; else torch's own.
        expand: every node has links of its own; else one node stands for all of its kind.

    Raises:
        UnknownNameError: an unknown fidelity. An algorithm is known to the transport that runs it.
    """

    algorithm: str = "auto"
    fidelity: str = "flow"
    isolated: bool = True
    gpus_per_process: int = 1
    rings: bool = False
    expand: bool = False

    def __post_init__(self) -> None:
        if self.fidelity not in FIDELITIES:
            raise UnknownNameError.among("fidelity", self.fidelity, FIDELITIES, place="fidelity")


DEFAULT = CollectiveOptions()
"""As DDP runs them, at the fidelity of `flow`."""


Backend = Literal["nccl", "gloo", "rccl", "mpi"]
GPU_BACKENDS: tuple[Backend, ...] = ("nccl", "rccl")
"""Those whose collectives are kernels of the GPU: NCCL, and what `nccl` is on AMD's GPUs."""
