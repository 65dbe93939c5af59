"""The YAML of the reference page is what the reader accepts, and says what the page says."""

import re
from pathlib import Path

from ddpsim.common.documents.fields import OneOf, fields_in_file, marks_of
from ddpsim.topology.declared import Fabric
from ddpsim.topology.graph import Topology
from ddpsim.topology.hardware import NIC_KINDS
from ddpsim.topology.schema import NodeSpec
from ddpsim.topology.spec import parse_topology
from ddpsim.topology.transports import HOST, NVLINK, PCIE, XGMI

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "topology.md"


def examples() -> dict[str, Topology]:
    blocks = re.findall(r"^```yaml\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return {topology.name: topology for topology in (parse_topology(block, str(PAGE)) for block in blocks)}


def test_the_examples_load_and_can_be_placed() -> None:
    found = examples()
    assert {name: topology.place().world_size for name, topology in found.items()} == {
        "two-racks": 32,
        "mixed": 64,
        "lab": 4,
    }
    assert [tuple(each.node_indices) for each in found["two-racks"].place().classes] == [(0, 1, 2, 4, 5, 6, 7), (3,)]
    route = found["lab"].place().network_route((0, "nic0"), (3, "nic0"))
    assert [link.bandwidth for link in route] == [125e6, 62.5e6, 62.5e6, 25e6]


def test_every_key_of_a_node_and_every_kind_of_fabric_is_on_the_page() -> None:
    text = PAGE.read_text(encoding="utf-8")
    keys = {each.path[0]: each for each in fields_in_file(Fabric)}
    (kinds,) = (mark.names for mark in marks_of(keys["kind"].hint) if isinstance(mark, OneOf))
    for word in [*NodeSpec.model_fields, *keys, *kinds]:
        assert f"`{word}`" in text or f"{word}:" in text


def carried(threads: int) -> str:
    return f"all, up to {threads} x `nccl.socket.thread`" if threads else "all"


def test_the_kinds_of_nics_are_those_of_the_code() -> None:
    section = PAGE.read_text(encoding="utf-8").partition("## Kinds of NICs")[2].partition("\n## ")[0]
    rows = [tuple(cell.strip() for cell in line.split("|")[1:-1]) for line in section.splitlines() if line[:3] == "| `"]
    words = {True: "yes", False: "no"}
    assert rows == [
        (
            f"`{kind.name}`",
            kind.transport,
            words[kind.gpudirect],
            words[kind.in_order],
            f"`nccl.nic.share.{kind.share}`" if kind.share else carried(kind.threads),
            kind.family,
        )
        for kind in NIC_KINDS.values()
    ]


def test_the_transports_are_those_that_are_shown() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for name in (NVLINK, XGMI, PCIE, HOST):
        assert f"| {name} |" in text
