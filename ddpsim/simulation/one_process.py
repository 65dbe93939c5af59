"""Ranks that are threads of one process: what they share, and what it costs."""

from __future__ import annotations

from dataclasses import replace

from ddpsim.errors import InputError
from ddpsim.schedules.schedule import Schedule
from ddpsim.simulation.pace import Pace
from ddpsim.simulation.setting import Setting
from ddpsim.topology.graph import Placement
from ddpsim.workload import Workload

REPLICATE_S = 27e-6
"""Host seconds, by parameter and replica, in which a module is copied for its replicas before each forward.

`python -m studies.host_costs.replicas` measures it: 29.5 us of ResNet-50 and 25.5 us of BERT on an AMD EPYC.
"""


def check_one_process(schedule: Schedule, placement: Placement, backend: str, workload: Workload) -> None:
    """Refuse ranks of one process where they cannot be.

    Raises:
        InputError: several machines, no GPUs, or another backend than NCCL, which copies between them.
    """
    place = f"scheme={schedule.scheme}"
    if placement.nodes > 1:
        what = f"its ranks are threads of one process, {placement.nodes} nodes are asked for"
        raise InputError(what, place=place, remedy="ask for one node, or take `ddp`")
    if workload.one_clock or backend != "nccl":
        what = f"it moves parameters and gradients between GPUs, not by {backend}"
        raise InputError(what, place=place, remedy="use a workload of a GPU and `backend=nccl`, or take `ddp`")


def in_one_process(setting: Setting, ranks: int) -> Setting:
    """Return `setting` where `ranks` of them are threads of one process.

    Their forwards launch through one interpreter, whose lock one thread has at a time, so that the host's time is all
    of theirs together, and each forward's replicas are copied before. Backward is the autograd engine's own threads',
    one a device, which need no lock. One thread loads the batches of all.
    """
    alone, stage = setting.pace, setting.input_stage
    copied_s = REPLICATE_S * len(setting.workload.parameters) if ranks > 1 else 0.0

    def pace(iteration: int) -> Pace:
        own = alone(iteration)
        return replace(own, forward_host=ranks * (own.forward_host + copied_s))

    return replace(setting, pace=pace, input_stage=None if stage is None else stage.in_one_process(ranks))
