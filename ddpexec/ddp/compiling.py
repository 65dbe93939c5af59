"""What `torch.compile` leaves alone: the wrapped module is compiled, what happens around it runs as it is.

`torch.compiler.disable` would say the same, but loads the compiler, which takes seconds, into every process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from torch import nn
from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy

Method = TypeVar("Method", bound=Callable[..., Any])


def disable_compile(method: Method) -> Method:
    """Let `method`, and all that it calls, run uncompiled."""
    return _skip(method, _FrameAction.SKIP)


def disable_own_compile(method: Method) -> Method:
    """Let `method` run uncompiled; what it calls may be compiled."""
    return _skip(method, _FrameAction.DEFAULT)


def call(module: nn.Module, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call `module`: the frame at which compilation begins, as it does not at a method of torch's own modules."""
    return module(*inputs, **kwargs)


def _skip(method: Method, inside: Any) -> Method:
    set_code_exec_strategy(method.__code__, _FrameExecStrategy(_FrameAction.SKIP, inside))
    method._torchdynamo_disable = True  # type: ignore[attr-defined]
    return method
