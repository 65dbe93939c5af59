"""What inductor moves for cuts of a graph: `python -m studies.host_costs.graph_bytes`, some three minutes.

Layers of a Llama, an eighth as wide as Llama 3.2 1B's on as many tokens a width, are compiled by inductor in one graph
and, split by torch's own `DDPOptimizer`, at caps that are as large beside a layer. Inductor counts the bytes that its
kernels and its libraries' read and write; no kernel is built or run. Beside it stands what `graph_passes` of
`ddpsim.collectives.ddp_priors` makes of the bytes that the estimate counts across the same cuts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch._dynamo.backends.distributed import DDPOptimizer
from torch._dynamo.backends.registry import lookup_backend
from torch._inductor import config, metrics
from torch._inductor.async_compile import AsyncCompile

from ddpexec.capturing.models.training import Batch, TrainingModel, as_tensor
from ddpexec.capturing.shapes import count_training_step
from ddpsim.bucketing import BucketCaps
from ddpsim.bucketing.compiled import graph_splits
from ddpsim.collectives.calibration import Calibration
from studies.command import parser
from studies.published.llama_step import GROUPS, HEADS, INNER, WIDTH, Layers

SHRUNK = 16
"""How many times narrower the layers are, with heads of the same share of the width."""
LAYERS, TOKENS = 2, 32768
CAPS_MB = (25, 100, 200)
MIB = 1 << 20


def layers() -> nn.Module:
    """Return the layers."""
    return Layers(WIDTH // SHRUNK, INNER // SHRUNK, LAYERS, HEADS // 4, GROUPS // 4)


def inputs(device: torch.device | str = "cpu") -> tuple[Tensor, Tensor, Tensor]:
    """Return what the layers are called with."""
    width, tokens = WIDTH // SHRUNK, TOKENS // SHRUNK
    rotation = torch.ones(tokens, width // (HEADS // 4), device=device)
    return torch.ones(1, tokens, width, device=device, requires_grad=True), rotation, rotation


def inductors_bytes(backend: Any) -> int:
    """Return the bytes that inductor counts of forward and backward."""
    torch._dynamo.reset()
    metrics.reset()
    skip: Callable[..., Any] = lambda *_, **__: lambda *_: None  # noqa: E731
    with mock.patch.object(AsyncCompile, "cpp_pybinding", skip), config.patch(force_disable_caches=True):
        made = torch.compile(layers(), backend=backend)
        with torch.autocast("cpu", torch.bfloat16):
            out = made(*inputs())
        out.sum().backward()
    return metrics.num_bytes_accessed


def counted(caps: Sequence[int]) -> list[tuple[int, float]]:
    """Return the graphs at each cap, and the bytes that are priced for their cuts."""

    def make() -> TrainingModel:
        def batch(size: int, device: torch.device, generator: torch.Generator | None) -> Batch:
            return Batch(inputs(device), ())

        return TrainingModel("layers", layers(), 1, "sequence", batch, lambda output, batch: as_tensor(output).sum())

    with torch.device("meta"):
        model = make()
    shape = count_training_step(model, 1, make)
    under = shape.amp
    assert under is not None
    assert under.forward_use is not None
    passes = 2 * Calibration.priors("nccl").constants["nccl.ddp.graph_passes"].value
    wide = [replace(each, shape=(SHRUNK**2, *each.shape)) for each in shape.parameters]
    found = []
    for cap in caps:
        graphs = graph_splits(wide, BucketCaps(bucket_cap_mb=cap), range(len(wide) - 1, -1, -1))
        firsts = [min(use for index in graph if (use := under.forward_use[index]) is not None) for graph in graphs]
        found.append((len(graphs), passes * sum(under.forward[first].edge_bytes for first in firsts[:-1])))
    return found


def main() -> None:
    """Print the bytes of one graph, and for each cap what its cuts add."""
    torch._logging._internal.set_logs(inductor_metrics=True)
    torch.manual_seed(0)
    whole = inductors_bytes("inductor")
    print(f"one graph: {whole / MIB:.1f} MiB")
    for cap, (graphs, priced) in zip(CAPS_MB, counted(CAPS_MB), strict=True):
        first = MIB // SHRUNK**2
        optimizer = DDPOptimizer(cap * first, lookup_backend("inductor"), first_bucket_cap=first)
        more = inductors_bytes(optimizer.compile_fn) - whole
        cuts = f"cap {cap} MiB, {len(optimizer.buckets)} graphs ({graphs} counted)"
        print(f"{cuts}: {more / MIB:+.1f} MiB, priced {priced / MIB:+.1f}")


if __name__ == "__main__":
    parser(__doc__).parse_args()
    main()
