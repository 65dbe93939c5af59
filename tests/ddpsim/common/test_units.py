from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpsim.common import units
from ddpsim.common.errors import UnitError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("50GB/s", 50e9),
        ("400Gb/s", 50e9),
        ("400Gbps", 50e9),
        ("1gbit", 125e6),
        ("25GbE", 3.125e9),
        ("100mbit", 12.5e6),
        ("12.5 GiB/s", 12.5 * 2**30),
        ("1e3 MB/s", 1e9),
        (".5kB/s", 500),
    ],
)
def test_bandwidths(text, value):
    assert units.parse_bandwidth(text) == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize(("text", "value"), [("2us", 2e-6), ("2 µs", 2e-6), ("0.2ms", 2e-4), ("1s", 1), ("0ns", 0)])
def test_times(text, value):
    assert units.parse_time(text) == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize(("text", "value"), [("8", 8), ("4K", 4096), ("128m", 128 << 20), ("1G", 1 << 30), (" 3B ", 3)])
def test_nccl_sizes_are_binary(text, value):
    assert units.parse_nccl_size(text) == value


@pytest.mark.parametrize("parse", [units.parse_bandwidth, units.parse_time])
@pytest.mark.parametrize("text", ["300", 300, 3.5, None, "", "GB/s", "fast", ["1s"], "nan s", "1 2s", "١٢s"])
def test_what_is_no_number_with_a_unit_is_refused_with_an_example(parse, text):
    with pytest.raises(UnitError, match=r"^cluster.yaml: links.0: .*; write it with its unit, e.g. \d") as caught:
        parse(text, "cluster.yaml: links.0")
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    ("parse", "text"),
    [(units.parse_bandwidth, "5GiB"), (units.parse_time, "5m"), (units.parse_time, "5MS")],
)
def test_an_unknown_unit_is_named(parse, text):
    with pytest.raises(UnitError, match=f"unknown unit '{text[1:]}'"):
        parse(text)


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (units.parse_bandwidth, "0GB/s"),
        (units.parse_bandwidth, "-1GB/s"),
        (units.parse_bandwidth, "1e999GB/s"),
        (units.parse_time, "-1us"),
    ],
)
def test_out_of_range(parse, text):
    with pytest.raises(UnitError, match="out of range"):
        parse(text)


@pytest.mark.parametrize("text", ["", "0", "-8", "8KB", "1.5M", "4T", "K", "²", "9" * 5000])
def test_what_nccl_tests_would_not_take(text):
    with pytest.raises(UnitError, match="nccl-tests"):
        units.parse_nccl_size(text)


@given(st.integers(1, 1 << 40), st.integers(0, 60), st.integers(2, 1000))
def test_sizes_rise_by_their_factor_and_end_in_range(begin, doublings, factor):
    sizes = units.nccl_sizes(begin, begin << doublings, factor)
    assert sizes[0] == begin
    assert all(later == factor * earlier for earlier, later in pairwise(sizes))
    assert sizes[-1] <= begin << doublings < factor * sizes[-1]


@pytest.mark.parametrize(("number", "text"), [(25.0, "25"), (0.0, "0"), (25.0390625, "25.0390625"), (0.1, "0.1")])
def test_exact_numbers_read_back(number, text):
    assert units.format_exact(number) == text
    assert float(text) == number


@pytest.mark.parametrize(("cap", "value"), [(25, 25 << 20), (0, 0), (0.1, 104857), (1e-9, 0)])
def test_bucket_caps_are_mib_truncated(cap, value):
    assert units.mib_to_bytes(cap) == value


@given(st.floats(1.0, 1e13))
def test_a_formatted_bandwidth_reads_back(bandwidth):
    assert units.parse_bandwidth(units.format_bandwidth(bandwidth)) == pytest.approx(bandwidth, rel=1e-11)


@given(st.integers(0, 1 << 44))
def test_a_formatted_size_holds_its_exact_bytes(size):
    text = units.format_size(size)
    exact = text[text.index("(") + 1 :] if "(" in text else text
    assert int(exact.replace(",", "").rstrip(" B)")) == size


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (1.5, "1.5 s"), (0.1032, "103.2 ms"), (-2e-6, "-2 us"), (3e-9, "3 ns"), (1e-3, "1 ms")],
)
def test_formatted_times(seconds, text):
    assert units.format_time(seconds) == text


def test_sizes_are_numbers_of_float32():
    assert units.float32_size("4K", "-b") == 4096
    with pytest.raises(UnitError, match="-b: 6 B is no number of float32"):
        units.float32_size("6", "-b")


@pytest.mark.parametrize("page", ["ddpsim/cli/app.py", "docs/reference/glossary.md"])
def test_every_quantity_that_is_shown_with_its_unit_is_read(page):
    text = (Path(__file__).parents[3] / page).read_text().partition("## Units")
    shown = re.findall(r"(?<![\w.])\d+(?:\.\d+)?(?:[A-Za-z]+/s|gbit|[num]?s|[KMG]i?B)\b", text[2] or text[0])
    assert "2us" in shown
    for quantity in shown:
        parse = units.parse_time if re.search(r"\ds|[num]s$", quantity) else units.parse_bandwidth
        assert parse(quantity) > 0


@pytest.mark.parametrize(
    ("parse", "text", "bounds"),
    [(units.parse_size, "1e300GB", r"1e\+18 B$"), (units.parse_arithmetic, "1e300T", r"1e\+21 FLOP/s$")],
)
def test_the_bounds_of_a_quantity_have_its_unit(parse, text, bounds):
    with pytest.raises(UnitError, match=bounds):
        parse(text)
