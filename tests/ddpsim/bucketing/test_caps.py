from __future__ import annotations

import pytest

from ddpsim.bucketing import BucketCaps
from ddpsim.common.errors import InputError, PlanError

MIB = 1 << 20


@pytest.mark.parametrize(
    ("caps", "limits", "arguments"),
    [
        (BucketCaps(), [MIB, 25 * MIB], {}),
        (BucketCaps(bucket_cap_mb=25), [25 * MIB], {"bucket_cap_mb": 25}),
        (BucketCaps(bucket_cap_mb=0), [0], {"bucket_cap_mb": 0}),
        (BucketCaps(bucket_cap_mb=0.5), [MIB // 2], {"bucket_cap_mb": 0.5}),
        (BucketCaps(first_bucket_mb=2), [2 * MIB, 25 * MIB], {"bucket_cap_mb_list": [2, 25]}),
        (BucketCaps(bucket_cap_mb=8, first_bucket_mb=2), [2 * MIB, 8 * MIB], {"bucket_cap_mb_list": [2, 8]}),
        (BucketCaps(bucket_cap_mb_list=(1, 2.5, 0)), [MIB, 5 * MIB // 2, 0], {"bucket_cap_mb_list": [1, 2.5, 0]}),
    ],
)
def test_caps_become_limits_and_torch_arguments(caps, limits, arguments):
    assert caps.limits() == limits
    assert caps.torch_arguments() == arguments


@pytest.mark.parametrize("key", ["bucket_cap_mb", "first_bucket_mb"])
def test_a_list_and_another_cap_are_refused_and_both_named(key):
    with pytest.raises(PlanError, match=rf"`{key}=2` and `bucket_cap_mb_list=1` are both given"):
        BucketCaps(bucket_cap_mb_list=(1,), **{key: 2})


def test_an_empty_list_is_refused():
    with pytest.raises(PlanError, match="empty"):
        BucketCaps(bucket_cap_mb_list=())


@pytest.mark.parametrize("bad", [-1, float("nan"), float("inf")])
@pytest.mark.parametrize("key", ["bucket_cap_mb", "first_bucket_mb", "bucket_cap_mb_list"])
def test_a_cap_that_is_no_size_is_refused_with_its_option(key, bad):
    with pytest.raises(InputError, match=key):
        BucketCaps(**{key: (1, bad) if key == "bucket_cap_mb_list" else bad})
