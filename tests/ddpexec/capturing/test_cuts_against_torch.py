"""What crosses the cuts of a compiled step, held against the graph that torch's own `DDPOptimizer` cuts."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from ddpsim.bucketing import BucketCaps
from ddpsim.bucketing.compiled import graph_splits
from tests.ddpexec.capturing.test_autocast_operators import count_rows

ROWS, WIDTH = 8, 256
MIB = 1 << 20


class Gated(nn.Module):
    """A gated perceptron around a shortcut: the gate's activation waits for another product, the shortcut for all."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.gate, self.up, self.down = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))

    def forward(self, x):
        inner = self.norm(x)
        scaled = torch.tanh(inner)
        return x + self.down(F.silu(self.gate(inner)) * self.up(inner) * scaled)


def torchs_cuts(module, cap_bytes):
    """Return for each cut, the first in forward first, the bytes across it that no library's kernel makes or reads."""
    from torch._dynamo.backends.distributed import DDPOptimizer

    found = []

    def split(graph, inputs):
        optimizer = DDPOptimizer(cap_bytes, lambda module, _: module.forward)
        made = optimizer.compile_fn(graph, inputs)
        groups = [set(bucket.nodes) for bucket in optimizer.buckets]
        order = {node: place for place, node in enumerate(graph.graph.nodes)}
        for place in range(1, len(groups)):
            before, after = set().union(*groups[:place]), set().union(*groups[place:])
            crossing = [node for node in before if after & set(node.users) and fused(node, order)]
            found.append(sum(4 * node.meta["example_value"].numel() for node in crossing))
        return made

    torch._dynamo.reset()
    torch.compile(module, backend=split)(torch.ones(ROWS, WIDTH)).sum().backward()
    return found


def fused(node, order):
    """Whether all that reads what a node makes can be in its kernel."""
    return not library(node) and not any(library(user) or waits(node, user, order) for user in node.users)


def library(node):
    return node.op == "call_function" and "linear" in str(node.target)


def waits(node, user, order):
    """Whether a way from `node` to `user` leads through a library's kernel."""
    behind = {node}
    through = set()
    for each in sorted((other for other in order if order[node] < order[other] <= order[user]), key=order.get):
        if set(each.all_input_nodes) & behind:
            behind.add(each)
            if library(each) or set(each.all_input_nodes) & through:
                through.add(each)
    return user in through


@pytest.mark.parametrize("cap_mb", [1.0, 1.3])
def test_what_crosses_a_cut_is_what_torchs_own_graphs_pass_on_and_fusion_would_not_write(cap_mb):
    def make():
        return nn.Sequential(*(Gated() for _ in range(8)))

    counted = count_rows(make, ROWS, WIDTH)
    theirs = torchs_cuts(make(), int(cap_mb * MIB))
    caps = BucketCaps(bucket_cap_mb=cap_mb)
    graphs = graph_splits(counted.parameters, caps, range(len(counted.parameters) - 1, -1, -1))
    firsts = [min(counted.forward_use[index] for index in graph) for graph in reversed(graphs)]
    mine = [counted.forward[first].edge_bytes for first in firsts[1:]]
    assert len(mine) == len(theirs) >= 2
    assert mine == theirs
    assert any(mine) == (cap_mb == 1.0), "of larger graphs none ends within a gate"
