"""The matrix of `nvidia-smi topo -m` as a topology of one node.

Its format is not promised stable, so the reader takes what it needs (a header of device names, a row for each GPU) and
leaves the rest. Words: NV# that many NVLinks; PIX one PCIe switch; PXB several; PHB a host bridge; NODE host bridges of
one NUMA node; SYS the link between sockets.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ddpsim.common.errors import TopologyError
from ddpsim.common.units import format_bandwidth
from ddpsim.topology.cluster import Topology
from ddpsim.topology.hardware import gpu_facts
from ddpsim.topology.layouts import ask_for_gpu, find_gpus, gpu_model
from ddpsim.topology.matrix_text import MatrixVocabulary, check_rows, plain_lines
from ddpsim.topology.nccl_xml import UNKNOWN_NIC_MBPS
from ddpsim.topology.spec import topology_from_document

_WORDS = MatrixVocabulary(re.compile(r"X|NV\d+|PIX|PXB|PHB|NODE|SYS"), "X, NV#, PIX, PXB, PHB, NODE, SYS")
_DEVICE = re.compile(r"GPU\d+|NIC\d+|mlx\d+_\w+|\w*(?:ib|efa|rdma|bnxt|hfi|hsi|irdma|roce)\w*\d+")
_MOST_LINKS = 18
"""NVLinks of a GPU, of any model."""
_NEAR = {"switch": {"PIX"}, "outer": {"PIX", "PXB"}, "socket": {"PIX", "PXB", "PHB", "NODE"}}


def read_topo_matrix(text: str, place: str, *, gpu: str | None = None, name: str = "imported") -> Topology:
    """Return the node that a matrix describes.

    Args:
        gpu: which GPU it is; needed unless a single one has as many NVLinks as each of the matrix.

    Raises:
        TopologyError: no matrix in `text`, a row or word that does not fit (with its line), a GPU that cannot be told.
    """
    matrix = _read(text, place)
    return topology_from_document(_document(matrix, place, gpu, name), place)


@dataclass(frozen=True, slots=True)
class _Matrix:
    gpus: list[str]
    nics: list[str]
    words: dict[tuple[str, str], str]
    affinity: dict[str, str]

    def groups(self, near: set[str], *, affinity: bool = False) -> list[list[str]]:
        """Return devices joined by words of `near`, in their order; or by an equal processor affinity."""
        group = {device: device for device in (*self.gpus, *self.nics)}

        def root(device: str) -> str:
            while group[device] != device:
                device = group[device]
            return device

        for (first, second), word in self.words.items():
            if word in near:
                group[root(second)] = root(first)
        for first in self.gpus if affinity else ():
            for second in self.gpus:
                if self.affinity[first] == self.affinity[second]:
                    group[root(second)] = root(first)
        by_root: dict[str, list[str]] = {}
        for device in group:
            by_root.setdefault(root(device), []).append(device)
        return list(by_root.values())


def by_affinity(text: str, place: str, machine: Topology) -> tuple[str, Topology] | None:
    """Return where a matrix's words contradict its processor affinities, and the machine as affinities have it.

    Args:
        machine: that the matrix was imported as, by its words.

    Returns:
        None where they agree, where there are no affinities, and of another kind of file.
    """
    if "GPU0" not in text or text.lstrip().startswith("<"):
        return None
    matrix = _read(text, place)
    affinity = matrix.affinity
    pairs = [pair for pair, word in matrix.words.items() if {*pair} <= {*matrix.gpus} and not word.startswith("NV")]
    apart = [(a, b) for a, b in pairs if (affinity[a] == affinity[b]) == (matrix.words[a, b] == "SYS")]
    if not apart or not all(affinity[gpu] for gpu in matrix.gpus):
        return None
    first, second = apart[0]
    each = " and ".join(dict.fromkeys((affinity[first], affinity[second])))
    what = f"{first} and {second} are {matrix.words[first, second]} apart and of affinity {each}; the words were taken"
    document = _document(matrix, place, machine.compute_device, machine.name, _by_affinity(matrix))
    return what, topology_from_document(document, place)


def _read(text: str, place: str) -> _Matrix:
    lines = plain_lines(text)
    start = next((number for number, line in enumerate(lines) if line.split()[:1] == ["GPU0"]), None)
    if start is None:
        raise TopologyError(
            "no header line with GPU0 in it", place=place, remedy="give the output of `nvidia-smi topo -m`"
        )
    devices = _header(lines[start])
    words, rest = _WORDS.read(lines, start, devices, place)
    gpus = [device for device in devices if device.startswith("GPU")]
    check_rows(gpus, words, list(rest), place)
    nics = sorted((device for device in devices if device not in gpus), key=_natural_key)
    return _Matrix(gpus, nics, words, {device: " ".join(cells[:2]) for device, cells in rest.items()})


def _header(line: str) -> list[str]:
    devices = []
    for cell in line.split():
        if not _DEVICE.fullmatch(cell):
            break
        devices.append(cell)
    return devices


def _document(
    matrix: _Matrix, place: str, gpu: str | None, name: str, sockets: list[list[str]] | None = None
) -> dict[str, object]:
    model = _model(matrix, place) if gpu is None else gpu_model(gpu, "gpu")
    links = _nvlinks(matrix, model)
    sockets = sockets or _sockets(matrix)
    node: dict[str, object] = {"gpus": {"count": len(matrix.gpus), "model": model}, **links}
    node["pcie"] = _pcie(matrix, sockets)
    node["cpu"] = {"sockets": len(sockets)}
    notes = [f"{model} by {'--gpu' if gpu else 'the number of its NVLinks'}", "processor not in the matrix"]
    if matrix.nics:
        rate = format_bandwidth(UNKNOWN_NIC_MBPS * 1e6 / 8)
        node["nics"] = [{"count": len(matrix.nics), "rate": rate, "kind": "infiniband"}]
        node["extras"] = {f"nic{number}": nic for number, nic in enumerate(matrix.nics)}
        notes.append("NIC speeds not in the matrix: 10 Gb/s, as NCCL takes unknown ones")
    return {"name": name, "sources": [f"nvidia-smi topo -m {place}"], "confidence": "; ".join(notes), "node": node}


def _nvlinks(matrix: _Matrix, model: str) -> dict[str, object]:
    counts = _counts(matrix)
    if not counts:
        return {}
    facts = gpu_facts(model)
    if _is_switched(matrix, (max(facts.nvlinks, facts.bridge_links) if facts else 0) or _MOST_LINKS):
        return {"nvswitch": {"links_per_gpu": next(iter(counts.values()))}}
    pairs = [[matrix.gpus.index(a), matrix.gpus.index(b), n] for (a, b), n in counts.items()]
    return {"nvlink": {"pairs": [pair for pair in pairs if pair[0] < pair[1]]}}


def _counts(matrix: _Matrix) -> dict[tuple[str, str], int]:
    return {
        pair: int(word[2:])
        for pair, word in matrix.words.items()
        if word.startswith("NV") and set(pair) <= set(matrix.gpus)
    }


def _is_switched(matrix: _Matrix, most: int) -> bool:
    """Return whether a switch joins them: every pair has the same links, more in all than the `most` of a GPU."""
    counts = _counts(matrix)
    every_pair = len(counts) == len(matrix.gpus) * (len(matrix.gpus) - 1)
    alike = set(counts.values())
    return every_pair and len(alike) == 1 and min(alike) * (len(matrix.gpus) - 1) > most


def _model(matrix: _Matrix, place: str) -> str:
    """Return the GPU that alone has as many NVLinks as each of the matrix, on boards of more than two.

    Raises:
        TopologyError: none has, or several have: it names them.
    """
    counts = _counts(matrix)
    if not counts:
        bare, _ = find_gpus(lambda spec: spec.gcn is None and not spec.nvlinks)
        raise ask_for_gpu("no NVLink in the matrix tells which GPU it is", place, bare)
    totals = {sum(n for (first, _), n in counts.items() if first == device) for device in matrix.gpus}
    most = max(totals)
    # A switch shows a GPU's links anew to each other GPU; from a part of a board some links are out of sight.
    totals_shown = {most, *([max(counts.values())] if _is_switched(matrix, 0) else [])}
    bridged = len(counts) <= len(matrix.gpus)
    exact, kind = find_gpus(lambda spec: spec.nvlinks in totals_shown or (bridged and spec.bridge_links == most))
    if kind is not None and len(totals) == 1 and not bridged:
        return kind
    shown = " or ".join(map(str, sorted(n for n in totals_shown if n <= _MOST_LINKS))) or most
    what = f"{shown} NVLinks of a GPU do not tell which it is"
    raise ask_for_gpu(what, place, exact or find_gpus(lambda spec: spec.nvlinks > most)[0])


def _sockets(matrix: _Matrix) -> list[list[str]]:
    """Return the devices of each socket, by words; by affinity too where it contradicts none."""
    by_affinity = matrix.groups(_NEAR["socket"], affinity=True)
    apart = [pair for pair, word in matrix.words.items() if word == "SYS"]
    if any(first in group and second in group for group in by_affinity for first, second in apart):
        return matrix.groups(_NEAR["socket"])
    return by_affinity


def _by_affinity(matrix: _Matrix) -> list[list[str]]:
    """Return the devices of each socket by affinity; switches stay whole, NICs stay with a GPU that words put near."""
    groups = matrix.groups(_NEAR["outer"], affinity=True)
    sockets = [group for group in groups if any(device in matrix.gpus for device in group)]
    for nic in (device for group in groups if group not in sockets for device in group):
        near = (socket for socket in sockets if any(matrix.words.get((gpu, nic)) in _NEAR["socket"] for gpu in socket))
        next(near, sockets[0]).append(nic)
    return sockets


def _pcie(matrix: _Matrix, sockets: list[list[str]]) -> dict[str, object]:
    outer, inner = matrix.groups(_NEAR["outer"]), matrix.groups(_NEAR["switch"])
    switches: list[dict[str, object]] = []
    slots: list[dict[str, object]] = []
    for number, devices in enumerate(sockets):
        loose: list[str] = []
        for group in (group for group in outer if set(group) <= set(devices)):
            parts = [part for part in inner if set(part) <= set(group)]
            if len(group) == 1:
                loose += group
            elif len(parts) == 1:
                switches.append({"socket": number, **_number_devices(matrix, group)})
            else:
                switches.append({"socket": number, "switches": [_number_devices(matrix, part) for part in parts]})
        if loose:
            slots.append({"socket": number, **_number_devices(matrix, loose)})
    return {key: value for key, value in (("switches", switches), ("slots", slots)) if value}


def _number_devices(matrix: _Matrix, devices: list[str]) -> dict[str, object]:
    listed: dict[str, object] = {}
    for key, names in (("gpus", matrix.gpus), ("nics", matrix.nics)):
        if numbers := [number for number, device in enumerate(names) if device in devices]:
            listed[key] = numbers
    return listed


def _natural_key(name: str) -> tuple[str, int]:
    match = re.fullmatch(r"(.*?)(\d{1,9})", name)
    return (match[1], int(match[2])) if match else (name, 0)
