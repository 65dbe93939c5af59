"""Which allreduces a faster machine makes slower.

Each rate of a shipped machine is doubled, alone and all together, and each allreduce is predicted on both machines with
the shipped constants. One that becomes slower by more than `MOST` is listed with what NCCL picks before and after. That
can only be where NCCL's own model changes its mind: the page says by which line.

python -m studies.faster     # the page
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ddpsim.collectives.conditions import CollectiveOptions
from ddpsim.collectives.nccl.costs import EntryCosts
from ddpsim.collectives.nccl.layout import Layout
from ddpsim.collectives.nccl.shape import TuningEntry
from ddpsim.collectives.nccl.transport import NcclTransport
from ddpsim.collectives.nccl.tuning import best, time_us
from ddpsim.collectives.nccl.versions import CURRENT, LL, LL128, RING
from ddpsim.common.units import MIB
from ddpsim.topology.graph import Link, NodeGroup, Topology
from ddpsim.topology.spec import load_topology

ROOT = Path(__file__).resolve().parents[2]
TARGET = Path(__file__).with_name("faster.md")
TEMPLATE = Path(__file__).with_name("faster.md.in")

MOST = 0.1
"""Part of its time by which an allreduce may become slower without being listed."""
SIZES = (*(1 << power for power in range(10, 31, 2)), 25 * MIB)
"""1 KiB to 1 GiB by factors of 4, and DDP's default bucket."""
NODES = (1, 2, 4, 8, 16)

LINES = {(RING, LL): 304, (RING, LL128): 305}
"""Lines of `src/graph/tuning.cc` in NCCL 2.28.7 that say how fast an entry is believed to be, of those that win."""

_NETWORK = ("nic", "network")
_BACK_TO_BACK = CollectiveOptions(isolated=False)


@dataclass(frozen=True, slots=True)
class Case:
    """A machine before and after one of its rates, or every rate, is doubled.

    Attributes:
        doubled: a kind of link, or `all`.
    """

    machine: str
    nodes: int
    doubled: str

    def transports(self) -> tuple[NcclTransport, NcclTransport]:
        """Return NCCL on the machine before and after."""
        before = load_topology(self.machine)
        one, other = (
            NcclTransport(Layout(each.place(self.nodes), CURRENT), options=_BACK_TO_BACK)
            for each in (before, doubled(before, self.doubled))
        )
        return one, other


@dataclass(frozen=True, slots=True)
class Slower:
    """An allreduce that the faster machine is predicted to take longer for.

    Attributes:
        picked: what NCCL picks before and after.
        believed_us: what NCCL's model says, on the faster machine, of the entry picked before and of the one after.
        entries: by how many times as long the entry takes that doubling slows most, of those that NCCL has on both
            machines: where it is 1 or less, all that is slower is the choice among them.
    """

    case: Case
    size_bytes: int
    before_s: float
    after_s: float
    picked: tuple[TuningEntry, TuningEntry]
    believed_us: tuple[float, float]
    entries: float

    @property
    def part(self) -> float:
        """By which part of its time it is slower."""
        return self.after_s / self.before_s - 1


def doubled(topology: Topology, kind: str) -> Topology:
    """Return `topology` with links of `kind` twice as fast, with every link where `kind` is `all`."""

    def touched(link: Link) -> bool:
        return kind in ("all", link.kind) or (kind == "nic" and link.kind in _NETWORK)

    def group(each: NodeGroup) -> NodeGroup:
        template = each.template
        links = tuple(replace(link, bandwidth=2 * link.bandwidth) if touched(link) else link for link in template.links)
        nics = template.nics
        if kind in ("all", "nic"):
            nics = tuple(replace(nic, bandwidth=2 * nic.bandwidth) for nic in nics)
        rings, trees = template.ring_bandwidth, template.tree_bandwidth
        if kind == "all":
            rings, trees = (rate and 2 * rate for rate in (rings, trees))
        found = replace(template, links=links, nics=nics, ring_bandwidth=rings, tree_bandwidth=trees)
        return replace(each, template=found)

    fabric = topology.fabric
    if fabric.trunk_bandwidth and kind in ("all", "nic"):
        fabric = replace(fabric, trunk_bandwidth=2 * fabric.trunk_bandwidth)
    return replace(topology, groups=tuple(map(group, topology.groups)), fabric=fabric)


