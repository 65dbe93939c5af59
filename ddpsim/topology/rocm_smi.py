"""What `rocm-smi --showtopo` prints as a topology of one node.

Of its parts the reader takes three: link types (XGMI, PCIE), hops (XGMI over several hops is no link of its own), and
the NUMA node of each GPU. It has neither the GPUs' model nor NICs, and of two dies of a board not how many links join
them: those of a shipped machine with the same pairs are taken.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import combinations

from ddpsim.common import shipped
from ddpsim.common.documents.yaml_reading import read_mapping
from ddpsim.common.errors import TopologyError
from ddpsim.topology.cluster import Topology
from ddpsim.topology.hardware import MESHED_GCN, gcn_of
from ddpsim.topology.layouts import ask_for_gpu, find_gpus, gpu_model
from ddpsim.topology.matrix_text import MatrixVocabulary, check_rows, plain_lines
from ddpsim.topology.node import MESHED
from ddpsim.topology.spec import topology_from_document

TITLE = "Link Type between two GPUs"
"""The heading of the part that a file has to have."""
_HOPS = "Hops between two GPUs"
_NUMA = re.compile(r"GPU\s?\[?(\d+)\]?\s*:\s*\(Topology\) Numa Node:\s*(-?\d+)")
_LINKS = MatrixVocabulary(re.compile(r"XGMI|PCIE|\d"), "XGMI, PCIE, and 0 of a GPU itself")
_COUNTS = MatrixVocabulary(re.compile(r"\d+|N/A"), "numbers of hops")
_BOARDS = "mi250x-4"
"""The shipped machine of boards of two dies."""


def read_showtopo(text: str, place: str, *, gpu: str | None = None, name: str = "imported") -> Topology:
    """Return the node that `rocm-smi --showtopo` describes.

    Args:
        gpu: which GPU it is; where None, MI250X of four boards as shipped.

    Raises:
        TopologyError: no matrix of link types, a row or word that does not fit (with its line), a GPU that cannot be
            told or is not AMD's, a mesh with a hole.
    """
    lines = plain_lines(text)
    gpus, types = _part(lines, TITLE, _LINKS, place)
    _, hops = _part(lines, _HOPS, _COUNTS, place) if any(_HOPS in line for line in lines) else (gpus, {})
    pairs = [
        (first, second)
        for first, second in combinations(range(len(gpus)), 2)
        if types[gpus[first], gpus[second]] == "XGMI" and hops.get((gpus[first], gpus[second]), "1") == "1"
    ]
    boards = _find_boards(pairs, len(gpus))
    model = _model(gpu, pairs, len(gpus), boards=boards is not None, place=place)
    node: dict[str, object] = {"gpus": {"count": len(gpus), "model": model}}
    links = boards if boards is not None and model == "MI250X" else [[*pair, 1] for pair in pairs]
    if links:
        node["xgmi"] = {"pairs": links}
    sockets = _sockets(lines, len(gpus))
    node["pcie"] = {"slots": [{"socket": number, "gpus": each} for number, each in enumerate(sockets)]}
    node["cpu"] = {"sockets": len(sockets), "vendor": "amd", "model": "not stated"}
    notes = [
        f"{model} by {'--gpu' if gpu else 'its links'}",
        "processor and NICs are not in the output",
        *([f"links of each pair as of {_BOARDS}"] if links is boards else []),
    ]
    document = {"name": name, "sources": [f"rocm-smi --showtopo {place}"], "confidence": "; ".join(notes), "node": node}
    return topology_from_document(document, place)


def _part(
    lines: Sequence[str], title: str, words: MatrixVocabulary, place: str
) -> tuple[list[str], Mapping[tuple[str, str], str]]:
    """Return the GPUs and words of the matrix under a heading."""
    begin = next((number for number, line in enumerate(lines) if title in line), None)
    numbers = range(len(lines))[begin:] if begin is not None else range(0)
    start = next((number for number in numbers if lines[number].split()[:1] == ["GPU0"]), None)
    if start is None:
        what = f"no matrix under {title!r}"
        raise TopologyError(what, place=place, remedy="give the output of `rocm-smi --showtopo`, whole")
    gpus = lines[start].split()
    read, rest = words.read(lines, start, gpus, place)
    check_rows(gpus, read, list(rest), place)
    return gpus, read


def _find_boards(pairs: Sequence[tuple[int, int]], count: int) -> list[list[int]] | None:
    """Return the pairs of the shipped machine of boards with their links, where they are these; None where not."""
    node = read_mapping(shipped.find("topology", _BOARDS).read_text(encoding="utf-8"), _BOARDS)["node"]
    assert isinstance(node, dict)
    links: list[list[int]] = node["xgmi"]["pairs"]
    alike = count == node["gpus"]["count"] and {tuple(sorted(link[:2])) for link in links} == set(pairs)
    return links if alike else None


def _model(gpu: str | None, pairs: Sequence[tuple[int, int]], count: int, *, boards: bool, place: str) -> str:
    if gpu is not None:
        model = gpu_model(gpu, "gpu")
        if not gcn_of(model):
            raise TopologyError(f"{model} is not AMD's", place="gpu", remedy="say e.g. mi300x, or leave it out")
        return model
    if boards:
        return "MI250X"
    meshed = count == MESHED and len(pairs) == MESHED * (MESHED - 1) // 2
    what = (
        f"nothing tells which GPU has {count} of these links" if not meshed else "several GPUs are joined each to each"
    )
    raise ask_for_gpu(
        what, place, find_gpus(lambda spec: (spec.gcn or "").startswith(MESHED_GCN if meshed else "gfx"))[0]
    )


def _sockets(lines: Sequence[str], count: int) -> list[list[int]]:
    """Return the GPUs of each NUMA node, which count as sockets; all of one where the output does not say."""
    numa = {int(match[1]): int(match[2]) for line in lines if (match := _NUMA.search(line))}
    if not all(number in numa for number in range(count)):
        return [list(range(count))]
    return [[n for n in range(count) if numa[n] == node] for node in sorted({numa[n] for n in range(count)})]
