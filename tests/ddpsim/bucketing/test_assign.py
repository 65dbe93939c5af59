from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ddpsim.bucketing import Parameter, assign_buckets
from tests import strategies


@given(strategies.parameters(), strategies.limits(), st.randoms(use_true_random=False))
def test_each_parameter_is_in_exactly_one_bucket(parameters, limits, rng):
    order = rng.sample(range(len(parameters)), len(parameters))
    for visit in (None, order):
        buckets = assign_buckets(parameters, limits, visit)
        assert sorted(i for b in buckets for i in b.parameters) == list(range(len(parameters)))
        assert all(b.size_bytes == sum(parameters[i].size_bytes for i in b.parameters) for b in buckets)
        assert all(len({(parameters[i].dtype, parameters[i].device) for i in b.parameters}) == 1 for b in buckets)


def test_each_dtype_moves_its_own_cursor_through_the_limits():
    parameters = [Parameter(f"p{i}", (10,), dtype) for i, dtype in enumerate(["float32", "float64"] * 4)]
    buckets = assign_buckets(parameters, [40, 160])
    assert [(b.parameters, b.limit_bytes) for b in buckets] == [
        ((0,), 40),
        ((1,), 40),
        ((2, 4, 6), 160),
        ((3, 5), 160),
        ((7,), 160),
    ]


def test_the_five_buckets_of_a_published_resnet50_run():
    """Sizes and parameter counts of the DDP run in HolisticTraceAnalysis' test data (torch's default caps)."""
    sizes = _resnet50_parameters()
    buckets = assign_buckets(sizes, [1 << 20, 25 << 20], range(len(sizes) - 1, -1, -1))
    assert [b.size_bytes // 4 for b in buckets] == [2_049_000, 7_875_584, 6_563_840, 6_637_568, 2_431_040]
    assert [len(b.parameters) for b in buckets] == [2, 15, 12, 51, 81]


def _resnet50_parameters() -> list[Parameter]:
    shapes: list[tuple[int, ...]] = [(64, 3, 7, 7), (64,), (64,)]
    inputs = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            for shape in ((width, inputs, 1, 1), (width, width, 3, 3), (4 * width, width, 1, 1)):
                shapes += [shape, (shape[0],), (shape[0],)]
            if block == 0:
                shapes += [(4 * width, inputs, 1, 1), (4 * width,), (4 * width,)]
            inputs = 4 * width
    shapes += [(1000, 2048), (1000,)]
    return [Parameter(f"p{i}", shape) for i, shape in enumerate(shapes)]
