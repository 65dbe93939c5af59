"""Tensors as MPI's buffers, and torch's reductions as MPI's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ddpexec.errors import OptionError
from ddpexec.groups.mpi_world import mpi

_NAMES = {
    torch.float32: "FLOAT",
    torch.float64: "DOUBLE",
    torch.int8: "INT8_T",
    torch.uint8: "UINT8_T",
    torch.int16: "INT16_T",
    torch.int32: "INT32_T",
    torch.int64: "INT64_T",
    torch.bool: "UINT8_T",
    torch.float16: "UINT16_T",
    torch.bfloat16: "UINT16_T",
}
"""MPI's type of as many bytes; of floats that MPI 3 has not, and of bool, one that it moves, and our functions add."""

_OPERATIONS = {"SUM": "SUM", "AVG": "SUM", "PRODUCT": "PROD", "MIN": "MIN", "MAX": "MAX"}
_BITS = {"BAND": "BAND", "BOR": "BOR", "BXOR": "BXOR"}
_OURS: dict[str, Callable[..., Tensor]] = {
    "SUM": torch.add,
    "PROD": torch.mul,
    "MIN": torch.minimum,
    "MAX": torch.maximum,
}


def check_tensor(tensor: Tensor) -> Tensor:
    """Return `tensor` where MPI can send it.

    Raises:
        OptionError: it is sparse, lies on another device, or is of a type that MPI has not.
    """
    if tensor.is_sparse or tensor.device.type != "cpu":
        where = "sparse" if tensor.is_sparse else f"on {tensor.device}"
        raise OptionError(f"a tensor {where}: MPI is used for dense ones on the CPU", remedy="use gloo or nccl")
    if tensor.dtype not in _NAMES:
        raise OptionError(f"MPI has no type for {tensor.dtype}", remedy="use another type, or gloo")
    return tensor


def buffer_of(tensor: Tensor) -> list[Any]:
    """Return the memory of a contiguous tensor and MPI's type; how many elements go to a rank, mpi4py finds out."""
    module = mpi()
    memory = module.buffer.fromaddress(tensor.data_ptr(), tensor.nbytes)
    return [memory, getattr(module, _NAMES[tensor.dtype])]


@contextmanager
def contiguous(tensor: Tensor) -> Iterator[Tensor]:
    """Give the elements of `tensor` in one piece of memory; what is written there is in the tensor afterwards."""
    if tensor.is_contiguous():
        yield tensor
        return
    piece = tensor.contiguous()
    yield piece
    tensor.copy_(piece)


def reduction(operation: Any, dtype: torch.dtype) -> Any:
    """Return MPI's operation for torch's, an average as its sum.

    Raises:
        OptionError: MPI has none, or none of this type.
    """
    names = (*_OPERATIONS, *_BITS)
    name = next((name for name in names if operation == getattr(dist.ReduceOp, name)), "such reduction")
    whole = not dtype.is_floating_point
    theirs = _OPERATIONS.get(name) or (_BITS.get(name) if whole else None)
    if theirs is None or (name == "AVG" and whole):
        raise OptionError(f"MPI has no {name} of {dtype}", remedy="use SUM, PRODUCT, MIN or MAX")
    module = mpi()
    if dtype is torch.bool:
        logical = {"SUM": "MAX", "PROD": "MIN"}.get(theirs, theirs)
        return getattr(module, logical)
    if dtype in (torch.float16, torch.bfloat16):
        return _make_operation(theirs, dtype)
    return getattr(module, theirs)


def is_average(operation: Any) -> bool:
    """Whether torch's operation is the average."""
    return bool(operation == dist.ReduceOp.AVG)


@cache
def _make_operation(name: str, dtype: torch.dtype) -> Any:
    """Return an operation of MPI that is a function of torch: MPI 3 has no 16-bit floats."""
    function = _OURS[name]

    def combine(given: Any, combined: Any, _: Any) -> None:
        mine = torch.frombuffer(combined, dtype=dtype)
        function(torch.frombuffer(given, dtype=dtype), mine, out=mine)

    return mpi().Op.Create(combine, commute=True)
