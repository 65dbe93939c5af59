"""A node's links from what its file says of the hardware: its PCIe tree, and NVLink, NVSwitches or xGMI beside it.

Start at `build_node`; `_PcieWalk` makes links of the tree under `pcie`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, count

from ddpsim.common.errors import TopologyError, UnknownNameError
from ddpsim.topology.hardware import (
    DEFAULT_SOCKET_BANDWIDTH,
    MESHED_GCN,
    PCIE_X16_BANDWIDTH,
    gcn_of,
    gpu_facts,
    list_known_models,
    nic_kind,
    nvlink_bandwidth,
    socket_bandwidth,
    xgmi_bandwidth,
)
from ddpsim.topology.node import (
    HOST_IN,
    HOST_OUT,
    MESHED,
    OUTSIDE,
    Cpu,
    Gpu,
    Link,
    Nic,
    NodeTemplate,
    Vertex,
    VertexKind,
    check_reachable,
    check_ring,
    make_both_ways,
)
from ddpsim.topology.schema import BranchSpec, CpuSpec, NodeSpec, PcieSpec, ProcessesSpec, RootBranchSpec, XgmiSpec


def gpu_links(spec: NodeSpec, gpus: Sequence[Gpu], place: str) -> Iterator[Link]:
    """Yield the NVLinks or xGMI links that a node's file states, in both directions.

    Raises:
        TopologyError: links of another vendor than the GPUs', a pair that is none or named twice, a mesh with a hole.
    """
    gcn = gcn_of(gpus[0].model)
    for key, ours in (("nvlink", not gcn), ("nvswitch", not gcn), ("xgmi", bool(gcn))):
        if getattr(spec, key) is not None and not ours:
            other = "nvlink` or `nvswitch" if key == "xgmi" else "xgmi"
            what = f"{gpus[0].model} has no {'xGMI' if key == 'xgmi' else 'NVLink'}"
            raise TopologyError(what, place=f"{place}.{key}", remedy=f"write `{other}`, or leave it out")
    one = nvlink_bandwidth(gpus[0].sm)
    if spec.nvlink is not None:
        for first, second, links in _check_pairs(spec.nvlink.pairs, gpus, f"{place}.nvlink.pairs"):
            bandwidth = links * (spec.nvlink.bandwidth or one)
            yield from make_both_ways(
                gpus[first].vertex, gpus[second].vertex, "nvlink", bandwidth, spec.nvlink.delay, links
            )
    if spec.nvswitch is not None:
        links = spec.nvswitch.links_per_gpu
        bandwidth = links * (spec.nvswitch.bandwidth or one)
        switch = Vertex.numbered(VertexKind.NVSWITCH, 0)
        for gpu in gpus:
            yield from make_both_ways(gpu.vertex, switch, "nvlink", bandwidth, spec.nvswitch.delay, links)
    if spec.xgmi is not None:
        bandwidth = spec.xgmi.bandwidth or xgmi_bandwidth(gcn)
        for first, second, links in _xgmi_pairs(spec.xgmi, gpus, gcn, f"{place}.xgmi"):
            ends = gpus[first].vertex, gpus[second].vertex
            yield from make_both_ways(*ends, "xgmi", links * bandwidth, spec.xgmi.delay, links)


def _check_pairs(pairs: Sequence[Sequence[int]], gpus: Sequence[Gpu], place: str) -> Iterator[tuple[int, int, int]]:
    seen: set[frozenset[int]] = set()
    for number, (first, second, links) in enumerate(pairs):
        pair = frozenset((first, second))
        if max(pair) >= len(gpus) or len(pair) == 1 or pair in seen or links < 1:
            raise TopologyError(
                f"[{first}, {second}, {links}] is no pair of different GPUs below {len(gpus)}, named once",
                place=f"{place}.{number}",
                remedy="write [first, second, links]",
            )
        seen.add(pair)
        yield first, second, links


def _xgmi_pairs(spec: XgmiSpec, gpus: Sequence[Gpu], gcn: str, place: str) -> list[tuple[int, int, int]]:
    every = list(combinations(range(len(gpus)), 2))
    if (spec.mesh is None) == (spec.pairs is None):
        what = "neither `mesh` nor `pairs`" if spec.mesh is None else "both `mesh` and `pairs`"
        raise TopologyError(what, place=place, remedy="write `mesh: 1`, or `pairs` of [first, second, links]")
    if spec.pairs is None:
        return [(first, second, spec.mesh or 1) for first, second in every]
    pairs = list(_check_pairs(spec.pairs, gpus, f"{place}.pairs"))
    joined = {frozenset(pair[:2]) for pair in pairs}
    missing = [pair for pair in every if frozenset(pair) not in joined]
    if missing and gcn.startswith(MESHED_GCN) and len(gpus) == MESHED:
        first, second = missing[0]
        more = f", and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise TopologyError(
            f"no link joins gpu{first} and gpu{second}{more}: eight {gpus[0].model} are a mesh of {len(every)} links",
            place=f"{place}.pairs",
            remedy="write `mesh: 1`, and what is slow under `degraded`",
        )
    return pairs


def build_node(name: str, spec: NodeSpec, place: str) -> NodeTemplate:
    """Return the template `name` that `spec` describes.

    Args:
        place: where the spec stands, for errors.

    Raises:
        TopologyError: neither GPUs nor processes, a device in two places or in none, GPUs that cannot meet.
    """
    gpus = _devices(spec, place)
    nics = _nics(spec, gpus)
    known = {gpu.name: gpu.vertex for gpu in gpus} | {nic.name: nic.vertex for nic in nics}
    # A lab's node is processes that talk through the kernel's loopback: it has no sockets, slots or PCIe tree to link.
    joined = spec.cpu.sockets > 1 and spec.processes is None
    unknown = joined and _find_socket_bandwidth(spec.cpu) is None
    cpu = Cpu(spec.cpu.sockets, spec.cpu.arch, spec.cpu.vendor, spec.cpu.model, unknown)
    links = [*_sockets(spec), *_ports(spec, nics)]
    if spec.processes is not None:
        links = [*_loopback(spec.processes, nics), *_ports(spec, nics)]
    else:
        links += gpu_links(spec, gpus, place)
        links += _PcieWalk(spec, gpus, known, place).links()
    # Only complete links can be checked: a GPU that a file puts into no slot shows as one that others cannot reach.
    check_reachable(links, gpus, place)
    _check_rings(spec.rings, known, f"{place}.rings")
    _check_rings(spec.trees, known, f"{place}.trees")
    _check_stated(spec, place)
    reach = None if spec.gpus is None else spec.gpus.peer_to_peer
    return NodeTemplate(
        name=name,
        gpus=gpus,
        nics=nics,
        cpu=cpu,
        links=tuple(sorted(links, key=_natural_key)),
        peer_to_peer=reach,
        workload=spec.workload,
        rings=tuple(map(tuple, spec.rings)),
        trees=tuple(map(tuple, spec.trees)),
        ring_bandwidth=spec.ring_bandwidth,
        tree_bandwidth=spec.tree_bandwidth,
        extras=tuple(spec.extras.items()),
    )


def _natural_key(link: Link) -> tuple[tuple[str, int], tuple[str, int]]:
    source, target = (
        (vertex.rstrip("0123456789"), int(vertex.lstrip("abcdefghijklmnopqrstuvwxyz_") or 0))
        for vertex in (link.source, link.target)
    )
    return source, target


def _devices(spec: NodeSpec, place: str) -> tuple[Gpu, ...]:
    if spec.processes is not None and spec.gpus is None:
        return tuple(Gpu(f"process{n}", "cpu", 0, VertexKind.PROCESS) for n in range(spec.processes.count))
    if spec.gpus is None or spec.processes is not None:
        raise TopologyError(
            "a node has either `gpus` or `processes`", place=place, remedy="write e.g. gpus: {count: 8, model: V100}"
        )
    model = spec.gpus.model
    facts = gpu_facts(model)
    if spec.gpus.sm is None and facts is None:
        error = UnknownNameError.among("GPU model", model, list_known_models(), place=f"{place}.gpus.model")
        raise TopologyError(error.message, place=error.place, remedy=f"{error.remedy} Or state its `sm`")
    sm = facts.sm if spec.gpus.sm is None and facts is not None else spec.gpus.sm
    assert sm is not None
    return tuple(Gpu(f"gpu{index}", model, sm) for index in range(spec.gpus.count))


def _nics(spec: NodeSpec, gpus: tuple[Gpu, ...]) -> tuple[Nic, ...]:
    model = gpu_facts(gpus[0].model)
    capable = spec.gpus is not None and (model is None or model.peer_to_peer)
    numbers = count()
    ports: list[Nic] = []
    for nics in spec.nics:
        kind = nic_kind(nics.kind)
        direct = capable and kind.gpudirect if nics.gpudirect is None else nics.gpudirect
        in_order = kind.in_order if nics.in_order is None else nics.in_order
        ports += [
            Nic(f"nic{next(numbers)}", nics.kind, nics.rate, nics.latency, direct, in_order, nics.gdr_level)
            for _ in range(nics.count)
        ]
    return tuple(ports)


def _check_rings(rings: list[list[str]], known: Mapping[str, Vertex], place: str) -> None:
    for number, ring in enumerate(rings):
        for name in ring:
            if name not in known:
                raise UnknownNameError.among("device", name, known, place=f"{place}.{number}")
        check_ring([known[name] for name in ring], f"{place}.{number}")


def _check_stated(spec: NodeSpec, place: str) -> None:
    for key, wanted in (("trees", "rings"), ("ring_bandwidth", "rings"), ("tree_bandwidth", "trees")):
        if getattr(spec, key) and not getattr(spec, wanted):
            raise TopologyError(f"`{key}` without `{wanted}`", place=f"{place}.{key}", remedy=f"state `{wanted}` too")
    if spec.trees and len(spec.trees) != len(spec.rings):
        raise TopologyError(
            f"{len(spec.trees)} trees, {len(spec.rings)} rings", place=f"{place}.trees", remedy="state as many of each"
        )


def _ports(spec: NodeSpec, nics: tuple[Nic, ...]) -> Iterator[Link]:
    delays = [each.delay for each in spec.nics for _ in range(each.count)]
    for nic, delay in zip(nics, delays, strict=True):
        yield from make_both_ways(nic.vertex, OUTSIDE, "nic", nic.bandwidth, delay)


def _loopback(processes: ProcessesSpec, nics: tuple[Nic, ...]) -> Iterator[Link]:
    yield Link.between(HOST_OUT, HOST_IN, "loopback", processes.total, processes.delay)
    for index in range(processes.count):
        process = Vertex.numbered(VertexKind.PROCESS, index)
        yield Link.between(process, HOST_OUT, "loopback", processes.rate)
        yield Link.between(HOST_IN, process, "loopback", processes.rate)
    for nic in nics:
        yield Link.between(HOST_OUT, nic.vertex, "loopback", processes.total)
        yield Link.between(nic.vertex, HOST_IN, "loopback", processes.total)


def _sockets(spec: NodeSpec) -> Iterator[Link]:
    bandwidth = _find_socket_bandwidth(spec.cpu) or DEFAULT_SOCKET_BANDWIDTH
    sockets = (Vertex.numbered(VertexKind.CPU, number) for number in range(spec.cpu.sockets))
    for ends in combinations(sockets, 2):
        yield from make_both_ways(*ends, "socket", bandwidth, spec.cpu.delay)


def _find_socket_bandwidth(cpu: CpuSpec) -> float | None:
    return cpu.bandwidth or socket_bandwidth(cpu.vendor, cpu.model)


class _PcieWalk:
    """Walks the PCIe tree of a file, numbering switches as they come."""

    def __init__(self, spec: NodeSpec, gpus: tuple[Gpu, ...], devices: Mapping[str, Vertex], place: str) -> None:
        self._spec, self._place = spec, f"{place}.pcie"
        self._missing, self._all = dict(devices), frozenset(devices)
        self._pcie = _with_slots(spec, len(gpus), len(devices) - len(gpus))
        model = gpu_facts(gpus[0].model)
        generation = self._pcie.generation or (model.pcie if model else 3)
        self._slot = self._pcie.bandwidth or PCIE_X16_BANDWIDTH[generation]
        self._switches, self._adapters = count(), count()

    def links(self) -> Iterator[Link]:
        # Adapters are numbered by socket, whatever order the file lists slots in: the same tree has the same names. A
        # device leaves `_missing` where it is placed, so that a second place is refused, and what is left at the end
        # has none.
        for number, slots in sorted(enumerate(self._pcie.slots), key=lambda entry: entry[1].socket):
            root = self._socket(slots, f"slots.{number}")
            yield from self._devices(slots, root, slots.bandwidth)
            for inner in slots.switches:
                yield from self._switch(inner, root)
        for number, switch in enumerate(self._pcie.switches):
            yield from self._switch(switch, self._socket(switch, f"switches.{number}"))
        unknown = set(self._pcie.devices) - self._all
        if unknown:
            raise UnknownNameError.among("device", min(unknown), self._all, place=f"{self._place}.devices")
        nics = {name for name, device in self._missing.items() if device.kind == VertexKind.NIC}
        if nics:
            raise TopologyError(
                f"{', '.join(sorted(nics))} under no PCIe switch or slot",
                place=self._place,
                remedy="list its number under `nics` of a switch or slot",
            )

    def _socket(self, branch: RootBranchSpec, where: str) -> Vertex:
        if branch.socket >= self._spec.cpu.sockets:
            raise TopologyError(
                f"socket {branch.socket} of {self._spec.cpu.sockets}",
                place=f"{self._place}.{where}.socket",
                remedy=f"number sockets from 0, or write cpu: {{sockets: {branch.socket + 1}}}",
            )
        return Vertex.numbered(VertexKind.CPU, branch.socket)

    def _switch(self, spec: BranchSpec, parent: Vertex) -> Iterator[Link]:
        switch = Vertex.numbered(VertexKind.PCIE, next(self._switches))
        yield from make_both_ways(switch, parent, _kind(parent), spec.bandwidth or self._slot)
        yield from self._devices(spec, switch, None)
        for inner in spec.switches:
            yield from self._switch(inner, switch)

    def _devices(self, spec: BranchSpec, parent: Vertex, bandwidth: float | None) -> Iterator[Link]:
        for gpu in spec.gpus:
            yield from self._device(f"gpu{gpu}", parent, self._width(f"gpu{gpu}", bandwidth))
        for ports in spec.nics:
            above, width = parent, self._width(f"nic{ports[0]}", bandwidth)
            if len(ports) > 1:
                above = Vertex.numbered(VertexKind.ADAPTER, next(self._adapters))
                yield from make_both_ways(above, parent, _kind(parent), width)
            for port in ports:
                yield from self._device(f"nic{port}", above, width)

    def _device(self, name: str, parent: Vertex, width: float) -> tuple[Link, Link]:
        if name not in self._missing:
            problem = "stands in two places" if name in self._all else "is not on this node"
            raise TopologyError(f"{name} {problem}", place=self._place, remedy="name each device once, from 0")
        return make_both_ways(self._missing.pop(name), parent, _kind(parent), width)

    def _width(self, name: str, bandwidth: float | None) -> float:
        return self._pcie.devices.get(name) or bandwidth or self._slot


def _kind(parent: Vertex) -> str:
    return "host_bridge" if parent.kind == VertexKind.CPU else "pcie"


def _with_slots(spec: NodeSpec, gpus: int, nics: int) -> PcieSpec:
    """Return the tree of a file; where it places nothing, devices stand in slots, spread evenly over the sockets.

    Empty lists that are written down place nothing on purpose: an imported machine may have no socket.
    """
    pcie = spec.pcie or PcieSpec()
    if pcie.model_fields_set & {"switches", "slots"}:
        return pcie
    sockets = spec.cpu.sockets
    slots = [
        RootBranchSpec(
            socket=socket,
            gpus=[gpu for gpu in range(gpus) if gpu * sockets // gpus == socket],
            nics=[[nic] for nic in range(nics) if nic * sockets // nics == socket],
        )
        for socket in range(sockets)
    ]
    return pcie.model_copy(update={"slots": slots})
