"""PowerSGD's hook: gradients of any shape, parameters that no rank used, several buckets over gloo."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as TorchDDP

from ddpexec.ddp.compression import hook_for
from ddpexec.ddp.wrapper import DistributedDataParallel
from tests.ddpexec.groups import ranks


class Shapes(nn.Module):
    """A scalar, nothing, a convolution and a matrix, strided or not, and a branch that some iterations leave out."""

    def __init__(self, strided):
        super().__init__()
        torch.manual_seed(3)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.empty = nn.Parameter(torch.zeros(0, 5))
        self.conv = nn.Conv2d(8, 16, 3).to(memory_format=torch.channels_last if strided else torch.contiguous_format)
        self.matrix = nn.Parameter(torch.randn(12, 16).t() if strided else torch.randn(16, 12))
        self.branch = nn.Linear(12, 12)
        self.head = nn.Linear(12, 10)

    def forward(self, images, use_branch):
        hidden = self.conv(images).mean(dim=(2, 3)) @ self.matrix * self.scale + self.empty.sum()
        return self.head(self.branch(hidden) if use_branch else hidden)


def trained(rank, wrapper, bucket_cap_mb, strided):
    """Return the weights after five iterations of which three are compressed; the first and the last use the branch."""
    model = Shapes(strided).double()
    ddp = wrapper(model, bucket_cap_mb=bucket_cap_mb, find_unused_parameters=True)
    state, hook = hook_for("powersgd:1")
    state.start_powerSGD_iter = 2
    ddp.register_comm_hook(state, hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    images = torch.randn(4, 8, 5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(rank))
    for iteration in range(5):
        optimizer.zero_grad()
        ddp(images, iteration in (0, 4)).square().mean().backward()
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


@pytest.mark.parametrize("bucket_cap_mb", [25, 0.0001])
@pytest.mark.parametrize("strided", [False, True])
def test_ranks_end_alike_under_torchs_wrapper_and_ours(bucket_cap_mb, strided):
    theirs = ranks.run(2, trained, TorchDDP, bucket_cap_mb, strided)
    ours = ranks.run(2, trained, DistributedDataParallel, bucket_cap_mb, strided)
    for first, second in (theirs, ours):
        for begun, one, other in zip(Shapes(strided).double().parameters(), first, second, strict=True):
            assert torch.isfinite(one).all()  # a branch that no rank used is not 0 / 0
            assert torch.equal(one, other)
            assert begun.numel() == 0 or not torch.equal(one, begun)
    if not strided:  # torch's buckets read a strided gradient in the order of memory as if it were contiguous
        torch.testing.assert_close(theirs, ours, rtol=1e-9, atol=1e-9)
