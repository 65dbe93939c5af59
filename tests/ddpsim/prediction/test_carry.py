from dataclasses import replace

import numpy as np
import pytest

from ddpsim.common.errors import WorkloadError
from ddpsim.prediction.carry import carry_workload
from ddpsim.workload.estimate import ModelShape
from ddpsim.workload.files import load_workload
from ddpsim.workload.gpus import gpu_named
from ddpsim.workload.operators import Operator

V100 = load_workload("resnet50")
HERE = gpu_named("V100").with_fitted()
H100 = gpu_named("H100").with_fitted()


def test_without_operators_times_go_by_the_share_that_arithmetic_bounds():
    found = carry_workload(V100, H100).workload
    assert (found.device, found.name) == ("H100", "resnet50@h100-fp32-b32")
    arithmetic = HERE.achieved_flops("gemm", "fp32") / H100.achieved_flops("gemm", "fp32")
    share, memory = V100.arithmetic_share, HERE.achieved_Bps / H100.achieved_Bps
    assert 0 < share < 1
    factor = share * arithmetic + (1 - share) * memory
    assert found.forward.device_s[0] / V100.forward.device_s[0] == pytest.approx(factor)
    assert found.forward.host_s == V100.forward.host_s
    assert found.provenance["carried_from"] == "resnet50"
    unknown = carry_workload(replace(V100, arithmetic_share=1.0), H100)
    assert "half is assumed" in unknown.notes[0]


def test_to_the_same_gpu_nothing_changes():
    same = carry_workload(V100, gpu_named("V100").with_fitted()).workload
    np.testing.assert_allclose(same.gradient_ready_s, V100.gradient_ready_s, atol=2e-9)
    np.testing.assert_allclose(same.backward.device_s, V100.backward.device_s, rtol=1e-6)


def test_with_operators_each_gradient_goes_by_its_own():
    gemm, memory = Operator("gemm", 1e12, 1e6), Operator("memory", 0, 1e9)
    last_first = list(range(len(V100.parameters)))[::-1]
    backward = [replace(gemm if i % 2 else memory, gradients=(i,)) for i in last_first]
    shape = ModelShape("resnet50", 32, "image", V100.parameters, V100.buffers, (gemm,), tuple(backward))
    found = carry_workload(V100, H100, shape).workload
    assert found.forward.device_s[0] / V100.forward.device_s[0] == pytest.approx(
        HERE.achieved_flops("gemm", "fp32") / H100.achieved_flops("gemm", "fp32")
    )
    assert found.provenance["how"].startswith("carried from V100: operator by operator")


def test_what_cannot_be_carried_says_what_can():
    for source, message in (
        (replace(V100, device="cpu"), "the file has no operators; give --model"),
        (replace(V100, device="Voodoo"), "Voodoo has no figures to carry from; capture on a GPU"),
        (replace(V100, precision="bf16"), "V100 has no figures for precision 'bf16'"),
    ):
        with pytest.raises(WorkloadError, match=message):
            carry_workload(source, H100)
    with pytest.raises(WorkloadError, match="recorded in fp32, not amp"):
        carry_workload(V100, H100, precision="amp")
