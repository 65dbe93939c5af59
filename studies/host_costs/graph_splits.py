"""What each further graph costs a compiled step: `python -m studies.host_costs.graph_splits`, about five minutes.

Residual blocks are compiled by inductor in one graph and in several, split by torch's own `DDPOptimizer`, and run by
turns on one thread of this machine's processor. The blocks are tiny, so that the host's share is what is seen.
`ddpsim.collectives.ddp_priors` holds the result as `graph_s`.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch
from torch import Tensor, nn
from torch._dynamo.backends.distributed import DDPOptimizer
from torch._dynamo.backends.registry import lookup_backend

from studies.command import parser

WIDTH, BATCH, BLOCKS = 32, 4, 8
GRAPHS = (1, 2, 4, 8)
ROUNDS = 400


class Block(nn.Module):
    """Two linear layers with a norm and an activation, and the sum around them."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.wide, self.narrow = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Return what the block adds to `x`, and `x`."""
        added: Tensor = self.narrow(nn.functional.gelu(self.wide(self.norm(x))))
        return x + added


def compiled(graphs: int) -> tuple[nn.Module, Any, int]:
    """Return the network, what runs it compiled, and in how many graphs that is."""
    torch._dynamo.reset()
    network = nn.Sequential(*(Block() for _ in range(BLOCKS)))
    size_bytes = sum(4 * parameter.numel() for parameter in network.parameters())
    cap = size_bytes // graphs - 4 * WIDTH
    optimizer = DDPOptimizer(cap, lookup_backend("inductor"), first_bucket_cap=cap)
    made = torch.compile(network, backend=optimizer.compile_fn)
    made(torch.ones(BATCH, WIDTH)).sum().backward()
    return network, made, len(optimizer.buckets)


def step_s(network: nn.Module, made: Any) -> float:
    """Return the thread's time of one forward and backward; the clock stands still where others have the processor."""
    begin = time.thread_time()
    made(torch.ones(BATCH, WIDTH)).sum().backward()
    taken_s = time.thread_time() - begin
    network.zero_grad()
    return taken_s


def main() -> None:
    """Print the median step by graphs, and what one more graph takes."""
    torch.set_num_threads(1)
    subjects = [compiled(graphs) for graphs in GRAPHS]
    times: list[list[float]] = [[] for _ in subjects]
    for _ in range(ROUNDS):
        for taken, (network, made, _) in zip(times, subjects, strict=True):
            taken.append(step_s(network, made))
    medians = [statistics.median(taken[ROUNDS // 4 :]) for taken in times]
    counts = [count for *_, count in subjects]
    for count, median in zip(counts, medians, strict=True):
        print(f"{count} graphs: {median * 1e6:.0f} us")
    further = zip(counts[1:], medians[1:], strict=True)
    slopes = [(median - medians[0]) / (count - counts[0]) for count, median in further]
    print(f"a graph more: {', '.join(f'{slope * 1e6:.0f}' for slope in slopes)} us")


if __name__ == "__main__":
    parser(__doc__).parse_args()
    main()
