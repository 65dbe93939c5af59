"""`ddpsim topo`: `list` shows the shipped machines, `show` one of them, `import_` makes a file of what a node prints.

First come the parts of `show`: the channels (rings) of nodes, for --channels and the picture, and NCCL's transports
between GPUs; then the three commands with their texts.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ddpsim.cli.destination import STANDARD_OUTPUT, check_destination, deliver, plot_option
from ddpsim.cli.expand import expand
from ddpsim.cli.output import Output, note
from ddpsim.common.errors import InputError, list_few
from ddpsim.common.options.text import indices
from ddpsim.common.tables import break_line, table_of

if TYPE_CHECKING:
    from ddpsim.collectives.channels import Channel, Channels
    from ddpsim.collectives.nccl.paths_taken import ChosenPaths
    from ddpsim.topology.graph import Cluster, Placement, Topology
    from ddpsim.topology.transports import PairTransport

ChannelsByPlace = dict[str, "Channels"]
"""Channels by node template, within one node or among several."""


def channels_of(machine: Cluster, *, pxn: bool = True, gpudirect: bool | None = None) -> ChannelsByPlace:
    """Return the channels of each node template, on one node and, where it has NICs, among several.

    Args:
        pxn: whether a GPU may send to a far NIC through a GPU near it.
        gpudirect: overrides what the NICs say; None keeps it.
    """
    from ddpsim.collectives.channels import find_channels

    channels_by_place: ChannelsByPlace = {}
    for group in machine.groups:
        template = group.template
        gpus = machine.gpus_of(template)[: machine.gpus_per_node]
        channels_by_place[_format_one_node(template.name)] = find_channels(template, gpus)
        if template.nics:
            channels_by_place[_format_several_nodes(template.name)] = find_channels(
                template, gpus, network=True, pxn=pxn, gpudirect=gpudirect
            )
    return channels_by_place


def trees_over(nodes: int) -> list[tuple[int | None, ...]]:
    """Return the parent of each node in both of NCCL's trees; none over one node."""
    from ddpsim.collectives.trees import double_binary_tree

    return [tree.parents for tree in double_binary_tree(nodes)] if nodes > 1 else []


def walks(machine: Topology, channels_by_place: ChannelsByPlace) -> dict[str, dict[str, list[tuple[str, ...]]]]:
    """Return the distinct rings of each template to draw: closed on one node, between NICs among several."""
    rows: dict[str, dict[str, list[tuple[str, ...]]]] = {}
    for group in machine.groups:
        name = group.template.name
        rows[name] = {}
        if channels := channels_by_place.get(_format_one_node(name)):
            orders = dict.fromkeys(ring.gpus for ring in channels.rings)
            rows[name]["one node"] = [(*order, order[0]) for order in orders]
        if channels := channels_by_place.get(_format_several_nodes(name)):
            rows[name]["several nodes"] = list(dict.fromkeys(_list_stops(ring) for ring in channels.rings))
    return rows


def channels_document(channels_by_place: ChannelsByPlace) -> list[dict[str, object]]:
    """Return the channels as JSON values."""
    return [
        {
            "where": where,
            "bus_bandwidth_Bps": channels.bus_bandwidth,
            # A ring of one GPU passes no link, so that none bounds it.
            "sustained_bandwidth_Bps": channels.sustained_bandwidth if any(channels.loads()) else None,
            "rings": [
                {
                    "gpus": list(ring.gpus),
                    "nic_in": ring.nic_in,
                    "nic_out": ring.nic_out,
                    "bandwidth_Bps": ring.bandwidth,
                    "route_kind": ring.kind,
                    "nic_route_kind": ring.nic_kind if ring.nic_in else None,
                }
                for ring in channels.rings
            ],
            "tree_chains": [
                {"gpus": list(chain.gpus), "nic": chain.nic_in, "bandwidth_Bps": channels.tree_intra_bandwidth}
                for chain in channels.trees
            ],
        }
        for where, channels in channels_by_place.items()
    ]


