"""Flows that cross a spine over hashed Ethernet are a doubt; others are none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddpsim import Calibration, Options, load_workload
from ddpsim.common.units import MIB
from ddpsim.prediction.doubts.causes import collisions, doubts_of
from ddpsim.prediction.predict import predict
from ddpsim.simulation.job import Job
from ddpsim.topology.dump import document_of
from ddpsim.topology.spec import parse_topology, topology_from_document

SIZES = [MIB, 25 * MIB]
NAME = "ECMP collisions"


def machine(kind: str = "roce", fabric: str = "kind: two-level, nodes_per_leaf: 2", routing: str = "") -> str:
    return (
        "name: m\nnodes: 4\nnode:\n  gpus: {count: 1, model: A100}\n  cpu: {sockets: 1}\n"
        f"  nics: [{{rate: 100Gb/s, kind: {kind}}}]\nfabric: {{{fabric}{routing}}}\n"
    )


def factor(text: str, nodes: int = 4) -> float | None:
    band = collisions(parse_topology(text, "m").place(nodes), SIZES)
    return None if band is None else band.high(SIZES[1])


def test_ethernet_across_a_spine_is_doubted_by_what_two_sites_found() -> None:
    assert factor(machine()) == pytest.approx(1.4)
    assert factor(machine(kind="tcp")) == pytest.approx(1.4)
    assert factor(machine(kind="infiniband", routing=", routing: ecmp")) == pytest.approx(1.4)


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        (machine(), 2),
        (machine(kind="infiniband"), 4),
        (machine(kind="efa"), 4),
        (machine(routing=", routing: adaptive"), 4),
        (machine(fabric="kind: flat"), 4),
        (machine(fabric="kind: rail"), 4),
    ],
)
def test_one_leaf_other_cards_and_adaptive_routing_leave_no_doubt(text: str, nodes: int) -> None:
    assert factor(text, nodes) is None


def test_predictions_carry_it_with_one_side() -> None:
    model, topology = load_workload("resnet50@v100-fp32-b32"), parse_topology(machine(), "m")
    placement = topology.place()
    [doubt] = [each for each in doubts_of(model, placement, Options(), None, SIZES) if each.name == NAME]
    assert doubt.low is None
    told, untold = (
        predict(Job(model, each)) for each in (topology, parse_topology(machine(routing=", routing: adaptive"), "m"))
    )
    assert NAME in {each.name for each in told.doubts}
    assert NAME not in {each.name for each in untold.doubts}
    assert told.iteration_s == untold.iteration_s
    assert told.high_s > untold.high_s
    covering = replace(Calibration.priors("nccl"), residual_low=-0.1, residual_high=0.1)
    assert NAME not in {each.name for each in doubts_of(model, placement, Options(), covering, SIZES)}
    assert NAME not in {each.name for each in doubts_of(model, placement, Options(backend="gloo"), None, SIZES)}


def test_routing_is_written_and_changes_no_fingerprint() -> None:
    plain, said = (parse_topology(machine(routing=each), "m") for each in ("", ", routing: ecmp"))
    assert topology_from_document(document_of(said), "m").fabric.routing == "ecmp"
    assert plain.fingerprint() == said.fingerprint()
