"""Transfers that nobody would wait for are counted before they are made, and refused."""

from __future__ import annotations

import pytest

from ddpsim.collectives.execute import Collectives
from ddpsim.collectives.schedules import MOST_TRANSFERS, refuse_too_many
from ddpsim.errors import InputError
from ddpsim.jobs.job_options import CollectiveOptions
from ddpsim.operations import Operation
from ddpsim.prediction.predict import predict
from ddpsim.simulation import Options
from ddpsim.topology.spec import load_topology
from ddpsim.workload.files import load_workload

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
    for place in ("steps", "nccl.steps", "nccl.tree_steps", "nccl.switch_steps"):
        monkeypatch.setattr(f"ddpsim.collectives.{place}.refuse_too_many", counted.append)
    options = CollectiveOptions(fidelity="steps", algorithm=algorithm)
    collectives = Collectives(None, load_topology(machine).place(nodes), backend="nccl", options=options)
    made = collectives.transport.steps(Operation.ALLREDUCE, MIB).transfers
    collectives.allreduce(MIB)
    assert set(counted) == {made}


def test_the_bounds_are_told_with_a_remedy() -> None:
    refuse_too_many(MOST_TRANSFERS)
    with pytest.raises(InputError, match=r"has 60,001 single transfers, at most 60,000 .*; use `fidelity=flow`"):
        refuse_too_many(MOST_TRANSFERS + 1)


def test_a_run_is_counted_before_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[object] = []
    monkeypatch.setattr("ddpsim.collectives.execute.carry_out", lambda *given: started.append(given))
    monkeypatch.setattr("ddpsim.collectives.schedules.MOST_TRANSFERS", 3_000)
    with pytest.raises(InputError, match=r"the run's collectives have.* single transfers, at most 3,000 "):
        predict(load_workload("resnet50"), load_topology("dgx-1v"), options=Options(fidelity="steps"))
    assert started == []
