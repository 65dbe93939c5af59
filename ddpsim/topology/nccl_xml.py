"""NCCL topology XML (`NCCL_TOPO_FILE`, `NCCL_TOPO_DUMP_FILE`) as a topology of one node.

Only `busid` is certain in published files: NCCL fills in classes, NVLinks and NIC speeds on the machine. Source of
the format: NCCL 2.30 `src/graph/xml.cc`, `topo.cc`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from ddpsim.errors import TopologyError
from ddpsim.topology import xml_devices
from ddpsim.topology.cluster import Topology
from ddpsim.topology.hardware import PCIE_X16_BANDWIDTH
from ddpsim.topology.layouts import gpu_model, nvlink_layout
from ddpsim.topology.spec import topology_from_document
from ddpsim.topology.xml_text import Element, read_xml
from ddpsim.units import format_bandwidth, format_count

UNKNOWN_NIC_MBPS = 10_000
"""What NCCL takes for a NIC of unknown speed."""

_MODEL_OF_SM = {60: "P100", 70: "V100", 75: "T4", 80: "A100", 90: "H100", 100: "B200"}
_MODEL_OF_DEVICE = {"0x20b0": "A100", "0x20b2": "A100", "0x2330": "H100", "0x1db1": "V100", "0x1db5": "V100"}
_KNOWN = {
    "system": {"version"},
    "cpu": {"numaid", "affinity", "arch", "vendor", "familyid", "modelid", "host_hash"},
    "pci": {"busid", "class", "vendor", "device", "subsystem_vendor", "subsystem_device", "link_speed", "link_width"},
    "gpu": {"dev", "sm", "gcn", "arch", "rank", "gdr"},
    "nvlink": {"target", "count", "tclass"},
    "nic": set(),
    "net": {"name", "dev", "speed", "port", "latency", "guid", "maxconn", "gdr", "coll", "keep"},
}


def read_nccl_xml(text: str, place: str, *, gpu: str | None = None, name: str = "imported") -> Topology:
    """Return the node that a topology file describes.

    Args:
        gpu: which GPU it is, `v100`, `a100-pcie`, ...; needed where the file leaves its GPUs' details out.

    Raises:
        TopologyError: malformed, another kind of file, or without GPU details and without `gpu`.
    """
    root = read_xml(text, place)
    if root.tag != "system":
        raise TopologyError(
            f"<{root.tag}> is no topology",
            place=f"{place}: line {root.line}",
            remedy="give the file of NCCL_TOPO_DUMP_FILE; the rings of NCCL_GRAPH_DUMP_FILE are added to one",
        )
    return topology_from_document(_System(root, place, gpu).document(name), place)


class _System:
    """The devices of a file that was read, in the order of their numbers, and the tree that they hang in."""

    def __init__(self, root: Element, place: str, gpu: str | None) -> None:
        self._root, self._place, self._choice = root, place, gpu
        self._cpus = sorted(root.all("cpu"), key=lambda cpu: xml_devices.integer(cpu, "numaid", 0))
        pcis = list(root.all("pci"))
        xml_devices.check(pcis, place)
        self._unknown = sum(xml_devices.classify(pci) for pci in pcis)
        self._gpus = xml_devices.gpus_in_order([pci for pci in pcis if xml_devices.is_of_class(pci, "0x03")], place)
        self._nets = xml_devices.nets_in_order(root)
        if not self._gpus:
            raise TopologyError("no GPU (<pci class=0x03...>) in it", place=place, remedy="give a GPU node's file")
        self._slot = PCIE_X16_BANDWIDTH[3]

    def document(self, name: str) -> dict[str, object]:
        """Return the file as a topology's mapping."""
        gpus, links, source = self._gpu_facts()
        unknown = [net for net in self._nets if not xml_devices.integer(net, "speed", 0)]
        notes = [source] + (["NIC speeds are not in the file: 10 Gb/s, as NCCL takes them"] if unknown else [])
        if self._unknown:
            notes.append(f"{format_count(self._unknown, 'PCI device')} of no stated class left out")
        node = {"gpus": gpus, **links, "pcie": self._pcie(), "cpu": self._cpu()}
        if self._nets:
            node["nics"] = [self._nic(net) for net in self._nets]
        if extras := dict(self._extras(self._root, "system")):
            node["extras"] = extras
        sources = [f"NCCL topology XML {self._place}"]
        return {"name": name, "sources": sources, "confidence": "; ".join(notes), "node": node}

    def _gpu_facts(self) -> tuple[dict[str, object], dict[str, object], str]:
        count = len(self._gpus)
        described = [inner for pci in self._gpus for inner in pci.children if inner.tag == "gpu"]
        if len(described) < count:
            self._ask_for_gpu()
        if self._choice is not None:
            chosen = gpu_model(self._choice, "gpu")
            gpus: dict[str, object] = {"count": count, "model": chosen}
            stated = self._find_model(described[0] if described else None)
            doubt = f"; {chosen} by --gpu, {stated} by the file" if stated not in (None, chosen) else ""
            links = self._nvlinks(described)
            if links:
                return gpus, links, f"NVLinks from the file{doubt}"
            said = f"NVLinks as of {self._choice}, by --gpu{doubt}"
            return gpus, dict(nvlink_layout(self._choice, count, "gpu")), said
        first = described[0]
        sm = xml_devices.integer(first, "sm", 0)
        if "gcn" in first.attributes:
            return {"count": count, "model": self._find_model(first), "sm": 0}, {}, "an AMD GPU; PCIe only"
        links = self._nvlinks(described)
        source = "NVLinks from the file" if links else "no NVLinks in the file; --gpu adds them"
        return {"count": count, "model": self._find_model(first) or f"sm{sm}", "sm": sm}, links, source

    def _find_model(self, gpu: Element | None) -> str | None:
        """Return which GPU it is by what the file says of the first: its PCI device, else its architecture."""
        stated = {} if gpu is None else gpu.attributes
        if "gcn" in stated:
            return f"gfx{stated['gcn'].removeprefix('gfx')}"
        device = _MODEL_OF_DEVICE.get(self._gpus[0].attributes.get("device", ""))
        return device or (_MODEL_OF_SM.get(xml_devices.integer(gpu, "sm", 0)) if gpu is not None else None)

    def _ask_for_gpu(self) -> None:
        if self._choice is not None:
            return
        device = self._find_model(None)
        hint = f"its PCI device is an {device}'s: `gpu={device.lower()}`" if device else "say `gpu=v100|a100|h100|...`"
        raise TopologyError(
            "its GPUs have no <gpu> lines, so their NVLinks are not in the file (NCCL adds them on the machine)",
            place=self._place,
            remedy=f"{hint}, with -pcie for a card without NVLink",
        )

    def _nvlinks(self, described: list[Element]) -> dict[str, object]:
        numbers = {pci.attributes["busid"].lower(): n for n, pci in enumerate(self._gpus)}
        directed: Counter[tuple[int, int]] = Counter()
        switched: Counter[int] = Counter()
        for source, gpu in enumerate(described):
            for link in gpu.all("nvlink"):
                target = numbers.get(link.attributes.get("target", "").lower())
                count = xml_devices.integer(link, "count", 1)
                # Some dumps name a link from a GPU to itself; no byte takes it, as in NCCL's own graph.
                if target == source:
                    continue
                if target is not None:
                    directed[source, target] += count
                elif link.attributes.get("tclass", "").startswith("0x0680"):
                    switched[source] += count
        joined = sorted({(min(pair), max(pair)) for pair in directed})
        pairs = [[a, b, max(directed[a, b], directed[b, a])] for a, b in joined]
        links: dict[str, object] = {"nvlink": {"pairs": pairs}} if pairs else {}
        if switched:
            links["nvswitch"] = {"links_per_gpu": self._check_even(switched)}
        return links

    def _check_even(self, switched: Counter[int]) -> int:
        counts = [switched[gpu] for gpu in range(len(self._gpus))]
        if len(set(counts)) > 1:
            raise TopologyError(f"GPUs have {counts} NVLinks to switches", place=self._place, remedy="make them equal")
        return counts[0]

    def _pcie(self) -> dict[str, object]:
        pcie: dict[str, object] = {"bandwidth": format_bandwidth(self._slot)}
        devices: dict[str, str] = {}
        slots, switches = [], []
        for socket, cpu in enumerate(self._cpus):
            branch, inner = self._branch(cpu, devices)
            slots += [{"socket": socket, **branch}] if branch else []
            switches += [{"socket": socket, **switch} for switch in inner]
        parts = {"devices": devices, "switches": switches, "slots": slots}
        nothing: dict[str, object] = (
            {} if switches or slots else {"slots": []}
        )  # not the slots that a file without any is given
        return pcie | {key: value for key, value in parts.items() if value} | nothing

    def _branch(self, parent: Element, devices: dict[str, str]) -> tuple[dict[str, object], list[dict[str, object]]]:
        gpus: list[int] = []
        nics: list[object] = []
        switches: list[dict[str, object]] = []
        for child in xml_devices.flatten(parent):
            if child in self._gpus:
                gpus.append(self._gpus.index(child))
                self._width(f"gpu{gpus[-1]}", child, devices)
            elif xml_devices.is_of_class(child, "0x0604"):
                branch, inner = self._branch(child, devices)
                switch = {**branch, "switches": inner} if inner else branch
                if switch:
                    switches.append(switch | {"bandwidth": format_bandwidth(xml_devices.link_bandwidth(child))})
            elif ports := [self._nets.index(net) for net in xml_devices.nets_of(child)]:
                nics.append(ports if len(ports) > 1 else ports[0])
                self._width(f"nic{ports[0]}", child, devices)
        return ({"gpus": gpus} if gpus else {}) | ({"nics": nics} if nics else {}), switches

    def _width(self, device: str, pci: Element, devices: dict[str, str]) -> None:
        if (bandwidth := xml_devices.link_bandwidth(pci)) != self._slot:
            devices[device] = format_bandwidth(bandwidth)

    def _cpu(self) -> dict[str, object]:
        first = self._cpus[0].attributes if self._cpus else {}
        vendor = {"GenuineIntel": "intel", "AuthenticAMD": "amd"}.get(first.get("vendor", ""), "other")
        arch = first.get("arch", "x86_64")
        vendor = "arm" if arch.startswith(("arm", "aarch")) else "power9" if arch.startswith("ppc") else vendor
        model = _intel(first) if vendor == "intel" else vendor
        return {"sockets": max(1, len(self._cpus)), "arch": arch, "vendor": vendor, "model": model}

    def _nic(self, net: Element) -> dict[str, object]:
        speed = xml_devices.integer(net, "speed", 0) or UNKNOWN_NIC_MBPS
        nic: dict[str, object] = {"rate": format_bandwidth(speed * 1e6 / 8), "kind": net.attributes["kind"]}
        latency = xml_devices.number(net, "latency")
        if latency:
            nic["latency"] = f"{latency!r}us"
        if "gdr" in net.attributes:
            nic["gpudirect"] = net.attributes["gdr"] == "1"
        return nic

    def _extras(self, element: Element, where: str) -> Iterator[tuple[str, str]]:
        known = _KNOWN.get(element.tag)
        if known is None:
            yield where, " ".join(f"{key}={value}" for key, value in element.attributes.items())
            known = set(element.attributes)
        for key, value in element.attributes.items():
            if key not in known and not (element.tag == "net" and key == "kind"):
                yield f"{where}.{key}", value
        for number, child in enumerate(element.children):
            label = child.attributes.get("busid") or child.attributes.get("name") or str(number)
            yield from self._extras(child, f"{where}/{child.tag}[{label}]")


def _intel(cpu: dict[str, str]) -> str:
    model = int(stated) if re.fullmatch(r"\d{1,9}", stated := cpu.get("modelid", "")) else 85
    ages = ((207, "emerald-rapids"), (143, "sapphire-rapids"), (85, "skylake"))
    return next((name for least, name in ages if model >= least), "broadwell")
