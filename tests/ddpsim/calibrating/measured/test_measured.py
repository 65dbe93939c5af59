from __future__ import annotations

import json
import math

import pytest

from ddpsim.calibrating.measured import MeasuredTable, parse_table, parse_tables
from ddpsim.common.errors import CalibrationError, InputError
from ddpsim.common.operation import Operation

NCCL_TESTS = """# nThread 1 nGpus 1 minBytes 8 maxBytes 67108864 step: 2(factor) warmup iters: 5 iters: 20
# Using devices
#  Rank  0 Group  0 Pid 5044 on node-a device  0 [0x07] NVIDIA A100-SXM4-40GB
#  Rank  1 Group  0 Pid 5045 on node-b device  0 [0x0f] NVIDIA A100-SXM4-40GB
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
           0             0     float     sum      -1    10.10    0.00    0.00      0    10.00    0.00    0.00      0
        1024           256     float     sum      -1    20.50    0.05    0.05      0    20.10    0.05    0.05      0
     1048576        262144     float     sum      -1    81.00   12.94   12.94      0    80.00   13.10   13.10      0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 6.5
"""
OLD_NCCL_TESTS = """#       size         count    type   redop     time   algbw  busbw  error  time  algbw  busbw  error
#        (B)    (elements)                     (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
        1024           256   float     sum    20.50    0.05    0.05  2e-07    20.10    0.05    0.05  1e-07
"""
CSV = """# ranks: 16 (ratio 1.875)
# nodes: 2
size_bytes,count,oop_time_us,ip_time_us
0,0,35.2,34
1024,256,,44.0
2048,512,50,49
2048,512,60,49
2048,512,52,49
"""


def table(text: str) -> MeasuredTable:
    return parse_table(text, "table")


def sizes_and_us(text: str) -> list[tuple[int, float]]:
    return [(row.size_bytes, pytest.approx(row.time_s * 1e6)) for row in table(text).rows]


def test_nccl_tests_text_of_either_age() -> None:
    found = table(NCCL_TESTS)
    assert sizes_and_us(NCCL_TESTS) == [(1024, 20.5), (1048576, 81.0)]
    assert (found.ranks, found.nodes) == (2, 2)
    assert found.notes == ("table: row 9: size 0 left out",)
    assert sizes_and_us(OLD_NCCL_TESTS) == [(1024, 20.5)]


def test_csv_takes_the_first_time_there_is_and_the_median_of_a_repeated_size() -> None:
    found = table(CSV)
    assert sizes_and_us(CSV) == [(1024, 44.0), (2048, 52.0)]
    assert (found.ranks, found.nodes) == (16, 2)
    assert found.notes == (
        "table: row 4: size 0 left out",
        "table: size 2048 stands in row 6, row 7, row 8; their median is taken",
    )


def test_nanoseconds_in_a_column_named_twice() -> None:
    text = "size(B),count,type,time(ns),busbw(GB/s),time(ns),busbw(GB/s)\n1048576,262144,float,70140,14.95,69870,15\n"
    assert sizes_and_us(text) == [(1048576, 70.14)]


def test_csv_with_a_remark_of_sizes_and_times() -> None:
    assert sizes_and_us("# size in bytes, time in us\nsize_bytes,time_us\n8,2\n") == [(8, 2.0)]
    assert sizes_and_us("\ufeffsize_bytes,time_us\n8,2\n") == [(8, 2.0)]


def test_json_of_nccl_tests_and_of_the_microbenchmark() -> None:
    results = [
        {"size": 8, "out_of_place": {"time": 12.5}, "in_place": {"time": 12.0}},
        {"size": 16, "out_of_place": None, "in_place": {"time": 13.0}},
    ]
    document = {"config": {"ranks": 2, "backend": "gloo"}, "results": results, "ddp": {"hook_s": 1e-6, "absent": None}}
    found = table(json.dumps(document))
    assert sizes_and_us(json.dumps(document)) == [(8, 12.5), (16, 13.0)]
    assert (found.ranks, found.header["backend"], found.ddp) == (2, "gloo", {"hook_s": 1e-6})


@pytest.mark.parametrize(
    ("text", "in_place_us"),
    [
        (NCCL_TESTS, [20.1, 80.0]),
        (OLD_NCCL_TESTS, [20.1]),
        ("size_bytes,oop_time_us,ip_time_us\n8,10,9\n16,12,\n", [9, None]),
        ("size_bytes,ip_time_us\n8,10\n", [None]),
        ("size(B),time(ns),time(ns)\n8,10000,9000\n", [9]),
        ('{"results": [{"size": 8, "out_of_place": {"time": 10}, "in_place": {"time": 9}}]}', [9]),
    ],
)
def test_the_other_time_of_a_row(text: str, in_place_us: list[float | None]) -> None:
    found = [row.in_place_s for row in table(text).rows]
    assert found == [us if us is None else pytest.approx(us * 1e-6) for us in in_place_us]


def test_a_row_whose_times_are_far_apart_was_disturbed() -> None:
    found = table("size_bytes,oop_time_us,ip_time_us\n8,600,90\n16,91,90\n32,90,600\n64,100,\n")
    assert [row.undisturbed_s * 1e6 for row in found.rows] == pytest.approx([90, 91, 90, 100])
    assert found.notes[0] == "table: row 2: 600 us out of place, 90 in place; fits take the lesser"
    assert found.repeatability == pytest.approx(math.log(600 / 90))
    assert table("size_bytes,time_us\n8,2\n").repeatability is None


