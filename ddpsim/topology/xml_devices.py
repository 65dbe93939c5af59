"""PCI devices of NCCL's topology XML as NCCL itself reads them: classes, numbers, ports, switches, widths.

Source: NCCL 2.30 `src/graph/xml.cc`, `topo.cc`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddpsim.common.errors import TopologyError
from ddpsim.topology.hardware import GCN, PCIE_X16_BANDWIDTH
from ddpsim.topology.xml_text import Element

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
    found = _sort_by_number(pcis, [inner for gpus in described for inner in gpus])
    return sorted(pcis, key=lambda pci: pci.attributes["busid"]) if found is None else found


def nets_in_order(root: Element) -> list[Element]:
    """Return the ports of all cards by their device number, or in the file's order where it has none."""
    found = [net for child in (*root.all("pci"), *root.all("cpu")) for net in nets_of(child)]
    return _sort_by_number(found, found) or found


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
