from hypothesis import given
from hypothesis import strategies as st

from ddpsim.workload.roofline import share_of_waves

SIZES = st.integers(1, 5000)


@given(st.integers(1, 64), SIZES, SIZES, SIZES, st.integers(1, 200))
def test_no_product_is_faster_than_an_endless_one(many, rows, columns, depth, multiprocessors):
    assert 0 < share_of_waves((many, rows, columns, depth), multiprocessors) <= 1


def test_full_waves_reach_nearly_all_and_one_tile_one_multiprocessor():
    many_waves = (1, 256 * 108 * 20, 128, 8192)
    assert share_of_waves(many_waves, 108) > 0.99
    # Four cuts of 256 along the depth are the most, and smaller tiles are worse fed.
    assert share_of_waves((1, 64, 64, 1024), 108) < 4 / 108
    # One tile more than a wave begins another.
    full, more = ((1, 256 * tiles, 128, 128) for tiles in (108, 109))
    assert share_of_waves(more, 108) < 0.9 * share_of_waves(full, 108)


@given(SIZES, SIZES, SIZES)
def test_a_batch_of_products_fills_the_waves_that_one_does_not(rows, columns, depth):
    alone, together = (share_of_waves((many, rows, columns, depth), 108) for many in (1, 108))
    assert together >= alone - 1e-12
