"""NCCL topology XML (`NCCL_TOPO_FILE`, `NCCL_TOPO_DUMP_FILE`) as a topology of one node.

Only `busid` is certain in published files: NCCL fills in classes, NVLinks and NIC speeds on the machine. PCI devices
are read as NCCL itself does: classes, numbers, ports, switches, widths. Source: NCCL 2.30
`src/graph/xml.cc`, `topo.cc`.

Start at `_System.document`: each part of it has a method.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from ddpsim.common.errors import TopologyError
from ddpsim.common.units import format_bandwidth, format_count
from ddpsim.topology.cluster import Topology
from ddpsim.topology.hardware import GCN, PCIE_X16_BANDWIDTH, gcn_of, gpu_facts
from ddpsim.topology.layouts import ask_for_gpu, find_gpus, gpu_layout, gpu_model
from ddpsim.topology.spec import topology_from_document
from ddpsim.topology.xml_text import Element, read_xml

_GENERATION = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}
"""Of PCIe, by GT/s."""
_CLASS_OF_HELD = {"gpu": "0x030200", "nic": "0x020000", "pci": "0x060400"}
_AMD, _CRAY = "0x1002", "0x17db"
"""Vendors' PCI numbers."""


def check(pcis: list[Element], place: str) -> None:
    """Raise a TopologyError where a device has no bus id."""
    for pci in pcis:
        if "busid" not in pci.attributes:
            raise TopologyError("<pci> without `busid`", place=f"{place}: line {pci.line}", remedy='write busid="..."')


def classify(pci: Element) -> bool:
    """Give a device without `class` the one that what it holds implies, as NCCL's reader does.

    Return whether it stays without.
    """
    if pci.attributes.get("class"):
        return False
    held = {child.tag for child in pci.children}
    pci.attributes["class"] = next((number for tag, number in _CLASS_OF_HELD.items() if tag in held), "")
    return not pci.attributes["class"]


def gpus_in_order(pcis: list[Element], place: str) -> list[Element]:
    """Return GPUs by their device number, or where the file has none by bus id, as CUDA numbers equal GPUs."""
    described = [[inner for inner in pci.children if inner.tag == "gpu"] for pci in pcis]
    for several in (gpus for gpus in described if len(gpus) > 1):
        what = f"{len(several)} <gpu> lines in one <pci>"
        raise TopologyError(what, place=f"{place}: line {several[1].line}", remedy="give each GPU its <pci>")
    ordered = _sort_by_number(pcis, [inner for gpus in described for inner in gpus])
    return sorted(pcis, key=lambda pci: pci.attributes["busid"]) if ordered is None else ordered


def nets_in_order(root: Element) -> list[Element]:
    """Return the ports of all cards by their device number, or in the file's order where it has none."""
    ports = [net for child in (*root.all("pci"), *root.all("cpu")) for net in nets_of(child)]
    return _sort_by_number(ports, ports) or ports


def _sort_by_number(elements: list[Element], stating: list[Element]) -> list[Element] | None:
    """Return `elements` by the `dev` that `stating` has of each; None where not all have one of their own."""
    numbers = [integer(element, "dev", -1) for element in stating]
    if len(set(numbers)) != len(elements) or min(numbers, default=-1) < 0:
        return None
    return [element for _, element in sorted(zip(numbers, elements, strict=True), key=lambda pair: pair[0])]


def nets_of(element: Element) -> list[Element]:
    """Return the ports of a card, or of the cards without a PCI device right under a socket."""
    nets = [net for nic in element.children if nic.tag == "nic" for net in nic.children if net.tag == "net"]
    if element.tag == "pci" and is_of_class(element, "0x02") and not nets:
        nic = Element("nic", {}, element.line, [Element("net", {}, element.line)])
        element.children.append(nic)
        nets = nic.children
    for net in nets:
        net.attributes.setdefault("kind", _nic_kind(element, net))
    return nets


def _nic_kind(pci: Element, net: Element) -> str:
    if pci.attributes.get("vendor") == "0x1d0f" and pci.attributes.get("device", "").startswith("0xefa"):
        return "efa"
    if pci.attributes.get("vendor") == _CRAY:
        return "slingshot"
    if is_of_class(pci, "0x0207"):
        return "infiniband"
    return "roce" if net.attributes.get("gdr") == "1" else "ethernet"


