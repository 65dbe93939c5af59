from __future__ import annotations

import doctest
import random
from decimal import Decimal

from hypothesis import example, given, settings
from hypothesis import strategies as st

from ddpsim.bucketing import Parameter, assign_buckets, torch_caps
from ddpsim.bucketing.torch_caps import find_round_cap
from ddpsim.common.units import MIB, mib_to_bytes
from tests import strategies
from tests.profile import examples

SIZES = st.sampled_from([40, 5_000, 70_000, 2_000_000])


def assigned(parameters, groups, caps):
    order = [index for group in groups for index in group]
    return [b.parameters for b in assign_buckets(parameters, [mib_to_bytes(cap) for cap in caps], order)]


def digits(cap):
    """Return how many digits one has to write for `cap`."""
    return len(Decimal(repr(cap)).normalize().as_tuple().digits)


@settings(max_examples=examples(300), deadline=None)
@given(strategies.groups(), SIZES, st.integers(0, 999))
@example([(0, 1, 2), (3, 4, 5, 6, 7), (8, 9), (10, 11, 12, 13)], 40, 0)
def test_round_caps_give_exactly_the_same_buckets(groups, largest, seed):
    rng = random.Random(seed)
    parameters = [Parameter(f"p{i}", (rng.randint(1, largest),)) for i in range(sum(map(len, groups)))]
    caps = torch_caps.torch_caps(parameters, groups)
    assert assigned(parameters, groups, caps) == groups
    exact = [sum(parameters[i].size_bytes for i in group) / MIB for group in groups]
    assert len(caps) <= len(exact)
    assert assigned(parameters, groups, exact) == groups
    if len(caps) == len(exact):
        assert sum(map(digits, caps)) <= sum(map(digits, exact))


@settings(max_examples=examples(300), deadline=None)
@given(strategies.groups(12), st.integers(0, 999))
def test_a_list_for_several_dtypes_gives_exactly_the_same_buckets_or_there_is_none(groups, seed):
    rng = random.Random(seed)
    dtypes = [rng.choice(("float32", "float16")) for _ in groups]
    kinds = {index: dtype for group, dtype in zip(groups, dtypes, strict=True) for index in group}
    parameters = [Parameter(f"p{i}", (rng.randint(1, 70_000),), kinds[i]) for i in sorted(kinds)]
    caps = torch_caps.torch_caps(parameters, groups)
    assert caps is None or assigned(parameters, groups, caps) == groups


def test_what_torch_would_make_by_itself_has_short_lists():
    parameters = [Parameter(f"layer{i}", (rows, 1024)) for i, rows in enumerate([1000, 7000, 6500, 6400, 2300] * 3)]
    order = range(len(parameters) - 1, -1, -1)
    for limits in ([1 << 20, 25 << 20], [25 << 20], [0], [10 << 20, 40 << 20]):
        groups = [bucket.parameters for bucket in assign_buckets(parameters, limits, order)]
        caps = torch_caps.torch_caps(parameters, groups)
        assert assigned(parameters, groups, caps) == groups
        assert len(caps) <= 2
        assert max(map(digits, caps)) <= 2


@given(st.integers(-1, 1 << 31), st.integers(1, 1 << 31))
def test_a_round_cap_lies_in_its_range(above, width):
    cap = find_round_cap((above, above + width))
    assert cap is None or above < mib_to_bytes(cap) <= above + width
    if width > 64:
        assert cap is not None


def test_examples():
    assert doctest.testmod(torch_caps).failed == 0