def cases(machines: Sequence[str] | None = None) -> list[Case]:
    """Return every case of the shipped machines with GPUs, or of those named."""
    names = sorted(path.stem for path in (ROOT / "topologies").glob("*.yaml")) if machines is None else machines
    found = []
    for name in names:
        topology = load_topology(name)
        if topology.backend != "nccl":
            continue
        kinds = {link.kind for group in topology.groups for link in group.template.links} - {"network"}
        counts = [nodes for nodes in NODES if topology.elastic or nodes <= topology.nodes]
        found += [Case(name, nodes, kind) for nodes in counts for kind in ("all", *sorted(kinds))]
    return found


def slower(chosen: Sequence[Case], sizes: Sequence[int] = SIZES) -> Iterator[Slower]:
    """Yield the allreduces that doubling makes slower by more than `MOST`."""
    for case in chosen:
        before, after = case.transports()
        for size in sizes:
            times = before.allreduce_s(size), after.allreduce_s(size)
            if times[1] > (1 + MOST) * times[0]:
                picked = best(before.layout.shape, size), best(after.layout.shape, size)
                shape = after.layout.shape
                same = next(entry for entry in after.layout.entries if _name(entry) == _name(picked[0]))
                believed = time_us(same, shape, size), time_us(picked[1], shape, size)
                yield Slower(case, size, *times, picked, believed, _slowest(before, after, size))


def _slowest(before: NcclTransport, after: NcclTransport, size: int) -> float:
    """Return by how many times as long the entry takes that doubling slows most."""
    times = [{_name(entry): _alone_s(each, entry, size) for entry in each.layout.entries} for each in (before, after)]
    return max(times[1][name] / times[0][name] for name in times[0].keys() & times[1].keys())


def _alone_s(transport: NcclTransport, entry: TuningEntry, size: int) -> float:
    get = {name.removeprefix("nccl."): each.value for name, each in transport.calibration.constants.items()}
    return EntryCosts(transport.layout, get).of(entry, size).time_s(size)


def _name(entry: TuningEntry) -> tuple[str, str]:
    return entry.algorithm, entry.protocol


def page(found: Sequence[Slower], tried: int) -> str:
    """Return the page."""
    rows = "\n".join(map(_row, sorted(found, key=lambda each: -each.part)))
    most = max((each.part for each in found), default=0.0)
    alone = max((each.entries - 1 for each in found), default=0.0)
    return TEMPLATE.read_text(encoding="utf-8").format(
        tried=f"{tried:,}",
        slower=len(found),
        limit=f"{MOST:.0%}",
        most=f"{most:.0%}",
        alone=f"{alone:.1%}",
        rows=rows,
    )


def _row(each: Slower) -> str:
    names = [f"{entry.algorithm} {entry.protocol}" for entry in each.picked]
    believed = [f"{us:,.0f}" for us in each.believed_us]
    cells = (
        each.case.machine,
        str(each.case.nodes),
        each.case.doubled.replace("_", " "),
        f"{each.size_bytes / MIB:g}",
        f"{each.before_s * 1e6:,.0f}",
        f"{each.after_s * 1e6:,.0f}",
        f"{each.part:+.0%}",
        " to ".join(names),
        " to ".join(believed),
        str(LINES.get(_name(each.picked[1]), "-")),
    )
    return f"| {' | '.join(cells)} |"


def text() -> str:
    """Return the page."""
    chosen = cases()
    return page(list(slower(chosen)), len(chosen) * len(SIZES))
