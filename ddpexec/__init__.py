"""Run, measure and trace distributed data parallel training on torch.distributed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ddpexec.ddp.wrapper import DistributedDataParallel

__all__ = ["DistributedDataParallel"]


def __getattr__(name: str) -> Any:
    """Import torch only when something that needs it is asked for."""
    if name == "DistributedDataParallel":
        from ddpexec.ddp.wrapper import DistributedDataParallel

        return DistributedDataParallel
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
