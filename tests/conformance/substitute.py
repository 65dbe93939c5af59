"""Another class in the place of `torch.nn.parallel.DistributedDataParallel`, ranks forked, no GPU asked for."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any


def substitute(spec: str) -> None:
    """Put the class `module:name` in torch's place; `torch` keeps torch's own."""
    import torch
    from torch.nn import parallel
    from torch.nn.parallel import distributed
    from torch.testing._internal import common_distributed as common

    torch.set_num_threads(1)
    under_test: Any = distributed.DistributedDataParallel
    if spec != "torch":
        module, _, name = spec.partition(":")
        under_test = getattr(importlib.import_module(module), name)
        parallel.DistributedDataParallel = under_test
        distributed.DistributedDataParallel = under_test
    _drop_devices(under_test)
    _fork_ranks(common)
    for name in ("skip_if_lt_x_gpu", "require_n_gpus_for_nccl_backend"):
        setattr(common, name, lambda *_: _unchanged)
    common.skip_if_no_gpu = _unchanged


def _unchanged(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


def _drop_devices(under_test: Any) -> None:
    """Let the constructor forget device_ids and output_device, as there is only a CPU."""
    construct = under_test.__init__

    @functools.wraps(construct)
    def without_devices(self: Any, module: Any, *args: Any, **kwargs: Any) -> None:
        rest = [None if place < 2 else value for place, value in enumerate(args)]
        kept = {name: value for name, value in kwargs.items() if name not in ("device_ids", "output_device")}
        construct(self, module, *rest, **kept)

    under_test.__init__ = without_devices


def _fork_ranks(common: Any) -> None:
    import torch

    def fork(self: Any) -> None:
        self._start_processes(torch.multiprocessing.get_context("fork").Process)

    common.MultiProcessTestCase._spawn_processes = fork
