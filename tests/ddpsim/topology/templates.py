"""Nodes by the name of a shipped machine, or by the text of a file's `node`."""

from __future__ import annotations

from ddpsim.topology.graph import NodeTemplate
from ddpsim.topology.spec import load_topology, parse_topology


def template_named(name: str) -> NodeTemplate:
    """Return the first template of a shipped machine."""
    return load_topology(name).groups[0].template


def node_from(text: str) -> NodeTemplate:
    """Return the template that `text`, the lines below `node:`, describes."""
    return parse_topology(f"name: x\nnode:\n{text}", "x.yaml").groups[0].template
