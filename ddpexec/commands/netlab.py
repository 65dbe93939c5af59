"""`python -m ddpexec netlab`: run a command once a rank on a network of a given shape."""

from __future__ import annotations

from typing import Annotated, Optional

import typer


def netlab(
    command: Annotated[list[str], typer.Argument(help="What to run on every rank, after --.")],
    ranks: Annotated[Optional[int], typer.Option(help="How many nodes of one rank each, on one switch.")] = None,  # noqa: UP045
    rate: Annotated[Optional[str], typer.Option(help="Of every node's link, e.g. 1gbit.")] = None,  # noqa: UP045
    delay: Annotated[Optional[str], typer.Option(help="One way from node to node, e.g. 0.2ms.")] = None,  # noqa: UP045
    topology: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="Instead of the three: a shipped topology or a YAML file, one NIC a node."),
    ] = None,
    nodes: Annotated[Optional[int], typer.Option(min=1, help="With --topology: how many of its nodes.")] = None,  # noqa: UP045
) -> None:
    """Build a network of namespaces with shaped links, run COMMAND on every rank as torchrun would, take it down."""
    from ddpexec.lab.netlab.command import parse_topology, run_command

    raise typer.Exit(run_command(parse_topology(ranks, rate, delay, topology), command, nodes=nodes))
