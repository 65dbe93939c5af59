"""What a prediction says beside its figures of a step that sends more than its gradients."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddpsim import load_topology, predict
from ddpsim.simulation.jobs.simulated import Options
from ddpsim.workload.profile import LEFT_OUT
from tests.ddpsim.simulation.builders import workload

NORMS = "3 layers take 6 collectives a step: they are left out"


def notes(options: Options, **changes: object) -> str:
    found = replace(workload(device="V100"), **changes)  # type: ignore[arg-type]
    return " ".join(predict(found, load_topology("dgx-1v"), options=options, band=False).notes)


def test_what_a_workload_leaves_out_is_named() -> None:
    assert NORMS in notes(Options(), provenance={LEFT_OUT: [NORMS]})
    assert "left out" not in notes(Options())


@pytest.mark.parametrize(("scheme", "parts"), [("ddp", False), ("zero1", True), ("fsdp2", True), ("hsdp:4", True)])
def test_clipping_gradients_of_which_ranks_have_parts_leaves_an_allreduce_out(scheme: str, *, parts: bool) -> None:
    said = notes(Options(scheme=scheme), optimizer_kind="adamw-fused+clip")
    assert ("clipped by their global norm" in said) == parts
    assert "clipped" not in notes(Options(scheme=scheme), optimizer_kind="adamw-fused")
