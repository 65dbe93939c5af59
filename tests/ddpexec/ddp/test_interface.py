"""The methods of our class that torch's has too take its arguments by the same names."""

from __future__ import annotations

import inspect

import pytest
import torch

from ddpexec.ddp.wrapper import DistributedDataParallel

STOCK = torch.nn.parallel.DistributedDataParallel
SHARED = sorted(
    name
    for name in set(dir(STOCK)) - set(dir(torch.nn.Module)) | {"__init__"}
    if callable(getattr(STOCK, name)) and callable(getattr(DistributedDataParallel, name, None))
)


@pytest.mark.parametrize("name", SHARED)
def test_arguments_are_named_as_torchs(name: str) -> None:
    ours, theirs = (
        list(inspect.signature(getattr(kind, name)).parameters) for kind in (DistributedDataParallel, STOCK)
    )
    ours = ["self" if argument == "ddp" else argument for argument in ours]  # functions of a wrapper, as methods of it
    assert ours[: len(theirs)] == theirs
