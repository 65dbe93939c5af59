"""What else torch's class shows: its attributes, and the methods that other code calls although they are private."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

from ddpexec.ddp.bucket_schedule import BucketSchedule
from ddpexec.ddp.buffers import BufferSynchroniser
from ddpexec.ddp.comm_hooks import Hook
from ddpexec.ddp.executor import Executor
from ddpexec.ddp.logging_data import logging_data
from ddpexec.ddp.parameters import BROADCAST_BYTES, ModelParameters
from ddpexec.ddp.reducer_options import ReducerOptions
from ddpexec.errors import ExecutionError, OptionError
from ddpsim.order import OrderPolicy


class TorchMethods:
    """Mixed into our `DistributedDataParallel`; see torch's class for what each is for."""

    executor: Executor
    reducer: BucketSchedule
    buffer_sync: BufferSynchroniser
    clone_outputs: bool
    process_group: dist.ProcessGroup
    forward_sync_buffers: bool
    device: torch.device
    module: nn.Module
    device_ids: list[int] | None
    output_device: Any
    first_bucket_sizes: str
    _join_config: Any
    _options: ReducerOptions
    _authoritative_rank: int

    broadcast_bucket_size = BROADCAST_BYTES

    def register_comm_hook(self, state: object, hook: Hook) -> None:
        """Let a hook reduce the buckets."""
        raise NotImplementedError

    def order_policy(self, model: ModelParameters) -> OrderPolicy:
        """Return when buckets are rebuilt, and in which order."""
        raise NotImplementedError

    def use_process_group(self, process_group: Any) -> None:
        """Reduce over another group from now on."""
        raise NotImplementedError

    @property
    def broadcast_buffers(self) -> bool:
        """Whether buffers are broadcast before each forward; torch's former name for `forward_sync_buffers`."""
        return self.forward_sync_buffers

    @broadcast_buffers.setter
    def broadcast_buffers(self, value: bool) -> None:
        self.forward_sync_buffers = value

    @property
    def find_unused_parameters(self) -> bool:
        """As given."""
        return self._options.find_unused_parameters

    @property
    def gradient_as_bucket_view(self) -> bool:
        """As given."""
        return self._options.gradient_as_bucket_view

    @property
    def static_graph(self) -> bool:
        """As given, or as set since."""
        return self._options.static_graph

    @property
    def device_type(self) -> str:
        """The type that all parameters' devices have."""
        return self.device.type

    @property
    def bucket_bytes_cap(self) -> int:
        """The largest limit of a bucket, in bytes."""
        return max(self._options.caps.limits())

    @property
    def bucket_bytes_cap_list(self) -> list[int]:
        """The limits of `bucket_cap_mb_list` in bytes; empty without it."""
        return self._options.caps.limits() if self._options.caps.bucket_cap_mb_list is not None else []

    @staticmethod
    def _set_params_and_buffers_to_ignore_for_model(
        module: nn.Module, params_and_buffers_to_ignore: Collection[str]
    ) -> None:
        module._ddp_params_and_buffers_to_ignore = params_and_buffers_to_ignore  # type: ignore[assignment]
        for name, tensor in (*module.named_parameters(), *module.named_buffers()):
            if name in params_and_buffers_to_ignore:
                tensor._ddp_ignored = True  # type: ignore[attr-defined]

    @staticmethod
    def _get_data_parallel_params(module: nn.Module, named_params: bool = False) -> Iterator[Any]:
        for name, parameter in module.named_parameters():
            if not hasattr(parameter, "_ddp_ignored"):
                yield (name, parameter) if named_params else parameter

    def _get_ddp_logging_data(self) -> dict[str, str | int]:
        return logging_data(
            self.module, self.reducer, devices=(self.device_ids, self.output_device),
            first_bucket_sizes=self.first_bucket_sizes, sync_buffers=self.forward_sync_buffers,
            joined=self._join_config.enable, failure=self.executor.failure,
        )  # fmt: skip

    def _register_buffer_comm_hook(self, state: Any, hook: Callable[..., Any], comm_hook_location: Any = None) -> None:
        if not callable(hook):
            raise TypeError(f"hook must be callable, got {type(hook).__name__}")
        after = comm_hook_location is None or comm_hook_location.name == "POST_FORWARD"
        self.buffer_sync.set_hook(hook, state, after_forward=after)

    def _register_builtin_comm_hook(self, comm_hook_type: Any) -> None:
        # torch's C++ reducer has these two built in; its Python package has the same two.
        hooks = {"ALLREDUCE": default_hooks.allreduce_hook, "FP16_COMPRESS": default_hooks.fp16_compress_hook}
        if getattr(comm_hook_type, "name", None) not in hooks:
            raise OptionError(
                f"{comm_hook_type!r} is not a built-in communication hook",
                remedy="give dist.BuiltinCommHookType.ALLREDUCE or FP16_COMPRESS",
            )
        self.register_comm_hook(self.process_group, hooks[comm_hook_type.name])
        self.reducer.hook_name = str(comm_hook_type)

    def _set_ddp_runtime_logging_sample_rate(self, sample_rate: int) -> None:
        if sample_rate < 1:
            raise OptionError(
                f"DDP runtime logging sample rate should be equal or greater than 1, it is {sample_rate}",
                remedy="give after how many iterations one is sampled",
            )
        self.reducer.stats.rate = sample_rate

    def _default_broadcast_coalesced(
        self, bufs: Sequence[Tensor] | None = None, bucket_size: int | None = None, authoritative_rank: int = 0
    ) -> None:
        tensors = list(self.buffer_sync.named().values()) if bufs is None else list(bufs)
        size = BROADCAST_BYTES if bucket_size is None else bucket_size
        dist._broadcast_coalesced(self.process_group, tensors, size, authoritative_rank)  # type: ignore[attr-defined]

    def _build_params_for_reducer(self) -> tuple[list[nn.Parameter], list[bool]]:
        model = self.reducer.model
        return list(model.tensors), [parameter.sparse for parameter in model.policy]

    def _build_debug_param_to_name_mapping(self, parameters: Sequence[nn.Parameter]) -> dict[int, str]:
        model = self.reducer.model
        places = {parameter: index for index, parameter in enumerate(parameters)}
        for tensor, name in zip(model.tensors, model.names, strict=True):
            if tensor not in places:
                raise ValueError(f"Param with name {name} found in module parameters, but not DDP parameters.")
        if len(places) != len(model.names):
            raise ValueError(
                "Expected param to name mapping to cover all parameters, but got conflicting lengths: "
                f"{len(places)} vs {len(model.names)}."
            )
        return {places[tensor]: name for tensor, name in zip(model.tensors, model.names, strict=True)}

    def _register_fused_optim(self, optim: type, *args: Any, optim_params: Any = None, **kwargs: Any) -> None:
        from torch.distributed.algorithms._optimizer_overlap.optimizer_overlap import _as_overlapped_optim

        _as_overlapped_optim(optim, optim_params, *args, **kwargs).register_ddp(self)

    def _set_static_graph(self) -> None:
        if self.static_graph:
            warnings.warn("You've set static_graph to be True, no need to set it again.", stacklevel=2)
            return
        if self.reducer.iteration:
            what = "set_static_graph() should be called before training loop starts"
            error = ExecutionError(what, remedy="give static_graph=True")
            self.executor.note_failure(error)
            raise error
        self.reducer.options.static_graph = True
        self.executor.set_static_graph()
        self.reducer.order = self.order_policy(self.reducer.model)

    def _update_process_group(self, new_process_group: Any) -> None:
        self.use_process_group(new_process_group)

    def _set_ddp_sink_clone(self, val: bool) -> None:
        self.clone_outputs = val

    def _check_reducer_finalized(self) -> None:
        self.executor.check_finished()

    def _remove_autograd_hooks(self) -> None:
        self.executor.remove_hooks()