def flatten(parent: Element) -> Iterator[Element]:
    """Yield what hangs under `parent`, with the inner half of a two-level Broadcom switch left out, as NCCL does."""
    for child in parent.children:
        if child.tag == "nic" and parent.tag == "cpu" and any(net.tag == "net" for net in child.children):
            yield Element("pci", {"busid": "", "class": "0x020000"}, child.line, [child])
        elif child.tag == "pci":
            if _broadcom_level(parent) == "0" and _broadcom_level(child) == "1":
                yield from flatten(child)
            else:
                yield child


def _broadcom_level(pci: Element) -> str | None:
    get = pci.attributes.get
    ours = get("vendor") == "0x1000" and get("device") in ("0xc010", "0xc030") and get("subsystem_vendor") == "0x1000"
    return get("subsystem_device", "0x0000")[2:3] if ours else None


def is_gpu(pci: Element) -> bool:
    """Whether a device is a GPU: by what NCCL wrote of it, or by class; of AMD's later ones that of accelerators."""
    ours = pci.attributes.get("vendor", _AMD).lower() == _AMD
    described = any(inner.tag == "gpu" for inner in pci.children)
    return described or is_of_class(pci, "0x03") or (ours and is_of_class(pci, "0x12"))


def architecture(gcn: str) -> str:
    """Return AMD's name of an architecture as RCCL writes it, `gfx942:sramecc+`, or once wrote it; empty for none.

    910 is gfx90a: major, minor and stepping (9, 0, 10) in a row, as `gcnArch` of HIP had it.
    """
    name = "gfx" + gcn.split(":")[0].removeprefix("gfx")
    name = "gfx90a" if name == "gfx910" else name
    return name if re.fullmatch(GCN, name) else ""


def is_of_class(pci: Element, prefix: str) -> bool:
    """Whether the PCI class of a device begins with `prefix`."""
    return pci.attributes.get("class", "").startswith(prefix)


def link_bandwidth(pci: Element) -> float:
    """Return the bytes per second of a device's link: of 16 lanes of PCIe 3 where the file does not say."""
    match = re.match(r"(\d{1,3}(?:\.\d)?) ", pci.attributes.get("link_speed", "") + " ")
    generation = _GENERATION.get(float(match[1]), 3) if match else 3
    return PCIE_X16_BANDWIDTH[generation] * (integer(pci, "link_width", 0) or 16) / 16


def integer(element: Element, key: str, default: int) -> int:
    """Return an attribute that is a whole number, or `default` where there is none."""
    text = element.attributes.get(key, "")
    return int(text) if re.fullmatch(r"-?\d{1,18}", text) else default


def number(element: Element, key: str) -> float:
    """Return an attribute that is a decimal number, or 0 where there is none."""
    text = element.attributes.get(key, "")
    return float(text) if re.fullmatch(r"\d*\.?\d+", text) else 0.0


UNKNOWN_NIC_MBPS = 10_000
"""What NCCL takes for a NIC of unknown speed."""

