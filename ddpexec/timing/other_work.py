"""Whether other work disturbs what ranks measure, on any of their machines."""

from __future__ import annotations

import torch.distributed as dist

from ddpexec.groups.process_groups import Communicator
from ddpsim.common.other_work import OtherWork, ProcessorClock, ProcessorUse, find_other_work


def gather_other_work(clock: ProcessorClock, communicator: Communicator) -> OtherWork | None:
    """Return on every rank the other work since `clock` began, on its busiest machine; None where none tells."""
    uses: list[ProcessorUse | None] = [None] * communicator.world_size
    dist.all_gather_object(uses, clock.since(), group=communicator.main)
    return find_other_work(uses)
