"""What a step rests on is found once: refused there or nowhere, and runs again without asking."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import ddpsim.simulation
import ddpsim.simulation.retiming
from ddpsim.common.errors import DdpsimError
from ddpsim.simulation import resolve
from ddpsim.simulation.communication import Assumptions
from ddpsim.simulation.engine import run_job
from ddpsim.simulation.jobs.simulated import Options
from ddpsim.simulation.retiming.retime import run_again
from ddpsim.topology.spec import load_topology
from tests.ddpsim.simulation.builders import workload

ROOMS = [Path(each.__file__).parent for each in (ddpsim.simulation.retiming, ddpsim.simulation)]
ABOVE = {"resolve.py", "engine.py", "__init__.py"}
"""What resolves, and what calls it."""


def names_in(path: Path) -> set[str]:
    """Return the names and attributes that a module uses."""
    tree = ast.parse(path.read_text())
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return names | {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}


@pytest.mark.parametrize(
    "path",
    sorted(path for room in ROOMS for path in room.glob("*.py")),
    ids=lambda path: f"{path.parent.name}/{path.name}",
)
def test_below_it_nobody_looks_a_gpu_up_or_asks_what_kind_of_clock_there_is(path: Path) -> None:
    if path.name in ABOVE:
        return
    found = names_in(path)
    assert "gpu_of" not in found
    assert "gpu_facts" not in found
    assert not found & {"one_clock", "timed", "on_cpu"}


@pytest.mark.parametrize(
    ("source", "machine", "nodes", "options"),
    [
        (workload(device="V100"), "dgx-1v", 1, {"stragglers": {64: 2.0}}),
        (workload(), "dgx-1v", 33, {"backend": "mpi"}),
        (workload(device="V100"), "dgx-1v", 2, {"algorithm": "nvls"}),
        (workload(device="V100"), "dgx-1v", 2, {"scheme": "dataparallel"}),
        (workload(), "lab-flat", 70, {"scheme": "parameter-server:async"}),
        (workload(device="V100"), "dgx-1v", 1, {"iterations": 10_000_000}),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_before_anything_is_built(
    source: Any, machine: str, nodes: int, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    placement = load_topology(machine).place(nodes)
    with pytest.raises(DdpsimError) as refused:
        resolve.resolve(source, placement, Options(**options))

    def built(*_: object) -> None:
        raise AssertionError("it was built")

    monkeypatch.setattr("ddpsim.simulation.job_run.build_rank", built)
    with pytest.raises(DdpsimError) as again:
        run_job(source, placement, Options(**options))
    assert str(again.value) == str(refused.value)


def test_a_run_under_other_constants_looks_nothing_up_and_makes_no_transport(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = run_job(workload(device="V100"), load_topology("dgx-1v").place(2), Options(iterations=1, scheme="hsdp:8"))

    def asked(*_: object, **__: object) -> None:
        raise AssertionError("it was asked for again")

    monkeypatch.setattr("ddpsim.simulation.resolve.gpu_of", asked)
    monkeypatch.setattr("ddpsim.simulation.communication.make_transport", asked)
    found = run_again(ran, ran.extent, [Assumptions(compute=1.1), Assumptions(wire_factor=lambda size: 2.0)])
    assert all(step_s is not None and step_s > 0 for step_s in found)


def test_a_model_on_several_devices_says_which_part_of_forward_each_computes() -> None:
    made = workload(device="V100", gradients=4)
    halves = [replace(each, device=f"cuda:{place // 2}") for place, each in enumerate(made.parameters)]
    source = replace(made, parameters=tuple(halves))
    with pytest.raises(DdpsimError, match="parameters on cuda:0, cuda:1, and does not say what of forward each"):
        resolve.resolve(source, load_topology("dgx-1v").place(1), Options())
    both = replace(made, parameters=tuple(replace(each, device="cuda:1") for each in made.parameters))
    assert resolve.resolve(both, load_topology("dgx-1v").place(1), Options()).workload is both