def channels_text(channels_by_place: ChannelsByPlace, trees: list[tuple[int | None, ...]]) -> str:
    """Return rings and chains of trees as text, equal ones once, and the trees over nodes."""
    from ddpsim.common.units import format_bandwidth, format_count

    blocks = []
    for where, channels in channels_by_place.items():
        total = format_bandwidth(channels.bus_bandwidth)
        heading = f"{where}: {format_count(len(channels.rings), 'channel')}, {total} as NCCL counts it"
        rows = [
            {
                "channels": n,
                "ring": _format_ring(ring),
                "channel_bandwidth_Bps": ring.bandwidth,
                "farthest route": ring.kind,
                "to the NIC": ring.nic_kind if ring.nic_in else None,
            }
            for ring, n in _count_channels(channels.rings)
        ]
        rings = table_of("", rows).text()
        blocks.append(f"{heading}\n{rings}\n{_chains_text(channels)}")
    if trees:
        blocks.append(
            "\n".join([f"double binary tree over {format_count(len(trees[0]), 'node')}", *_tree_lines(trees)])
        )
    return "\n\n".join(blocks)


def _chains_text(channels: Channels) -> str:
    """Return the chains of trees: in a word where each is a ring's order."""
    from ddpsim.common.units import format_bandwidth

    inside = format_bandwidth(channels.tree_intra_bandwidth)
    if all(chain.gpus == ring.gpus for chain, ring in zip(channels.trees, channels.rings, strict=True)):
        return f"trees: a chain in each ring's order, {inside} each inside the node"
    rows = [
        {
            "channels": n,
            "chain of a tree, inside a node": " ".join((*([chain.nic_in] if chain.nic_in else []), *chain.gpus)),
            "channel_bandwidth_Bps": channels.tree_intra_bandwidth,
        }
        for chain, n in _count_channels(channels.trees)
    ]
    return table_of("", rows).text()


def _tree_lines(trees: list[tuple[int | None, ...]]) -> list[str]:
    """Return a line a tree: its root, and after each parent its children."""
    lines = []
    for number, parents in enumerate(trees):
        children: dict[int, list[int]] = {}
        for node, parent in enumerate(parents):
            if parent is not None:
                children.setdefault(parent, []).append(node)
        under = "; ".join(f"{parent}: {' '.join(map(str, below))}" for parent, below in sorted(children.items()))
        lines.append(f"tree {number}: root {parents.index(None)}; {under}")
    return lines


def _count_channels(channels: tuple[Channel, ...]) -> list[tuple[Channel, int]]:
    return list(Counter(channels).items())


def _format_one_node(name: str) -> str:
    return f"{name}, one node"


def _format_several_nodes(name: str) -> str:
    return f"{name}, several nodes"


def _list_stops(ring: Channel) -> tuple[str, ...]:
    return (*([ring.nic_in] if ring.nic_in else []), *ring.gpus, *([ring.nic_out] if ring.nic_out else []))


def _format_ring(ring: Channel) -> str:
    return " ".join(_list_stops(ring))


_SHOWN = 2
"""Pairs named before the rest is counted; chosen by hand, for one line."""


def transports_of(machine: Topology, nodes: int | None) -> ChosenPaths | None:
    """Return the transports over `nodes` nodes; where None, over the machine's own, two where one could be many."""
    from ddpsim.collectives.nccl.paths_taken import paths_taken

    return paths_taken(place_several(machine, nodes), every=True)


def place_several(machine: Topology, nodes: int | None = None) -> Placement:
    """Return a rank on each GPU of `nodes` nodes; where None, of the machine's own, two where one could be many."""
    own = 2 if machine.nodes == 1 and machine.elastic else machine.nodes
    return machine.place(own if nodes is None else nodes)


def transports_text(paths: ChosenPaths) -> str:
    """Return the transports of pairs that are alike in a line each, then what they and other choices give."""
    from ddpsim.topology.transports import group_pairs

    rows = [
        {
            "pairs": _pairs(group),
            "transport": group[0].name,
            "route": group[0].kind,
            "pair_bandwidth_Bps": group[0].bandwidth,
            "why not a closer one": group[0].why,
        }
        for group in group_pairs(paths.pairs)
    ]
    return "\n".join([table_of("", rows).text(), *map(break_line, paths.lines())])


def _pairs(group: list[PairTransport]) -> str:
    return list_few([f"{pair.first} - {pair.second}" for pair in group], _SHOWN)


app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="List, show and import machines: graphs of links.")


