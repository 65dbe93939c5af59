"""Transfers that nobody would wait for are counted before they are made, and refused."""

from __future__ import annotations

import pytest

from ddpsim import InputError, Options, load_topology, load_workload
from ddpsim.common.operation import Operation
from ddpsim.prediction.predict import predict
from ddpsim.simulation.job import Job
from tests.ddpsim.collectives.groups import group_on

MIB = 1 << 20


@pytest.mark.parametrize(
    ("machine", "nodes", "algorithm"),
    [
        ("dgx-1v", 2, "ring"),
        ("dgx-1v", 2, "tree"),
        ("dgx-1v", 3, "tree"),
        ("dgx-h100", 1, "nvls"),
        ("dgx-h100", 3, "nvls_tree"),
    ],
)
def test_what_is_counted_before_is_what_is_made(
    monkeypatch: pytest.MonkeyPatch, machine: str, nodes: int, algorithm: str
) -> None:
    counted: list[int] = []
    for place in ("steps", "nccl.steps"):
        monkeypatch.setattr(f"ddpsim.collectives.{place}.refuse_too_many", counted.append)
    collectives = group_on(load_topology(machine).place(nodes), fidelity="steps", algorithm=algorithm)
    made = collectives.transport.steps(Operation.ALLREDUCE, MIB).transfers
    collectives.allreduce(MIB)
    assert set(counted) == {made}


def test_a_run_is_counted_before_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[object] = []
    monkeypatch.setattr("ddpsim.collectives.execute.carry_out", lambda *given: started.append(given))
    monkeypatch.setattr("ddpsim.collectives.schedules.MOST_TRANSFERS", 3_000)
    with pytest.raises(InputError, match=r"the run's collectives have.* single transfers, at most 3,000 "):
        predict(Job(load_workload("resnet50"), load_topology("dgx-1v"), options=Options(fidelity="steps")))
    assert started == []
