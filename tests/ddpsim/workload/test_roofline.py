from dataclasses import replace

import pytest

from ddpsim.bucketing import Parameter
from ddpsim.common.errors import UnknownNameError
from ddpsim.workload.anchors import TERM_SHARES
from ddpsim.workload.estimate import EstimateOptions, ModelShape, estimate
from ddpsim.workload.gpus import AchievedGpu, gpu_named
from ddpsim.workload.operators import Operator, PhasesUnderAutocast
from ddpsim.workload.roofline import MINIMUM, OPTIMIZER_TERM, WAVES, found_in_cache, operator_s, roofline_s

A100 = gpu_named("A100").with_fitted()
PRODUCT = Operator("gemm", 2.0 * 2048 * 768 * 768, 1e6, product=(1, 2048, 768, 768), term="products")
CAST, NORM = (Operator("memory", 0.0, 1e9, fp32=True, term=term) for term in ("casts", "norms"))
PHASES = ((PRODUCT, CAST), (NORM, replace(PRODUCT, gradients=(0,))))


def step(phases=PHASES, amp=None):
    return ModelShape("net", 4, "sample", (Parameter("p", (1000,)),), (), *phases, amp=amp)


def device_s(workload):
    return sum(float(phase.device_s[0]) for phase in (workload.forward, workload.backward, workload.optimizer))


def test_terms_share_the_device_and_each_can_be_left_out():
    whole = estimate(step(), A100, "amp")
    shares = whole.provenance[TERM_SHARES]
    within = {WAVES, MINIMUM}
    assert sum(share for name, share in shares.items() if name not in within) == pytest.approx(1, abs=1e-3)
    for name in ("casts", "norms", "products", OPTIMIZER_TERM, WAVES):
        less = estimate(step(), A100, "amp", EstimateOptions(without=[name]))
        assert less.provenance["without"] == [name]
        assert 1 - device_s(less) / device_s(whole) == pytest.approx(shares[name], abs=2e-3)
    with pytest.raises(UnknownNameError, match="norms"):
        roofline_s(PHASES, A100, "amp", ["norm"])


def test_a_small_product_is_slower_than_its_arithmetic_by_the_waves_it_does_not_fill():
    full_s = PRODUCT.flops / A100.achieved_flops("gemm", "amp")
    [[alone_s]] = roofline_s([[PRODUCT]], A100, "amp")
    assert alone_s > 1.1 * full_s
    [[without_s]] = roofline_s([[PRODUCT]], A100, "amp", [WAVES])
    assert without_s == pytest.approx(full_s)


def test_autocasts_kernels_are_priced_under_autocast_alone_and_in_eager_mode_alone():
    amp = PhasesUnderAutocast((PRODUCT, CAST, CAST), PHASES[1], (2,))
    counted, plain = step(amp=amp), step()
    [[cast_s]] = roofline_s([[CAST]], A100, "amp")
    more = estimate(counted, A100, "amp").forward.device_s[0] - estimate(plain, A100, "amp").forward.device_s[0]
    assert more == pytest.approx(cast_s)
    assert estimate(counted, A100, "tf32").forward == estimate(plain, A100, "tf32").forward
    shipped = gpu_named("A100")
    assert estimate(counted, shipped, "amp").forward == estimate(plain, shipped, "amp").forward


def test_a_product_of_another_batch_keeps_the_dimensions_of_what_is_fixed():
    rows, columns, depth = 2048, 3072, 768
    weight, result = 4.0 * depth * columns, 4.0 * rows * columns
    forward = Operator("gemm", 1.0, 1e9, fixed_bytes=weight, product=(1, rows, columns, depth))
    gradient = Operator("gemm", 1.0, 1e9, fixed_bytes=result, product=(1, rows, columns, depth))
    attention = Operator("gemm", 1.0, 1e9, product=(48, 512, 512, 64))
    assert forward.times(2).product == (1, 2 * rows, columns, depth)
    assert gradient.times(2).product == (1, rows, columns, 2 * depth)
    assert attention.times(2).product == (96, 512, 512, 64)


COPY = Operator("memory", 0.0, 8e6, fixed_bytes=2e6)


@pytest.mark.parametrize(("cache_bytes", "share"), [(8e6, 0.5), (16e6, 0.5), (16e6 / 3, 0.25), (4e6, 0.0), (None, 0.0)])
def test_what_is_read_is_found_where_all_that_moves_fits_and_nothing_where_half_does(cache_bytes, share):
    assert found_in_cache(COPY, 8e6, cache_bytes) == pytest.approx(share * 6e6)


def test_numbers_of_16_bits_fill_half_of_it_unless_autocast_keeps_32():
    gpu = replace(A100, achieved=replace(A100.achieved, cache_bytes=4e6, kernel_s=0.0))
    narrow_s, wide_s = (operator_s(replace(COPY, fp32=fp32), gpu, "amp") for fp32 in (False, True))
    assert narrow_s * gpu.achieved_Bps == pytest.approx(4e6 - 3e6 / 2)
    assert wide_s * gpu.achieved_Bps == pytest.approx(8e6)


def test_products_and_steps_at_shipped_shares_read_from_memory():
    assert found_in_cache(replace(COPY, kind="gemm"), 8e6, 1e9) == 0.0
    shipped = gpu_named("A100")
    assert shipped.achieved.cache_bytes is None
    assert operator_s(COPY, shipped, "fp32") == pytest.approx(8e6 / shipped.achieved_Bps)


def test_a_gpu_described_without_its_cache_has_none():
    known = gpu_named("RTX4090")
    without = AchievedGpu(replace(known.spec, cache=None), known.achieved).with_fitted()
    assert operator_s(COPY, without, "fp32") > operator_s(COPY, known.with_fitted(), "fp32")
    assert known.figures()["cache"] == "75497472B"