@app.command("list")
@expand
def list_(output: Output) -> None:
    """List the shipped machines."""
    from ddpsim.common import shipped
    from ddpsim.topology.spec import load_topology

    rows = []
    for name in shipped.names("topology"):
        machine = load_topology(name)
        template = machine.groups[0].template
        rows.append(
            {
                "name": name,
                "nodes": machine.nodes,
                "gpus_per_node": len(template.gpus),
                "gpu": machine.compute_device,
                "nics": len(template.nics),
                "fabric": machine.fabric.kind,
                "confidence": machine.confidence,
            }
        )
    output.emit({"topologies": rows}, lambda: table_of("topologies", rows).text())


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowArguments:
    """Arguments of `topo show`: a machine, how much of it, and what to print."""

    topology: Annotated[str, typer.Argument(metavar="T", help="Shipped machine, or a YAML file; - is standard input.")]
    channels: Annotated[bool, typer.Option("--channels", help="The rings and trees NCCL would find, too.")] = False
    gpus: Annotated[
        str | None, typer.Option(metavar="0,3,2", help="Channels over these GPUs of a node, in rank order. [all]")
    ] = None
    nodes: Annotated[
        int | None, typer.Option(metavar="N", help="Channels' trees over so many nodes. [the machine's own]")
    ] = None
    no_pxn: Annotated[
        bool, typer.Option("--no-pxn", help="Channels without passing a far NIC's bytes through a GPU near it.")
    ] = False
    no_gpudirect: Annotated[
        bool, typer.Option("--no-gpudirect", help="Channels whose bytes rest in host memory on the way to a NIC.")
    ] = False
    plot: Annotated[str | None, plot_option("Draw the graph.")] = None


@app.command()
@expand
def show(arguments: ShowArguments, output: Output) -> None:
    """Show one machine: its links, bandwidths in each direction, NCCL's transports between its GPUs, sources."""
    from ddpsim.topology.spec import load_topology

    check_destination(arguments.plot)
    machine = _select_visible(load_topology(arguments.topology), arguments.gpus, arguments.nodes)
    gpudirect = False if arguments.no_gpudirect else None
    joined, count = _join_domain(machine, arguments.nodes)
    channels_by_place = channels_of(joined, pxn=not arguments.no_pxn, gpudirect=gpudirect) if arguments.channels else {}
    trees = trees_over(count) if arguments.channels else []
    if arguments.plot:
        from ddpsim.report.plots import plot_topology

        plot_topology(machine, arguments.plot, walks(machine, channels_by_place), trees)
        note(f"wrote {arguments.plot}")
    paths = transports_of(machine, arguments.nodes)
    document = _document(machine)
    document |= {
        "transports": None if paths is None else paths.document(),
        "advice": [] if paths is None else list(paths.advice),
    }
    if arguments.channels:
        document |= {"channels": channels_document(channels_by_place), "trees": [list(parents) for parents in trees]}
    blocks = [] if paths is None else [transports_text(paths)]
    output.emit(
        document,
        lambda: "\n\n".join(
            [
                _text(machine, document),
                *blocks,
                *([channels_text(channels_by_place, trees)] if channels_by_place else []),
            ]
        ),
    )


def _join_domain(machine: Topology, nodes: int | None) -> tuple[Cluster, int]:
    """Return the machine as NCCL sees it, the nodes of an NVLink domain as one, and how many nodes that makes."""
    from ddpsim.topology.domains import group_by_domain

    if machine.nvlink_domain is None:
        return machine, machine.nodes if nodes is None else nodes
    placement = group_by_domain(machine.place(nodes))
    return placement.topology, placement.nodes


def _select_visible(machine: Topology, gpus: str | None, nodes: int | None) -> Topology:
    """Return `machine` with only `gpus` visible; without `gpus` as it is.

    Raises:
        InputError: GPUs that it does not have, or nodes that it cannot have.
    """
    from ddpsim.topology.spec import with_visible_devices

    if nodes is not None:
        machine.place(nodes)
    if gpus is None:
        return machine
    return with_visible_devices(replace(machine, gpus_per_node=None), indices(gpus, "gpus", "0,3,2"), "gpus")


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportTopologyArguments:
    """Arguments of `topo import`: what a node printed, and how the machine is called."""

    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE|-", help="`nvidia-smi topo -m`, `rocm-smi --showtopo`, or NCCL's XML; - is standard input."
        ),
    ]
    gpu: Annotated[
        str | None,
        typer.Option(
            metavar="v100|a100|h100|...", help="A name in gpus/, where the file does not say which GPU it is."
        ),
    ] = None
    name: Annotated[str, typer.Option(metavar="NAME", help="Name of the machine.")] = "imported"
    graph_dump: Annotated[
        str | None, typer.Option(metavar="FILE", help="NCCL_GRAPH_DUMP_FILE of a run: its rings, not a search.")
    ] = None
    out: Annotated[str | None, typer.Option("--out", "-o", metavar="FILE.yaml", help="[standard output]")] = None