_DEVICES = {
    "K80": "102d",
    "P100": "15f9",
    "P100-PCIe": "15f8",
    "P100-PCIe-12GB": "15f7",
    "P40": "1b38",
    "V100": "1db1 1db5",
    "V100-SXM3": "1db8",
    "V100-PCIe": "1db4",
    "V100-PCIe-32GB": "1db6",
    "V100S": "1df6",
    "T4": "1eb8",
    "A100": "20b0 20b2",
    "A100-PCIe": "20f1",
    "A100-PCIe-80GB": "20b5",
    "A30": "20b7",
    "A800": "20f3",
    "A800-PCIe": "20f5",
    "A10": "2236",
    "A10G": "2237",
    "A40": "2235",
    "RTXA6000": "2230",
    "RTX3090": "2204",
    "RTX4090": "2684",
    "L4": "27b8",
    "L40": "26b5",
    "L40S": "26b9",
    "H100": "2330",
    "H100-PCIe": "2331",
    "H100-NVL": "2321",
    "H800": "2324",
    "H20": "2329",
    "H200": "2335",
    "H200-NVL": "233b",
    "GH200": "2342",
    "GH200-144GB": "2348",
    "B200": "2901",
    "GB200": "2941",
    "B300": "3182",
    "GB300": "31c2",
    "RTX5090": "2b85",
    "RTXPRO6000": "2bb1",
    "RTXPRO6000-Server": "2bb5",
    "MI100": "738c",
    "MI210": "740f",
    "MI250X": "7408",
    "MI300X": "74a1 74b5",
    "MI325X": "74a5 74b9",
    "MI355X": "75a3 75b3",
}
_MODEL_OF_DEVICE = {f"0x{number}": model for model, numbers in _DEVICES.items() for number in numbers.split()}
"""PCI device numbers by the PCI ID Repository, pci-ids.ucw.cz; virtual functions of AMD's have their own."""
_MODEL_OF_GCN = {"gfx908": "MI100"}
"""Architectures of a single GPU."""
_KNOWN = {
    "system": {"version"},
    "cpu": {"numaid", "affinity", "arch", "vendor", "familyid", "modelid", "host_hash"},
    "pci": {"busid", "class", "vendor", "device", "subsystem_vendor", "subsystem_device", "link_speed", "link_width"},
    "gpu": {"dev", "sm", "gcn", "arch", "rank", "gdr"},
    "nvlink": {"target", "count", "tclass"},
    "xgmi": {"target", "count", "tclass"},
    "nic": set(),
    "net": {"name", "dev", "speed", "port", "latency", "guid", "maxconn", "gdr", "coll", "keep"},
}


