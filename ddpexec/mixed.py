"""`mixed_precision`: forward, backward and reduction in a lower precision, parameters and gradients kept in full."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor, nn

from ddpexec.errors import OptionError


class MixedPrecision:
    """Swaps parameters for copies of lower precision before forward and back when gradients are reduced.

    Args:
        config: torch's `_MixedPrecision`, or anything with its attributes; the reduction is in `param_dtype`.
        module: the wrapped module; its buffers are cast at once.
    """

    def __init__(self, config: Any, module: nn.Module, ignored: Collection[str]) -> None:
        if config.param_dtype is None:
            raise OptionError("mixed_precision without param_dtype", remedy="give the dtype to compute in")
        if config.reduce_dtype not in (None, config.param_dtype):
            raise OptionError(
                f"reduce_dtype={config.reduce_dtype} and param_dtype={config.param_dtype} differ",
                remedy="give one dtype; to reduce in another, register a communication hook",
            )
        self.dtype: torch.dtype = config.param_dtype
        self._parameters = [tensor for name, tensor in module.named_parameters() if name not in ignored]
        for parameter in self._parameters:
            parameter._mp_param = torch.zeros_like(parameter, dtype=self.dtype)  # type: ignore[attr-defined]
            parameter._fp_param = parameter.data  # type: ignore[attr-defined]
        if config.buffer_dtype is not None:
            for name, buffer in module.named_buffers():
                if name not in ignored:
                    buffer.data = buffer.to(config.buffer_dtype)

    def cast(self, value: Any) -> Any:
        """Return floating point inputs in the lower precision."""
        return value.to(self.dtype) if isinstance(value, Tensor) and value.is_floating_point() else value

    @torch.no_grad()
    def lower(self) -> None:
        """Compute with copies in the lower precision from now on."""
        for parameter in self._parameters:
            low: Tensor = parameter._mp_param  # type: ignore[attr-defined]
            low.copy_(parameter._fp_param)  # type: ignore[attr-defined]
            grad, parameter.grad = parameter.grad, None
            parameter.data = low
            if grad is not None:
                parameter.grad = grad.to(self.dtype)

    @torch.no_grad()
    def restore(self) -> None:
        """Put the full precision back, gradients too."""
        for parameter in self._parameters:
            full: Tensor = parameter._fp_param  # type: ignore[attr-defined]
            grad, parameter.grad = parameter.grad, None
            parameter.data = full
            if grad is not None:
                parameter.grad = grad.to(full.dtype)
