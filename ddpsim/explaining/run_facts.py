"""`RunFacts`: the options of `explain` that add to the traces: the machine, the workload, other measurements."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from ddpsim.common.errors import InputError
from ddpsim.common.options.option import Option
from ddpsim.common.units import parse_time


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """What a user knows of a traced run that its traces do not say; each is optional."""

    shapes: Annotated[str | None, Option("Workload of the same model, for traces recorded without shapes.", "W")] = None
    """Its parameters stand in for the shapes of a Kineto trace without any, its step for a recorded run's."""
    topology: Annotated[
        str | None, Option("Machine or YAML file. [one with the traced GPU, its collectives as traced]", "T")
    ] = None
    nccl_tests: Annotated[
        str | None, Option("nccl-tests or microbenchmark table of the machine, with `topology` or `topo`.", "LOG")
    ] = None
    topo: Annotated[
        str | None,
        Option("What `nvidia-smi topo -m` or `rocm-smi --showtopo` printed on a node, or NCCL's XML.", "FILE"),
    ] = None
    flight_recorder: Annotated[
        str | None, Option("Folder of NCCL's flight recorder dumps (TORCH_FR_BUFFER_SIZE).", "DIR")
    ] = None
    untraced_step: Annotated[
        str | None, Option("What a step takes without the profiler: its cost is told then.", "156ms")
    ] = None

    @property
    def untraced_s(self) -> float | None:
        """The untraced step in seconds.

        Raises:
            InputError: not a time above zero.
        """
        if self.untraced_step is None:
            return None
        seconds = parse_time(self.untraced_step, "untraced_step")
        if seconds <= 0:
            what = f"{self.untraced_step!r} is not a time that a step takes"
            raise InputError(what, place="untraced_step", remedy="give a time above zero")
        return seconds
