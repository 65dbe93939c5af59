"""How `torch.compile` splits a module under DDP: torch's `DDPOptimizer`, in plain Python.

It walks the forward's operators backwards, adds up the bytes of the parameters they read, and begins another graph
where a bucket would be full (`torch/_dynamo/backends/distributed.py`, torch 2.13). All gradients of one graph come when
its backward is over.
"""

from __future__ import annotations

from collections.abc import Sequence

from ddpsim.bucketing.assign import Parameter
from ddpsim.bucketing.caps import FIRST_BUCKET_BYTES, BucketCaps
from ddpsim.common.errors import PlanError
from ddpsim.common.units import MIB


def graph_splits(parameters: Sequence[Parameter], caps: BucketCaps, order: Sequence[int]) -> list[tuple[int, ...]]:
    """Return the registration indices in each graph, those of the first to run backward first.

    The first limit is torch's own, 1 MiB, whatever the caps are; of a list of caps the largest is the other one.

    Args:
        parameters: in registration order.
        caps: of the constructor.
        order: in which gradients arrive, which is that of operators backwards; neighbours of one module belong to one
            operator.

    Raises:
        PlanError: caps below the first limit, with which torch's own does not compile.
    """
    cap = max(caps.limits())
    if cap < FIRST_BUCKET_BYTES:
        remedy = "compile with a cap of 1 MiB or more, or set torch._dynamo.config.optimize_ddp = False"
        what = f"torch.compile refuses a bucket cap of {cap / MIB:g} MiB, below its first of 1 MiB"
        raise PlanError(what, place="compiled", remedy=remedy)
    graphs: list[list[int]] = [[]]
    size, module = 0, ""
    for index in order:
        owner = parameters[index].name.rpartition(".")[0]
        full = size >= (FIRST_BUCKET_BYTES if len(graphs) == 1 else cap)
        if full and not (owner and owner == module):
            graphs.append([])
            size = 0
        graphs[-1].append(index)
        size += parameters[index].size_bytes
        module = owner
    return [tuple(graph) for graph in graphs]
