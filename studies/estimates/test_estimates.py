from collections import Counter
from dataclasses import replace

import pytest

pytest.importorskip("torch")

import torch
from torch.utils import _runtime_estimation

from ddpexec.capturing.live import own_bytes
from ddpexec.capturing.operators import operator_of
from ddpsim.topology.gpus.table import find_shipped_gpu
from ddpsim.workload.gpus import EAGER
from studies.estimates.estimates import PAGE, judge, row, torch_s
from studies.estimates.estimates_fit import Counted, counted, fit, loss
from studies.estimates.one_gpu_steps import steps

EVERY = steps()


def test_attention_that_was_not_one_kernel_is_counted_apart() -> None:
    """Scores and their softmax are written to memory: more operators than of one kernel, and more traffic."""
    step = next(each for each in EVERY if each.model == "bert-base-qa" and not each.fused_attention)
    apart, fused = (
        [operator for phase in counted(each).phases for operator, times in phase.items() for _ in range(times)]
        for each in (step, replace(step, fused_attention=True))
    )
    assert len(apart) > len(fused)
    assert sum(each.traffic_bytes for each in apart) > 1.2 * sum(each.traffic_bytes for each in fused)


def test_an_anchor_is_never_the_step_that_is_judged() -> None:
    """And a row of the page is what it is judged to be; `make check` makes all of them."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    for step in EVERY:
        judged = judge(step, EVERY) if step.source == "summerquest-xu" else None
        if judged is not None:
            assert judged.anchor is not None
            assert judged.origin is not None
            assert judged.anchor.gpu == step.gpu
            assert judged.anchor.seconds != step.seconds
            assert judged.origin.gpu != step.gpu
            assert row(judged) in lines


def test_the_shares_in_force_are_near_the_best() -> None:
    rows = [counted(step) for step in EVERY if step.source in ("summerquest-wang", "summerquest-xu")]
    assert loss(rows, EAGER) < 0.15
    assert loss(rows, fit(rows, EAGER, rounds=1)) <= loss(rows, EAGER) + 0.001


def test_torchs_roofline_is_torchs_own_functions_given_the_data_sheet(monkeypatch: pytest.MonkeyPatch) -> None:
    """One product and one sum, on figures of an A100."""
    a100 = find_shipped_gpu("A100")
    assert a100 is not None
    monkeypatch.setattr(_runtime_estimation, "get_device_tflops", lambda dtype: a100.peaks["amp"] / 1e12)
    monkeypatch.setattr(_runtime_estimation, "get_gpu_dram_gbps", lambda: a100.memory_bandwidth / 1e9)
    left, right = (torch.empty(4096, 4096, dtype=torch.bfloat16, device="meta") for _ in range(2))
    product, total = left @ right, left + right
    compute_ns = _runtime_estimation.get_compute_time(torch.ops.aten.mm, (left, right), {}, product, {torch.bfloat16})
    transfer_ns = _runtime_estimation.get_transfer_time([left, right], [total])
    operators = [
        operator
        for func, out in ((torch.ops.aten.mm.default, product), (torch.ops.aten.add.Tensor, total))
        if (operator := operator_of(func, (left, right), {}, out, own_bytes)) is not None
    ]
    step = replace(next(s for s in EVERY if s.gpu == "A100" and s.precision == "amp"), optimizer="none", accumulation=1)
    row = Counted(step, (Counter(operators),), ())
    assert torch_s(row) == pytest.approx((max(compute_ns, 0) + transfer_ns) * 1e-9, rel=1e-6)