BAD = {
    "no time column": ("size_bytes,count\n8,2\n", "table: row 1: no time column among size_bytes, count"),
    "another time unit": ("size_bytes,time_ms\n8,2\n", "table: row 1: no time column .* time_ms is in another unit"),
    "another size unit": ("size_kb,time_us\n8,2\n", "table: row 1: no size column .* size_kb is in another unit"),
    "a unit in a cell": ("size_bytes,time_us\n8,2ms\n", "table: row 2, column time_us: '2ms' is not a number"),
    "negative": ("size_bytes,time_us\n8,2\n16,-3\n", "table: row 3, column time_us: time '-3' is not positive"),
    "not a number": ("size_bytes,oop_time_us\n8,nan\n", "table: row 2, column oop_time_us: time 'nan' is not"),
    "zero time": ("size_bytes,time_us\n8,0\n", "table: row 2, column time_us: time '0' is not positive"),
    "fraction of a byte": ("size_bytes,time_us\n8.5,2\n", "table: row 2, column size_bytes: size '8.5'"),
    "infinite": ("size_bytes,time_us\n8,inf\n", "table: row 2, column time_us: time 'inf' is not positive"),
    "no time a collective takes": ("size_bytes,time_us\n8,1e-300\n", "table: row 2, column time_us: .* which no coll"),
    "no size there is": ("size_bytes,time_us\n1e40,3\n", "table: row 2, column size_bytes: size '1e40'"),
    "no ranks": ("# ranks: 0\nsize_bytes,time_us\n8,3\n", "table: ranks: 0 ranks; state at least one"),
    "fewer nodes than none": ("# nodes: -2\nsize_bytes,time_us\n8,3\n", "table: nodes: -2 nodes"),
    "semicolons": ("size_bytes;time_us\n8;3\n", "table: row 1: no size column among size_bytes;time_us"),
    "ragged": ("size_bytes,time_us\n8,2,3\n", "table: row 2: 3 cells under 2 columns"),
    "empty": ("", "table: no rows"),
    "header only": ("size_bytes,time_us\n", "table: no rows"),
    "text in ms": (OLD_NCCL_TESTS.replace("(us)", "(ms)"), r"table: row 2: units \(B\)"),
    "text, negative": (OLD_NCCL_TESTS.replace("20.50", "-20.5"), "table: row 3, column time: time '-20.5'"),
    "in place, negative": (
        "size_bytes,oop_time_us,ip_time_us\n8,2,-1\n",
        "row 2, column ip_time_us in place: time '-1'",
    ),
    "text, cut off": (OLD_NCCL_TESTS[:236], "table: row 3: 3 cells, time is number 5"),
    "not JSON": ('{"results": [', "table: not JSON"),
    "JSON without results": ("{}", "table: no `results`"),
    "JSON row without time": ('{"results": [{"size": 8}]}', "table: results.0: no out_of_place.time"),
    "JSON negative": (
        '{"results": [{"size": 8, "in_place": {"time": -1}}]}',
        "table: results.0.in_place.time: time -1 is not positive",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_tables_name_row_and_column(name: str) -> None:
    text, message = BAD[name]
    with pytest.raises(CalibrationError, match=message):
        table(text)


@pytest.mark.parametrize("digits", ["9" + "0" * 400, "0." + "0" * 400 + "1"])
def test_rates_of_hundreds_of_digits(digits: str) -> None:
    text = f"# ranks: 2\nsize_bytes,oop_time_us,oop_busbw_GBps\n1024,20.5,{digits}\n"
    assert table(text).ranks == 2


def test_a_csv_column_names_the_operation_of_each_row() -> None:
    text = "# ranks: 4\nop,size_bytes,time_us\nall_reduce,1024,9\nall_gather,1024,6\nall_reduce,4096,12\n"
    tables = {table.operation: table for table in parse_tables(text, "table")}
    assert [row.time_s for row in tables[Operation.ALLREDUCE].rows] == pytest.approx([9e-6, 12e-6])
    assert [row.time_s for row in tables[Operation.ALL_GATHER].rows] == pytest.approx([6e-6])


def test_a_csv_header_names_the_operation_of_all() -> None:
    text = "# operation: reduce_scatter\n# ranks: 4\nsize_bytes,time_us,algbw_GBps,busbw_GBps\n"
    table = parse_table(text + "1048576,58.3,17.99,13.5\n", "table")
    assert table.operation is Operation.REDUCE_SCATTER
    with pytest.raises(
        CalibrationError, match="as of allreduce on 4 ranks; give the table its ranks and its operation"
    ):
        parse_table(text.replace("reduce_scatter", "allreduce") + "1048576,58.3,17.99,13.5\n", "table")


def test_an_operation_that_is_none_is_named_with_its_row() -> None:
    with pytest.raises(InputError, match="table: row 2, column op: unknown operation 'gathr'"):
        parse_tables("op,size_bytes,time_us\ngathr,8,3\n", "table")