@app.command("import")
@expand
def import_(arguments: ImportTopologyArguments, output: Output) -> None:
    """Take a machine in from `nvidia-smi topo -m`, `rocm-smi --showtopo` or NCCL's XML; prints its YAML."""
    from ddpsim.collectives.nccl.paths_taken import compare_machines, paths_advice
    from ddpsim.common.files import display_name
    from ddpsim.topology.dump import document_of, dump_topology
    from ddpsim.topology.importers import import_topology
    from ddpsim.topology.nccl_graph import with_graph_dump
    from ddpsim.topology.nvidia_smi import by_affinity

    check_destination(arguments.out, as_json=output.as_json)
    place = display_name(arguments.file)
    source = _text_of(arguments.file)
    machine = import_topology(source, place, gpu=arguments.gpu, name=arguments.name)
    advice = list(paths_advice(place_several(machine), every=True))
    if (other := by_affinity(source, place, machine)) is not None:
        what, machine_by_affinity = other
        _, text = compare_machines(machine.place(1), machine_by_affinity.place(1), "by affinities")
        advice.append(f"{what}; in a node {text}")
    if arguments.graph_dump:
        machine = with_graph_dump(machine, _text_of(arguments.graph_dump), display_name(arguments.graph_dump))
    machine = replace(machine, sources=tuple(source.replace(place, Path(place).name) for source in machine.sources))
    text = dump_topology(machine)
    if arguments.out:
        deliver(arguments.out, text)
    note(f"note: {machine.confidence}; write what you know better into the file")
    for line in advice:
        note(f"advice: {line}")
    output.emit(
        document_of(machine),
        lambda: f"wrote {arguments.out}" if arguments.out else text.rstrip(),
        aside=arguments.out == STANDARD_OUTPUT,
    )


def _document(machine: Topology) -> dict[str, object]:
    return {
        "name": machine.name,
        "nodes": machine.nodes,
        "compute_device": machine.compute_device,
        "fingerprint": machine.fingerprint(),
        "fabric": {
            "kind": machine.fabric.kind,
            "nodes_per_leaf": machine.fabric.nodes_per_leaf,
            "oversubscription": machine.fabric.oversubscription,
        },
        "templates": [
            {
                "name": group.template.name,
                "count": group.count,
                "gpus": [{"name": gpu.name, "model": gpu.model, "sm": gpu.sm} for gpu in group.template.gpus],
                "nics": [
                    {"name": nic.name, "kind": nic.kind, "bandwidth_Bps": nic.bandwidth, "gpudirect": nic.gpudirect}
                    for nic in group.template.nics
                ],
                "links": [
                    {
                        "source": link.source,
                        "target": link.target,
                        "kind": link.kind,
                        "count": link.count,
                        "bandwidth_Bps": link.bandwidth,
                        "latency_s": link.latency_s,
                    }
                    for link in group.template.links
                ],
            }
            for group in machine.groups
        ],
        "sources": list(machine.sources),
        "confidence": machine.confidence,
    }


def _text(machine: Topology, document: dict[str, object]) -> str:
    from ddpsim.common.units import format_count

    lines = [
        f"{machine.name}: {format_count(machine.nodes, 'node')}, {machine.compute_device}, fabric {machine.fabric.kind}"
    ]
    for group in machine.groups:
        template = group.template
        links = {(link.source, link.target): link for link in template.links}
        rows = []
        for (source, target), link in links.items():
            back = links.get((target, source))
            same = back is not None and back.bandwidth == link.bandwidth
            if same and source > target:
                continue
            ends = f"{source} - {target}" if same else f"{source} > {target}"
            # Most machines' files state no latency: hops cost what the transport's constants say.
            rows.append(
                {
                    "ends": ends,
                    "kind": link.kind,
                    "count": link.count,
                    "bandwidth_Bps": link.bandwidth,
                    "latency_s": link.latency_s or None,
                }
            )
        inside = f"{format_count(len(template.gpus), 'GPU')}, {format_count(len(template.nics), 'NIC')}"
        lines += ["", f"{group.count} x {template.name}: {inside}"]
        lines.append(table_of("links", rows).text())
    sources = [break_line(f"source: {source}") for source in machine.sources]
    confidence = f"confidence: {machine.confidence or 'not stated'}"
    return "\n".join([*lines, "", *sources, confidence, f"fingerprint: {document['fingerprint']}"])


def _text_of(path: str) -> str:
    from ddpsim.common.files import read_text

    return read_text(path, InputError, "give a file that exists")
