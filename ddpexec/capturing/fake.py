"""Tensors without memory: shapes and types go through a step, values do not."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.utils._pytree import tree_map_only
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

_POINTER = "Accessing the data pointer of FakeTensor is deprecated"
_LOG = logging.getLogger("torch._subclasses.fake_tensor")


@contextmanager
def make_fakes() -> Iterator[FakeTensorMode]:
    """Make every tensor that is created within the context a fake one; real ones are taken as fake where they meet.

    Data loaders load for real, as what they shuffle and read has values. torch's log of operators that fakes do not do
    is silent meanwhile: what they raise says it; and so is its warning that a fake's data pointer was asked for.
    """
    swap, level = torch.utils.swap_tensors, _LOG.level
    torch.utils.swap_tensors = _replace_data
    _LOG.setLevel(logging.CRITICAL)
    try:
        with (
            _load_for_real(),
            warnings.catch_warnings(),
            _copy_with_views(),
            FakeTensorMode(allow_non_fake_inputs=True) as mode,
        ):
            warnings.filterwarnings("ignore", message=_POINTER)
            yield mode
    finally:
        torch.utils.swap_tensors = swap
        _LOG.setLevel(level)


@contextmanager
def _copy_with_views() -> Iterator[None]:
    """Let views of a fake's deep copy share its storage, as those of real copies do; torch's copy has one apart."""

    def copied(tensor: Tensor, memo: dict[int, Any]) -> Tensor:
        if id(tensor) not in memo:
            fresh = tensor.detach().clone().requires_grad_(tensor.requires_grad)
            memo[id(tensor)] = nn.Parameter(fresh, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else fresh
        copy: Tensor = memo[id(tensor)]
        return copy

    FakeTensor.__deepcopy__ = copied  # type: ignore[method-assign]
    try:
        yield
    finally:
        del FakeTensor.__deepcopy__


@contextmanager
def _load_for_real() -> Iterator[None]:
    places: list[tuple[Any, str]] = [(DataLoader, "__iter__"), (_BaseDataLoaderIter, "__next__")]
    plain = [getattr(kind, name) for kind, name in places]

    def unfaked(method: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def call(loader: Any) -> Any:
            with unset_fake_temporarily():
                return method(loader)

        return call

    for (kind, name), method in zip(places, plain, strict=True):
        setattr(kind, name, unfaked(method))
    try:
        yield
    finally:
        for (kind, name), method in zip(places, plain, strict=True):
            setattr(kind, name, method)


def copy_as_fake(module: nn.Module, batch: object, mode: FakeTensorMode) -> tuple[nn.Module, object]:
    """Return copies of `module` and `batch` on fake tensors; parameters and buffers that were shared still are."""
    fakes: dict[int, Any] = {}
    for parameter in module.parameters():
        fakes[id(parameter)] = nn.Parameter(mode.from_tensor(parameter.detach()), parameter.requires_grad)
    for buffer in module.buffers():
        fakes[id(buffer)] = mode.from_tensor(buffer)
    return copy.deepcopy(module, fakes), tree_map_only(Tensor, mode.from_tensor, batch)


def _replace_data(parameter: Tensor, converted: Tensor) -> None:
    """Give `parameter` the data of `converted`, as `module.to()` wants it; torch's swap refuses fakes that are tied."""
    parameter.data = converted.data
