"""Published steps of real GPUs: how they are read, and what is predicted of the cheapest of them."""

from __future__ import annotations

import re
from math import prod
from statistics import median

import pytest

from ddpsim.simulation.ddp_costs import Costs
from ddpsim.simulation.rank_config import ADDED
from ddpsim.workload import Workload
from ddpsim.workload.profile import Phase
from studies.published.gpu_page import DEFAULT_MB, TARGET, advice, in_reach, order, overhead_error, sweeps
from studies.published.gpu_steps import Judged, judge, judged
from studies.published.gpu_systems import SYSTEMS, cases, systems
from studies.published.step_workloads import counted, transformer

FOUND = {system.name: system for system in systems()}


def phases(workload: Workload) -> tuple[Phase, ...]:
    return workload.forward, workload.backward, workload.optimizer


@pytest.fixture(scope="module")
def rtx() -> list[Judged]:
    return list(judged(FOUND["rtxpro6000"], band=False))


@pytest.mark.parametrize("name", FOUND)
def test_a_system_names_its_source_its_machine_and_rows_that_exist(name: str) -> None:
    system = FOUND[name]
    text = (SYSTEMS.parent / system.rows).read_text()
    assert re.search(r"^# source: \S+", text)
    rows = list(cases(system))
    assert len(rows) >= 2
    labels = [(dtype, *(row[column] for column in system.label)) for dtype, row in rows]
    assert len(set(labels)) == len(labels)
    tables = [found for each in system.curves.values() for found in ([each] if isinstance(each, str) else each)]
    assert all((SYSTEMS.parent / table).is_file() for table in tables)


@pytest.mark.parametrize(("name", "parameters"), [("baskerville", 708e6), ("two-gpu-schemes", 2.0e9)])
def test_a_transformer_has_the_parameters_that_its_page_states(name: str, parameters: float) -> None:
    found = transformer(one_s=1.0, dtype="float32", gpu="A100", **FOUND[name].workload["transformer"])
    assert sum(prod(each.shape) for each in found.parameters) == pytest.approx(parameters, rel=0.005)
    ready = found.gradient_ready_s[0]
    assert (ready[:-1] > ready[1:]).all()
    assert ready[0] == pytest.approx(float(found.backward.device_s[0]))


@pytest.mark.parametrize("precision", ["amp", "fp32"])
def test_a_model_of_the_one_gpu_study_takes_the_step_that_was_timed(precision: str) -> None:
    pytest.importorskip("torch", reason="needs the extra `exec`")
    group = {"model": "resnet50", "precision": precision, "batch_per_gpu": "64"}
    found = counted("resnet50", group, "A100", one_s=0.1)
    assert sum(float(phase.device_s[0]) for phase in phases(found)) == pytest.approx(0.1)
    assert len(found.parameters) == 161


def test_a_one_gpu_row_under_ddp_is_what_a_world_of_one_takes() -> None:
    pytest.importorskip("torch", reason="needs the extra `exec`")
    system = FOUND["csc-mahti"]
    dtype, row = next(cases(system))
    found = judge(system, dtype, row, band=False)
    alone_s = sum(float(phase.device_s[0]) for phase in phases(found.predicted.workload))
    assert found.predicted_base_s == pytest.approx(found.base_s, rel=2e-6)
    assert found.base_s == found.one_s > alone_s > 0.9 * found.one_s


def test_the_caps_of_a_machine_that_had_no_part_in_the_fit_come_in_order(rtx: list[Judged]) -> None:
    [(_, swept)] = sweeps(rtx)
    assert order(swept) == (15, 15)
    assert min(swept, key=lambda row: row.predicted_s).cap_mb == 25
    assert median(abs(overhead_error(row)) for row in rtx) <= 0.10
    assert all(map(in_reach, rtx))


def test_its_plan_keeps_the_default(rtx: list[Judged]) -> None:
    [(_, swept)] = sweeps(rtx)
    assert advice(swept).startswith("keep the default")
    assert advice(swept[:1]) == "-"


def test_a_step_of_micro_batches_has_one_optimizer_and_adds_to_its_gradients(rtx: list[Judged]) -> None:
    """Additions lengthen a backward, which hides more of its communication: they cost less than they take."""
    [plain] = (row for row in rtx if row.cap_mb == DEFAULT_MB and row.predicted.options.accumulate == 1)
    every, last = (row for row in rtx if row.predicted.options.accumulate == 4)
    source, costs = plain.predicted.workload, Costs.of("nccl", None, plain.system.gpu)
    added_s = ADDED * source.gradient_bytes / costs.copy_Bps + len(source.parameters) * costs.copy_s
    one_update_s = 4 * plain.predicted_s - 3 * plain.predicted.summary.optimizer_s
    assert one_update_s < every.predicted_s < one_update_s + 3 * added_s
    assert every.one_s == last.one_s == pytest.approx(4 * 0.12218)
    assert every.comm_s == 4 * last.comm_s == 4 * plain.comm_s


def test_the_page_holds_what_is_predicted_today(rtx: list[Judged]) -> None:
    text = TARGET.read_text(encoding="utf-8")
    for row in rtx:
        label = " | ".join(row.label)
        found = re.search(rf"^\| {re.escape(label)} \| [0-9.]+ \| ([0-9.]+) \|", text, re.MULTILINE)
        assert found
        assert row.predicted_s * 1e3 == pytest.approx(float(found[1]), abs=0.06)
