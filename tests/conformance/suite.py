"""torch's distributed tests from its wheel, over gloo on this machine; collected by `run.py` alone."""

from __future__ import annotations

from typing import Any

import torch
from torch.testing._internal.distributed import distributed_test
from torch.testing._internal.distributed.distributed_test import DistributedTest, TestDistBackend

PICTURE = 16


class SmallerInput(distributed_test.DDPUnevenTestInput):
    """A case of `test_ddp_uneven_inputs`: its picture of 1000 x 1000 takes a CPU 20 s an iteration, a corner does."""

    def __new__(cls, name: str, model: torch.nn.Module, inp: Any, *args: Any, **kwargs: Any) -> SmallerInput:
        picture = isinstance(inp, torch.Tensor) and inp.dim() == 4
        return super().__new__(cls, name, model, inp[..., :PICTURE, :PICTURE] if picture else inp, *args, **kwargs)


distributed_test.DDPUnevenTestInput = SmallerInput  # type: ignore[misc]


class TestDistBackendWithSpawnGLOO(TestDistBackend, DistributedTest._DistTestBase):
    def setUp(self) -> None:
        super().setUp()
        self._spawn_processes()


del TestDistBackend
