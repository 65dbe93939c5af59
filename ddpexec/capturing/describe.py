"""A torch module in ddpsim's terms: its buffers, its device's model, and whether torch.compile compiles it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any

import torch
from torch import nn

from ddpsim.workload import Buffer
from ddpsim.workload.fusing import INDUCTOR, INDUCTOR_GRAPHS
from ddpsim.workload.gpus import gpu_model

_GRAPHS = "triton.cudagraphs"
_CALLER = "torch/_dynamo/eval_frame.py"


class Compiles:
    """Tells whether torch.compile has compiled a module, a part of it, or a step that calls it.

    Args:
        module: that is trained.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module, self._before = module, _graphs()

    @property
    def seen(self) -> bool:
        """Whether the module is compiled, or graphs were compiled since this object was constructed."""
        return is_compiled(self._module) or _graphs() > self._before


def is_compiled(module: nn.Module) -> bool:
    """Return whether torch.compile was called on `module` or on a part of it."""
    return any(True for _ in _calls(module))


def compiler_of(module: nn.Module) -> str | None:
    """Return the one of `fusing.COMPILERS` that torch.compile was called with; None without one of them."""
    configs = [getattr(call, "get_compiler_config", lambda: None)() for call in _calls(module)]
    return next((compiler for config in configs if (compiler := _compiler(config))), None)


def find_calling_compiler() -> tuple[bool, str | None]:
    """Return whether what runs now was called through torch.compile, as a step is, and by which compiler."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_filename.replace("\\", "/").endswith(_CALLER):
            context = frame.f_locals.get("self")
            if type(context).__name__ == "OptimizeContext":
                return True, _compiler(getattr(context, "compiler_config", None))
        frame = frame.f_back
    return False, None


def _calls(module: nn.Module) -> Iterator[Any]:
    """Yield the compiled calls of the module and of its submodules."""
    for each in module.modules():
        if type(each).__name__ == "OptimizedModule":
            yield each
        elif (call := getattr(each, "_compiled_call_impl", None)) is not None:
            yield call


def _compiler(config: object) -> str | None:
    """Return the compiler with `config`; backends other than inductor have none."""
    if not isinstance(config, Mapping):
        return None
    return INDUCTOR_GRAPHS if config.get(_GRAPHS) else INDUCTOR


def _graphs() -> int:
    """Return how many graphs this process has compiled; the compiler is not loaded for that."""
    loaded: Any = sys.modules.get("torch._dynamo.utils")
    return 0 if loaded is None else int(loaded.counters["stats"]["unique_graphs"])


def describe_buffers(module: nn.Module) -> tuple[Buffer, ...]:
    """Return the buffers DDP broadcasts, in registration order, each once."""
    return tuple(
        Buffer(name, tuple(b.shape), str(b.dtype).removeprefix("torch.")) for name, b in module.named_buffers()
    )


def device_model(device: torch.device) -> str:
    """Return what ddpsim calls the hardware of `device`: `cpu`, or the GPU's model."""
    return gpu_model(torch.cuda.get_device_name(device)) if device.type == "cuda" else device.type