def read_nccl_xml(text: str, place: str, *, gpu: str | None = None, name: str = "imported") -> Topology:
    """Return the node that a topology file describes.

    Args:
        gpu: which GPU it is, `v100`, `a100-pcie`, ...; needed where the file does not say.

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
        self._cpus = sorted(root.all("cpu"), key=lambda cpu: integer(cpu, "numaid", 0))
        pcis = list(root.all("pci"))
        check(pcis, place)
        self._unknown = sum(classify(pci) for pci in pcis)
        self._gpus = gpus_in_order(list(filter(is_gpu, pcis)), place)
        self._nets = nets_in_order(root)
        if not self._gpus:
            raise TopologyError(
                "no GPU (<pci class=0x03...>, or 0x12... of AMD) in it", place=place, remedy="give a GPU node's file"
            )
        self._slot = PCIE_X16_BANDWIDTH[3]

    def document(self, name: str) -> dict[str, object]:
        """Return the file as a topology's mapping."""
        gpus, links, source = self._gpu_facts()
        unknown = [net for net in self._nets if not integer(net, "speed", 0)]
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
        """Return which GPUs it has, the links between them, and where both are known from."""
        described = [inner for pci in self._gpus for inner in pci.children if inner.tag == "gpu"]
        first = described[0] if described else None
        stated, fitting = self._identify(first)
        # Which model it is decides what an NVLink or xGMI link carries, so that nothing is guessed: what the file says
        # counts, and `--gpu` before it, with the doubt in the topology's `confidence` where the two disagree.
        if self._choice is None and len(described) < len(self._gpus):
            what = "its GPUs have no <gpu> lines, so their NVLinks are not in the file (NCCL adds them on the machine)"
            raise ask_for_gpu(what, self._place, fitting)
        sm = 0 if first is None else integer(first, "sm", 0)
        if self._choice is None and not stated and fitting:
            what = f"neither `sm={sm}` nor a PCI device that is known tells which GPU it is"
            raise ask_for_gpu(what, self._place, fitting)
        model = stated or f"sm{sm}" if self._choice is None else gpu_model(self._choice, "gpu")
        gcn = gcn_of(model)
        gpus = {"count": len(self._gpus), "model": model, **({} if gpu_facts(model) else {"sm": sm})}
        doubt = ""
        known = {stated, gcn_of(stated or ""), *fitting} - {None, ""}
        if self._choice is not None and known and not known & {model, gcn}:
            doubt = f"; {model} by --gpu, {stated or ', '.join(fitting)} by the file"
        elif model == gcn and fitting:
            doubt = f"; of {gcn} are {', '.join(fitting)}: --gpu says which"
        name = "xGMI" if gcn else "NVLinks"
        # Links of the file count before those that boards of the model usually have: a node may have fewer.
        if links := self._links(described, amd=bool(gcn)):
            return gpus, links, f"{name} from the file{doubt}"
        if self._choice is None:
            return gpus, {}, f"no {name} in the file; --gpu adds {'those of eight' if gcn else 'them'}{doubt}"
        layout = dict(gpu_layout(self._choice, len(self._gpus), "gpu"))
        return gpus, layout, f"{name} as of {self._choice}, by --gpu{doubt}"

    def _identify(self, gpu: Element | None) -> tuple[str | None, list[str]]:
        """Return which GPU the first is, None where the file does not say, and the GPUs of which it may be one.

        A PCI device tells the model, and AMD's architecture is taken for one where no device does; of NVIDIA's
        compute capability with as many NVLinks are often several.
        """
        stated = {} if gpu is None else gpu.attributes
        device = _MODEL_OF_DEVICE.get(self._gpus[0].attributes.get("device", "").lower())
        if device is not None:
            return device, find_gpus(lambda spec: spec.kind == device)[0]
        if gcn := architecture(stated.get("gcn", "")):
            return _MODEL_OF_GCN.get(gcn, gcn), find_gpus(lambda spec: spec.gcn == gcn)[0]
        sm = 0 if gpu is None else integer(gpu, "sm", 0)
        links = sum(integer(link, "count", 1) for link in gpu.all("nvlink")) if gpu is not None else 0
        names, kind = find_gpus(
            lambda spec: bool(sm) and spec.sm == sm and max(spec.nvlinks, spec.bridge_links) >= links
        )
        return kind, names

    def _links(self, described: list[Element], *, amd: bool) -> dict[str, object]:
        numbers = {pci.attributes["busid"].lower(): n for n, pci in enumerate(self._gpus)}
        directed: Counter[tuple[int, int]] = Counter()
        switched: Counter[int] = Counter()
        for source, gpu in enumerate(described):
            for link in (*gpu.all("nvlink"), *gpu.all("xgmi")):
                target = numbers.get(link.attributes.get("target", "").lower())
                count = integer(link, "count", 1)
                # Some dumps name a link from a GPU to itself; no byte takes it, as in NCCL's own graph.
                if target == source:
                    continue
                if target is not None:
                    directed[source, target] += count
                elif link.attributes.get("tclass", "").startswith("0x0680"):
                    switched[source] += count
        joined = sorted({(min(pair), max(pair)) for pair in directed})
        pairs = [[a, b, max(directed[a, b], directed[b, a])] for a, b in joined]
        links: dict[str, object] = {"xgmi" if amd else "nvlink": {"pairs": pairs}} if pairs else {}
        if switched and not amd:
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
        for child in flatten(parent):
            if child in self._gpus:
                gpus.append(self._gpus.index(child))
                self._width(f"gpu{gpus[-1]}", child, devices)
            elif is_of_class(child, "0x0604"):
                branch, inner = self._branch(child, devices)
                switch = {**branch, "switches": inner} if inner else branch
                if switch:
                    switches.append(switch | {"bandwidth": format_bandwidth(link_bandwidth(child))})
            elif ports := [self._nets.index(net) for net in nets_of(child)]:
                nics.append(ports if len(ports) > 1 else ports[0])
                self._width(f"nic{ports[0]}", child, devices)
        return ({"gpus": gpus} if gpus else {}) | ({"nics": nics} if nics else {}), switches

    def _width(self, device: str, pci: Element, devices: dict[str, str]) -> None:
        if (bandwidth := link_bandwidth(pci)) != self._slot:
            devices[device] = format_bandwidth(bandwidth)

    def _cpu(self) -> dict[str, object]:
        first = self._cpus[0].attributes if self._cpus else {}
        vendor = {"GenuineIntel": "intel", "AuthenticAMD": "amd"}.get(first.get("vendor", ""), "other")
        arch = first.get("arch", "x86_64")
        vendor = "arm" if arch.startswith(("arm", "aarch")) else "power9" if arch.startswith("ppc") else vendor
        model = _intel(first) if vendor == "intel" else vendor
        return {"sockets": max(1, len(self._cpus)), "arch": arch, "vendor": vendor, "model": model}

    def _nic(self, net: Element) -> dict[str, object]:
        speed = integer(net, "speed", 0) or UNKNOWN_NIC_MBPS
        nic: dict[str, object] = {"rate": format_bandwidth(speed * 1e6 / 8), "kind": net.attributes["kind"]}
        latency = number(net, "latency")
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
