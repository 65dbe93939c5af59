"""`mixed_precision`: forward, backward and reduction in a lower precision, parameters and gradients kept in full."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.utils import _cast_forward_inputs

from ddpexec.errors import OptionError


class MixedPrecision:
    """Swaps parameters for copies of lower precision before forward, and back before reduced gradients are written.

    Args:
        config: torch's `_MixedPrecision`, or anything with its attributes. Buckets hold `param_dtype`; `reduce_dtype`,
            where given, is that of the sum over ranks.
        module: the wrapped module; its buffers are cast at once.
        ignored: names of the parameters and buffers that stay as they are.
    """

    def __init__(self, config: Any, module: nn.Module, ignored: Collection[str] = ()) -> None:
        if config.param_dtype is None:
            raise OptionError("mixed_precision without param_dtype", remedy="give the dtype to compute in")
        self.dtype: torch.dtype = config.param_dtype
        self.reduce_dtype: torch.dtype = config.reduce_dtype or config.param_dtype
        self._parameters = [tensor for name, tensor in module.named_parameters() if name not in ignored]
        for parameter in self._parameters:
            parameter._mp_param = torch.zeros_like(parameter, dtype=self.dtype)  # type: ignore[attr-defined]
            parameter._fp_param = parameter.data  # type: ignore[attr-defined]
        if config.buffer_dtype is not None:
            for name, buffer in module.named_buffers():
                if name not in ignored:
                    buffer.data = buffer.to(config.buffer_dtype)

    def cast_inputs(self, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Compute in the lower precision from now on; return floating point inputs, nested ones too, in it."""
        self.lower()
        lowered: tuple[tuple[Any, ...], dict[str, Any]] = _cast_forward_inputs(self.dtype, *inputs, **kwargs)
        return lowered

    @torch.no_grad()
    def lower(self) -> None:
        """Compute with copies in the lower precision from now on, of other weights where `.data` was replaced."""
        for parameter in self._parameters:
            low: Tensor = parameter._mp_param  # type: ignore[attr-defined]
            if parameter.data_ptr() not in (low.data_ptr(), parameter._fp_param.data_ptr()):  # type: ignore[attr-defined]
                parameter._fp_param = parameter.data  # type: ignore[attr-defined]
            low.copy_(parameter._fp_param)  # type: ignore[attr-defined]
            self._swap(parameter, low)

    @torch.no_grad()
    def restore(self) -> None:
        """Put the full precision back, gradients too."""
        for parameter in self._parameters:
            self._swap(parameter, parameter._fp_param)  # type: ignore[attr-defined]

    @staticmethod
    def _swap(parameter: nn.Parameter, data: Tensor) -> None:
        # The gradient's own data is swapped, not the gradient: what its type may be was settled with the parameter's.
        if parameter.grad is not None:
            parameter.grad.data = parameter.grad.to(data.dtype)
        parameter.data = data
