"""In which dtypes a sharded scheme gathers parameters and reduces gradients, and what each then weighs."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ddpsim.bucketing.assign import DTYPE_BYTES, Parameter
from ddpsim.common.errors import UnknownNameError

_SHORT = {"fp64": "float64", "fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """The dtypes of what a scheme sends; torch's `MixedPrecisionPolicy`.

    Attributes:
        gather: of gathered parameters, `param_dtype` there; None is each parameter's own.
        reduce: of reduced gradients, `reduce_dtype` there; None is that of gathered parameters.
    """

    gather: str | None = None
    reduce: str | None = None

    def gathered_bytes(self, parameter: Parameter, ranks: int = 1) -> int:
        """Return the bytes of a gathered parameter, with its rows filled up to a multiple of `ranks`."""
        return _pad_elements(parameter, ranks) * DTYPE_BYTES[self.gather or parameter.dtype]

    def reduced_bytes(self, parameter: Parameter, ranks: int = 1) -> int:
        """Return the bytes of a parameter's gradient as it is reduced, likewise."""
        return _pad_elements(parameter, ranks) * DTYPE_BYTES[self.reduce or self.gather or parameter.dtype]


def dtype_named(text: str, place: str) -> str:
    """Return torch's name of a dtype: `bfloat16` for `bf16` or itself.

    Raises:
        UnknownNameError: a name of no dtype.
    """
    name = _SHORT.get(text, text)
    if name not in DTYPE_BYTES:
        raise UnknownNameError.among("dtype", text, [*_SHORT, *DTYPE_BYTES], place=place)
    return name


def _pad_elements(parameter: Parameter, ranks: int) -> int:
    """Return the elements of all ranks' shards, each of as many whole rows (`_get_dim0_padded_size`, torch 2.13)."""
    rows = parameter.shape[0] if parameter.shape else 1
    return math.ceil(rows / ranks) * ranks * (parameter.numel // max(rows, 1))
