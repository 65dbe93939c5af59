"""`ddpsim topo`: shipped machines, one in full, its graph as a picture."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ddpsim.cli.channels import channels_document, channels_of, channels_text, trees_over, walks
from ddpsim.cli.destination import STANDARD_OUTPUT, check_destination, deliver, plot_option
from ddpsim.cli.expand import expand
from ddpsim.cli.output import Output, note
from ddpsim.cli.transports import place_several, transports_of, transports_text
from ddpsim.common.errors import InputError
from ddpsim.common.options.text import indices
from ddpsim.common.tables import break_line, table_of

if TYPE_CHECKING:
    from ddpsim.topology.graph import Cluster, Topology

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
    """What `topo show` is asked: a machine, how much of it, and what to print."""

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
def show(
    arguments: ShowArguments,
    output: Output,
) -> None:
    """Show one machine: its links, bandwidths in each direction, NCCL's transports between its GPUs, sources."""
    from ddpsim.topology.spec import load_topology

    check_destination(arguments.plot)
    machine = _select_visible(load_topology(arguments.topology), arguments.gpus, arguments.nodes)
    gpudirect = False if arguments.no_gpudirect else None
    joined, count = _join_domain(machine, arguments.nodes)
    found = channels_of(joined, pxn=not arguments.no_pxn, gpudirect=gpudirect) if arguments.channels else {}
    trees = trees_over(count) if arguments.channels else []
    if arguments.plot:
        from ddpsim.report.plots import plot_topology

        plot_topology(machine, arguments.plot, walks(machine, found), trees)
        note(f"wrote {arguments.plot}")
    paths = transports_of(machine, arguments.nodes)
    document = _document(machine)
    document |= {
        "transports": None if paths is None else paths.document(),
        "advice": [] if paths is None else list(paths.advice),
    }
    if arguments.channels:
        document |= {"channels": channels_document(found), "trees": [list(parents) for parents in trees]}
    blocks = [] if paths is None else [transports_text(paths)]
    output.emit(
        document,
        lambda: "\n\n".join([_text(machine, document), *blocks, *([channels_text(found, trees)] if found else [])]),
    )


def _join_domain(machine: Topology, nodes: int | None) -> tuple[Cluster, int]:
    """Return the machine as NCCL sees it, the nodes of an NVLink domain as one, and how many nodes that makes."""
    from ddpsim.topology.domains import group_by_domain

    if machine.nvlink_domain is None:
        return machine, machine.nodes if nodes is None else nodes
    placement = group_by_domain(machine.place(nodes))
    return placement.topology, placement.nodes


def _select_visible(machine: Topology, gpus: str | None, nodes: int | None) -> Topology:
    """Return `machine` with only `gpus` visible, where they are given.

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
    """What `topo import` is asked: what a node printed, and how the machine is called."""

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
