"""The methods of torch's DDP that other code of torch calls although their names begin with an underscore."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING, Any, cast

from torch import nn

from ddpexec.errors import OptionError
from ddpexec.logging_data import logging_data

if TYPE_CHECKING:
    from ddpexec.buffers import BufferSynchroniser
    from ddpexec.ddp import DistributedDataParallel
    from ddpexec.reducer import Reducer


class TorchMethods:
    """Mixed into our `DistributedDataParallel`; see torch's class for what each is for."""

    reducer: Reducer
    buffer_sync: BufferSynchroniser
    clone_outputs: bool

    @staticmethod
    def _set_params_and_buffers_to_ignore_for_model(module: nn.Module, names: Collection[str]) -> None:
        module._ddp_params_and_buffers_to_ignore = names  # type: ignore[assignment]
        for name, tensor in (*module.named_parameters(), *module.named_buffers()):
            if name in names:
                tensor._ddp_ignored = True  # type: ignore[attr-defined]

    @staticmethod
    def _get_data_parallel_params(module: nn.Module, named_params: bool = False) -> Iterator[Any]:
        for name, parameter in module.named_parameters():
            if not hasattr(parameter, "_ddp_ignored"):
                yield (name, parameter) if named_params else parameter

    def _get_ddp_logging_data(self) -> dict[str, str | int]:
        return logging_data(cast("DistributedDataParallel", self))

    def _register_buffer_comm_hook(self, state: Any, hook: Callable[..., Any], comm_hook_location: Any = None) -> None:
        if not callable(hook):
            raise TypeError(f"hook must be callable, got {type(hook).__name__}")
        after = comm_hook_location is None or comm_hook_location.name == "POST_FORWARD"
        self.buffer_sync.set_hook(hook, state, after_forward=after)

    def _register_builtin_comm_hook(self, comm_hook_type: Any) -> None:
        raise OptionError(
            f"{comm_hook_type} is a hook built into torch's C++ reducer, which is not used here",
            remedy="register the hook of the same name in torch.distributed.algorithms.ddp_comm_hooks.default_hooks",
        )

    def _register_fused_optim(self, optim: type, *args: Any, optim_params: Any = None, **kwargs: Any) -> None:
        from torch.distributed.algorithms._optimizer_overlap import _as_overlapped_optim

        _as_overlapped_optim(optim, optim_params, *args, **kwargs).register_ddp(self)

    def _set_static_graph(self) -> None:
        self.reducer.set_static_graph()

    def _set_ddp_sink_clone(self, val: bool) -> None:
        self.clone_outputs = val

    def _check_reducer_finalized(self) -> None:
        self.reducer.check_finished()

    def _remove_autograd_hooks(self) -> None:
        self.reducer.remove_hooks()
