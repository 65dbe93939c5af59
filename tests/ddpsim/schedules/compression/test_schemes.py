from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpsim.bucketing import Parameter
from ddpsim.common.errors import InputError, UnknownNameError
from ddpsim.schedules import compression
from ddpsim.schedules.compression import CodecWork, CompressedCollective, Roofline, ratio, scheme
from tests import strategies

BUCKET = [Parameter("weight", (512, 1024)), Parameter("bias", (512,))]
NAMES = (
    "none",
    "fp16",
    "bf16",
    "powersgd:2",
    "onebit",
    "topk:0.01",
    "adaptive:1",
    "adaptive:8",
    "adaptive:16",
    "adaptive:32",
)


@pytest.mark.parametrize("name", NAMES)
def test_names_read_back(name):
    assert scheme(name).name == name


@pytest.mark.parametrize(
    ("name", "messages"),
    [
        ("none", [("allreduce", 4 * (512 * 1024 + 512))]),
        ("fp16", [("allreduce", 2 * (512 * 1024 + 512))]),
        ("powersgd:2", [("allreduce", 4 * 512), ("allreduce", 4 * 2 * 512), ("allreduce", 4 * 2 * 1024)]),
        ("onebit", [("allgather", (512 * 1024 + 512) // 8 + 16)]),
        ("topk:0.01", [("allgather", 8 * 5248)]),
    ],
)
def test_messages_of_a_bucket(name, messages):
    assert [(m.collective, m.size_bytes) for m in scheme(name).messages(BUCKET)] == messages


def test_a_small_matrix_is_not_worth_factoring():
    assert not scheme("powersgd:4").factors(Parameter("w", (8, 8)))
    assert [m.size_bytes for m in scheme("powersgd:4").messages([Parameter("w", (8, 8))])] == [256, 0, 0]


def test_gathered_bytes_grow_with_ranks_reduced_bytes_do_not():
    """By the bytes that cross one link of a ring: (p - 1) s for a gather, 2 (p - 1) / p S for a reduction."""
    for ranks in (2, 4, 64):
        on_a_link = (ranks - 1) * 1000
        assert 2 * (ranks - 1) / ranks * CompressedCollective("allgather", 1000).allreduce_bytes(
            ranks
        ) == pytest.approx(on_a_link)
        assert CompressedCollective("allreduce", 1000).allreduce_bytes(ranks) == 1000


def test_one_bit_stops_paying_at_64_ranks():
    assert ratio(scheme("onebit"), BUCKET, 2) == pytest.approx(32, rel=0.01)
    assert ratio(scheme("onebit"), BUCKET, 64) == pytest.approx(1, rel=0.01)
    assert ratio(scheme("none"), BUCKET, 64) == 1


@given(strategies.parameters(dtypes=("float32", "float64", "complex64")), st.sampled_from(NAMES), st.integers(1, 64))
def test_nothing_is_negative_and_half_is_half(parameters, name, ranks):
    assert all(message.size_bytes >= 0 for message in scheme(name).messages(parameters))
    works = scheme(name).works(parameters, ranks)
    assert len(works) == len(scheme(name).messages(parameters)) + 1
    work = compression.work(scheme(name), parameters, ranks)
    assert min(work.kernels, work.moved_bytes, work.flops) >= 0
    halves = sum(p.size_bytes // {"float32": 2, "float64": 4, "complex64": 2}[p.dtype] for p in parameters)
    assert scheme("fp16").messages(parameters)[0].size_bytes == halves


@given(st.floats(0.001, 1), st.integers(1, 10**6))
def test_top_k_keeps_its_share_and_at_least_one(density, elements):
    kept = compression.TopK(density).count_kept(elements)
    assert 1 <= kept <= elements
    assert kept == max(1, math.ceil(density * elements))


def test_time_is_launches_and_the_slower_of_memory_and_arithmetic():
    processor = Roofline(launch_s=1e-6, memory_bandwidth=1e9, flops=1e12)
    assert processor.time_s(CodecWork(10, 1e6, 1e6)) == pytest.approx(1e-5 + 1e-3)
    assert processor.time_s(CodecWork(10, 1e6, 1e10)) == pytest.approx(1e-5 + 1e-2)
    assert Roofline(1e-6, 1e9).time_s(CodecWork(0, 1e6, 1e10)) == pytest.approx(1e-3)


@pytest.mark.parametrize(
    "text",
    ["powersgd", "powersgd:0", "powersgd:x", "powersgd:²", "topk", "topk:0", "topk:2", "topk:nan", "adaptive:7"],
)
def test_parameters_out_of_range(text):
    with pytest.raises(InputError, match=r"write e\.g\. (powersgd:4|topk:0\.01|adaptive:8)"):
        scheme(text)


def test_adaptive_precision_is_predicted_with_8_bits_unless_told():
    assert scheme("adaptive") == scheme("adaptive:8")
    works = [compression.work(scheme(f"adaptive:{bits}"), BUCKET, 4).moved_bytes for bits in (32, 16, 8)]
    assert works == sorted(works)


def test_unknown_schemes_and_parameters_too_many():
    with pytest.raises(UnknownNameError, match="unknown compression 'onebits'; did you mean onebit"):
        scheme("onebits")
    with pytest.raises(InputError, match="'fp16' takes no parameter, got '3'; write fp16"):
        scheme("fp16:3")
