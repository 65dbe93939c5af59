"""Several ranks that share one GPU over gloo: the same gradients as under torch's DDP."""

from __future__ import annotations

import pytest
import torch

from tests.gpu.places import CPU, Place
from tests.gpu.training import Training, same

STEPS = 4


def compared(rank: int, device: torch.device) -> dict[str, bool]:
    """Return for copies and views, and each step, whether gradients and parameters are those under torch's DDP."""
    found = {}
    for view in (False, True):
        options = {"gradient_as_bucket_view": view}
        ours, theirs, alone = (Training(kind, device, rank, options) for kind in ("ddpexec", "torch", "none"))
        for number in range(STEPS):
            for training in (ours, theirs, alone):
                training.step()
            found[f"view {view}, step {number}"] = same(ours.state(), theirs.state())
        found[f"view {view}: averaged"] = not same(ours.gradients, alone.gradients)
    return found


@pytest.mark.parametrize("world_size", [2, 4])
def test_gradients_are_those_under_torchs_ddp(place: Place, world_size: int) -> None:
    if place == CPU and world_size == 4:
        pytest.skip("two ranks on a CPU show that the test works")
    for found in place.run(compared, world_size=world_size):
        assert all(found.values()), found
