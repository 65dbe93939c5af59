"""A training loop of stock DDP that traces itself; any loop takes the same three lines.

Started by torchrun on every node; writes to the folder that TRACE names.
"""

import os
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import ddpexec  # 1, of three

WIDTH, LAYERS, BATCH, STEPS = 512, 4, 32, 40


def model(device: torch.device) -> nn.Module:
    """Return what is trained."""
    return nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(LAYERS))).to(device)


def alone() -> tuple[nn.Module, Callable[[], None]]:
    """Return the model and a step of it without DDP, for `python -m ddpexec capture --step`."""
    net, batch = model(torch.get_default_device()), torch.randn(BATCH, WIDTH)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)

    def step() -> None:
        net(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return net, step


def main() -> None:
    """Train on this rank."""
    gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if gpu else "gloo")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpu else torch.device("cpu")
    ddp = nn.parallel.DistributedDataParallel(model(device), bucket_cap_mb=1)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01, momentum=0.9)
    samples = TensorDataset(torch.randn(BATCH * STEPS * dist.get_world_size(), WIDTH))
    loader = DataLoader(samples, batch_size=BATCH, sampler=DistributedSampler(samples))

    with ddpexec.trace(os.environ["TRACE"], every=1):  # 2
        for (batch,) in loader:  # 3: the loop, one level in
            ddp(batch.to(device)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
