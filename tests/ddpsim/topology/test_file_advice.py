"""What a file says that cannot be, or leaves open, is said; of the shipped files nothing of the kind."""

from __future__ import annotations

import pytest

from ddpsim.common import shipped
from ddpsim.topology.cluster import Topology
from ddpsim.topology.file_advice import file_advice
from ddpsim.topology.spec import load_topology, parse_topology


def machine(rate: str = "100Gb/s", pcie: str = "", cpu: str = "sockets: 2") -> Topology:
    return parse_topology(
        "name: mine\nnodes: 2\nnode:\n  gpus: {count: 2, model: V100}\n"
        f"  cpu: {{{cpu}}}\n  pcie: {{generation: 3, {pcie}slots: [{{gpus: [0, 1], nics: [0, 1]}}]}}\n"
        f"  nics: [{{count: 2, rate: {rate}, kind: infiniband}}]\n",
        "mine.yaml",
    )


@pytest.mark.parametrize(
    ("rate", "pcie", "said"),
    [
        ("100Gb/s", "", None),
        (
            "400Gb/s",
            "",
            "mine has nic0 and 1 more of 50GB/s in a slot of 12GB/s, which binds it: correct its `rate`, or",
        ),
        ("100Gb/s", "devices: {nic1: 6GB/s}, ", "mine has nic1 of 12.5GB/s in a slot of 6GB/s"),
    ],
)
def test_a_nic_that_is_faster_than_its_slot_is_said(rate: str, pcie: str, said: str | None) -> None:
    found = file_advice(machine(rate, pcie), network=True)
    assert [line[: len(said or "")] for line in found] == ([] if said is None else [said])
    assert file_advice(machine(rate, pcie), network=False) == []


@pytest.mark.parametrize(
    ("cpu", "said"),
    [
        (
            "sockets: 2, model: skylaek",
            "mine has an unknown processor 'skylaek' of 'intel', so that its sockets are joi",
        ),
        ("sockets: 2, model: skylaek, bandwidth: 10GB/s", None),
        ("sockets: 1, model: skylaek", None),
        ("sockets: 2, vendor: amd, model: naples", None),
    ],
)
def test_a_processor_that_is_not_in_the_table_is_said(cpu: str, said: str | None) -> None:
    found = file_advice(machine(cpu=cpu), network=False)
    assert [line[: len(said or "")] for line in found] == ([] if said is None else [said])
    assert all(line.endswith("by 10GB/s: write `cpu: {bandwidth: ...}`; did you mean skylake?") for line in found)


def test_shipped_machines_are_known_and_their_cards_fit_their_slots() -> None:
    every = [line for name in shipped.names("topology") for line in file_advice(load_topology(name), network=True)]
    assert [line for line in every if "kind: roce" not in line] == []


def test_rings_over_fewer_gpus_than_there_are_are_said() -> None:
    text = "name: x\nnode:\n  gpus: {count: 4, model: V100}\n  rings: [[gpu0, gpu1]]\n"
    (line,) = file_advice(parse_topology(text, "x.yaml"), network=False)
    assert line.startswith("x has `rings` over 2 of its 4 GPUs, which a job on all does not use")
    assert file_advice(parse_topology(text.replace("count: 4", "count: 2"), "x.yaml"), network=False) == []
