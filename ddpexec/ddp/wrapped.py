"""What the parts of the wrapper ask of it: the seam between `DistributedDataParallel` and what is mixed into it."""

from __future__ import annotations

from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import nn

from ddpexec.ddp.buffers import BufferSynchroniser
from ddpexec.ddp.comm_hooks import Hook
from ddpexec.ddp.executor import Executor
from ddpexec.ddp.parameters import ModelParameters
from ddpexec.ddp.reducer import Reducer
from ddpexec.groups.process_groups import Communicator
from ddpsim.order import OrderPolicy


class WrappedModule(Protocol):
    """A wrapped module as uneven inputs, torch's private methods and its logging data see it."""

    module: nn.Module
    device: torch.device
    device_ids: list[int] | None
    output_device: Any
    communicator: Communicator
    process_group: dist.ProcessGroup
    executor: Executor
    reducer: Reducer
    buffer_sync: BufferSynchroniser
    parameters_to_ignore: set[str]
    first_bucket_sizes: str
    forward_sync_buffers: bool
    require_backward_grad_sync: bool
    require_forward_param_sync: bool
    _authoritative_rank: int
    _divide_by_initial_world_size: bool
    _join_config: Any

    @property
    def bucket_bytes_cap(self) -> int:
        """The largest limit of a bucket."""

    @property
    def find_unused_parameters(self) -> bool:
        """Whether the graph is searched."""

    @property
    def gradient_as_bucket_view(self) -> bool:
        """Whether gradients are views of buckets."""

    @property
    def static_graph(self) -> bool:
        """Whether every iteration uses the same parameters."""

    def register_comm_hook(self, state: object, hook: Hook) -> None:
        """Let a hook reduce the buckets."""

    def buffers_due(self, *, after_forward: bool) -> bool:
        """Return whether buffers are synchronised now."""

    def order_policy(self, model: ModelParameters) -> OrderPolicy:
        """Return when buckets are rebuilt."""

    def use_process_group(self, process_group: Any) -> None:
        """Reduce over another group."""
