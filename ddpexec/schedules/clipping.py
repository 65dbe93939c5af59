"""Gradients clipped by their joint norm, wherever a schedule keeps them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ddpexec.groups.lost import naming_the_lost
from ddpexec.groups.process_groups import Communicator
from ddpsim.schedules.schedule import Schedule


def clipped(gradients: Sequence[Tensor], max_norm: float, schedule: Schedule, communicator: Communicator) -> Tensor:
    """Scale gradients in place so that their joint 2-norm is at most `max_norm`; return what it was.

    Args:
        gradients: all of them, or this rank's part where the optimizer is sharded: ranks then sum their squares.
        max_norm: in the gradients' own unit.
        schedule: in force.
        communicator: of the ranks, each of which calls this.
    """
    squares = torch.stack([gradient.norm() ** 2 for gradient in gradients]).sum()
    if schedule.sharding.optimizer > 1 and communicator.world_size > 1 and not communicator.noop:
        with naming_the_lost(communicator, "the sum of gradients' norms"):
            communicator.all_reduce(squares, 0).wait()
    norm = squares.sqrt()
    torch._foreach_mul_(list(gradients), (max_norm / (norm + 1e-6)).clamp(max=1.0))
    return norm
