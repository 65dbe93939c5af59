from dataclasses import replace

import pytest

from ddpsim.workload.operators import Operator
from studies.estimates.caches import L2_MIB, hit_rate, subtract_hits
from studies.estimates.one_gpu_steps import steps

COPY = Operator("memory", 0.0, 8e6, fixed_bytes=2e6)


@pytest.mark.parametrize(("cache_bytes", "share"), [(8e6, 0.5), (16e6, 0.5), (16e6 / 3, 0.25), (4e6, 0.0), (1e6, 0.0)])
def test_what_is_read_is_found_where_all_that_moves_fits_and_nothing_where_half_does(
    cache_bytes: float, share: float
) -> None:
    assert hit_rate(COPY, "fp32", cache_bytes) == pytest.approx(share)
    assert subtract_hits(COPY, "fp32", cache_bytes).traffic_bytes == pytest.approx(8e6 - share * 6e6)


def test_numbers_of_16_bits_fill_half_of_it_unless_autocast_keeps_32() -> None:
    assert hit_rate(COPY, "amp", 4e6) == pytest.approx(0.5)
    assert hit_rate(replace(COPY, fp32=True), "amp", 4e6) == 0.0


def test_products_read_from_memory() -> None:
    product = Operator("gemm", 1e9, 8e6)
    assert subtract_hits(product, "fp32", 1e9) == product


def test_every_gpu_of_a_published_step_has_a_cache() -> None:
    assert {step.gpu for step in steps()} == set(L2_MIB)
