"""The YAML of a topology as pydantic models: strict types, units required, unknown keys refused."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PlainValidator

from ddpsim.common.documents.errors import document_error, quantity
from ddpsim.common.documents.records import AsRecord
from ddpsim.common.errors import UnknownNameError
from ddpsim.common.units import parse_bandwidth, parse_time
from ddpsim.topology.bounds import MOST_GPUS, MOST_LINKS, MOST_NODES, MOST_SOCKETS
from ddpsim.topology.declared import Fabric, NvlinkDomain
from ddpsim.topology.hardware import NIC_KINDS
from ddpsim.topology.node import GDR_LEVEL


def _adapters(value: object) -> list[list[int]]:
    entries: list[Any] = value if isinstance(value, list) else [value]
    adapters: list[list[int]] = [entry if isinstance(entry, list) else [entry] for entry in entries]
    if not all(adapters) or not all(type(port) is int and port >= 0 for adapter in adapters for port in adapter):
        raise document_error(
            "a list of NIC numbers was expected; write e.g. [0, 1], or [[0, 1]] for two ports of one card"
        )
    return adapters


def _counts(value: object) -> object:
    plain = type(value) is int and 1 <= value <= MOST_NODES
    named = isinstance(value, dict) and value and all(type(n) is int and 1 <= n <= MOST_NODES for n in value.values())
    if not (plain or named):
        raise document_error(
            f"a number of nodes, at most {MOST_NODES}, was expected; "
            "write `nodes: 4`, or with templates `nodes: {fast: 4, slow: 1}`",
        )
    return value


def _nic_kind(value: str) -> str:
    if value not in NIC_KINDS:
        raise document_error(str(UnknownNameError.among("kind of NIC", value, NIC_KINDS)))
    return value


Bandwidth = Annotated[float, quantity(parse_bandwidth)]
Time = Annotated[float, quantity(parse_time)]
Index = Annotated[int, Field(ge=0)]
Links = Annotated[int, Field(ge=1, le=MOST_LINKS)]
Devices = Annotated[int, Field(ge=1, le=MOST_GPUS)]
Sockets = Annotated[int, Field(ge=1, le=MOST_SOCKETS)]
Adapters = Annotated[list[list[int]], PlainValidator(_adapters)]
Counts = Annotated[Any, PlainValidator(_counts)]
Reach = Literal["LOC", "NVL", "PIX", "PXB", "PHB", "SYS"]


class Spec(BaseModel):
    """The base of every part of a topology file, with strict kinds; keys it does not know are refused."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, defer_build=True)


class GpusSpec(Spec):
    """The GPUs of a node: `{count: 8, model: V100}`; `sm` for a model that is not in the table."""

    count: Devices
    model: str
    sm: Index | None = None
    peer_to_peer: Reach | None = None


class ProcessesSpec(Spec):
    """A node without GPUs: how many processes it may run, and what the loopback between them carries.

    `rate` is what one process sends or receives, `total` what all of them together do.
    """

    count: Devices
    rate: Bandwidth
    total: Bandwidth
    delay: Time = 0.0


class NvlinkSpec(Spec):
    """NVLinks between pairs of GPUs: `pairs` of `[first, second, links]`, `bandwidth` of one link."""

    pairs: Annotated[list[Annotated[list[Index], Field(min_length=3, max_length=3)]], Field(min_length=1)]
    bandwidth: Bandwidth | None = None
    delay: Time = 0.0


class NvswitchSpec(Spec):
    """NVLinks from every GPU to NVSwitches, counted as one switch as NCCL does; `bandwidth` of one link."""

    links_per_gpu: Links
    bandwidth: Bandwidth | None = None
    delay: Time = 0.0


class XgmiSpec(Spec):
    """AMD's xGMI between GPUs: `mesh`, links of each GPU to each other, or `pairs` as NVLink has them."""

    mesh: Links | None = None
    pairs: Annotated[list[Annotated[list[Index], Field(min_length=3, max_length=3)]], Field(min_length=1)] | None = None
    bandwidth: Bandwidth | None = None
    delay: Time = 0.0


class BranchSpec(Spec):
    """A PCIe switch, or a socket's slots: devices, the switches below, and the bandwidth upwards."""

    gpus: list[Index] = []
    nics: Adapters = []
    switches: list[BranchSpec] = []
    bandwidth: Bandwidth | None = None


class RootBranchSpec(BranchSpec):
    """A switch, or slots, right under a socket."""

    socket: Index = 0


class PcieSpec(Spec):
    """The PCIe tree; `bandwidth` is a slot's, where neither a switch nor `devices` says otherwise.

    `slots` hold devices that sit on a socket's own root ports, `switches` those behind a switch.
    """

    generation: Annotated[int, Field(ge=1, le=6)] | None = None
    bandwidth: Bandwidth | None = None
    devices: dict[str, Bandwidth] = {}
    switches: list[RootBranchSpec] = []
    slots: list[RootBranchSpec] = []


class CpuSpec(Spec):
    """Processors; `bandwidth` is that between two sockets, from the model where absent."""

    sockets: Sockets = 1
    arch: str = "x86_64"
    vendor: str = "intel"
    model: str = "skylake"
    bandwidth: Bandwidth | None = None
    delay: Time = 0.0


class NicsSpec(Spec):
    """NICs that are alike. `latency` is the card's, as NCCL adds it to a hop; `delay` is its cable's, one way.

    `gpudirect`, `in_order`: whether it reaches GPU memory, and writes it in order; where left out, by its kind
    (`ddpsim.topology.hardware`). `gdr_level`: the farthest path on which it does, `NCCL_NET_GDR_LEVEL`.
    """

    count: Devices = 1
    rate: Bandwidth
    kind: Annotated[str, AfterValidator(_nic_kind)] = "infiniband"
    latency: Time = 0.0
    delay: Time = 0.0
    gpudirect: bool | None = None
    in_order: bool | None = None
    gdr_level: Reach = GDR_LEVEL


class NodeSpec(Spec):
    """A node template, which describes nodes that are alike."""

    gpus: GpusSpec | None = None
    processes: ProcessesSpec | None = None
    nvlink: NvlinkSpec | None = None
    nvswitch: NvswitchSpec | None = None
    xgmi: XgmiSpec | None = None
    pcie: PcieSpec | None = None
    cpu: CpuSpec = Field(default_factory=CpuSpec)
    nics: list[NicsSpec] = []
    workload: str | None = None
    rings: list[list[str]] = []
    trees: list[list[str]] = []
    ring_bandwidth: Bandwidth | None = None
    tree_bandwidth: Bandwidth | None = None
    extras: dict[str, str] = {}


class DegradedSpec(Spec):
    """A link that is not what its template says: `{node: 2, link: nic0-network, bandwidth: 1Gb/s}`."""

    link: str
    node: Index | None = None
    bandwidth: Bandwidth | None = None
    delay: Time | None = None


class TopologySpec(Spec):
    """A topology file: one `node`, or several `templates` with a count of each under `nodes`."""

    name: Annotated[str, Field(min_length=1)]
    sources: list[str] = []
    confidence: str = ""
    nodes: Counts = 1
    gpus_per_node: Devices | None = None
    visible_devices: list[Index] = []
    node: NodeSpec | None = None
    templates: dict[str, NodeSpec] = {}
    nvlink_domain: Annotated[NvlinkDomain, AsRecord()] | None = None
    fabric: Annotated[Fabric, AsRecord()] | None = None
    degraded: list[DegradedSpec] = []
