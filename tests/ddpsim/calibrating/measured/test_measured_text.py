"""nccl-tests' output in the shapes that its versions, launchers and people who paste it give it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddpsim.calibrating.measured import MeasuredTable, parse_table, parse_tables
from ddpsim.calibrating.samples import Sample
from ddpsim.common.errors import CalibrationError
from ddpsim.common.operation import Operation
from ddpsim.topology.spec import load_topology
from tests.profile import examples

RANKS = 16
TIMES_US = {1024 << 2 * k: 20 + (1024 << 2 * k) / 1e5 for k in range(9)}
TOP = ["# nThread 1 nGpus 1 minBytes 8 maxBytes 67108864 step: 2(factor) warmup iters: 5 iters: 20", "#"]
DEVICES = [
    f"#  Rank {rank:2d} Group  0 Pid {5000 + rank} on node-{rank // 8} device {rank % 8:2d} [0x07] NVIDIA A100"
    for rank in range(RANKS)
]
NEW = [
    "#                                                              out-of-place                       in-place",
    "#      size        count      type   redop    root     time   algbw   busbw #wrong    time   algbw   busbw #wrong",
    "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)",
]
OLD = [
    "#       size         count    type   redop     time   algbw  busbw  error     time  algbw  busbw  error",
    "#        (B)    (elements)                     (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)",
]
FIRST = ["#      bytes             N    type      op     time  algbw  busbw      res     time  algbw  busbw      res"]
PER_ITERATION = [
    NEW[1].replace("#wrong", "#wrong i_min i_max i_p99 i_cv%"),
    NEW[2].replace("(us)  (GB/s)  (GB/s)", "(us)  (GB/s)  (GB/s)  (us)  (us)  (us)  (%)"),
]
BOTTOM = ["# Out of bounds values : 0 OK", "# Avg bus bandwidth    : 57.2 ", "#", ""]


def body(
    root: str = "-1",
    wrong: str = "0",
    more: str = "",
    unit_us: float = 1.0,
    redop: str = "sum",
    place: str = "both",
    operation: Operation = Operation.ALLREDUCE,
) -> list[str]:
    rows = []
    for size, time_us in TIMES_US.items():
        rate = size / time_us / 1e3
        figures = f"{time_us / unit_us:7.3f} {rate:7.2f} {rate * operation.sent(RANKS):7.2f}"
        out = f"{figures} {wrong:>6} {more}" if place == "both" else " " * 32
        rows.append(f"{size:12d}  {size // 4:12d}     float  {redop:>6}  {root:>6} {out} {figures}    N/A {more}")
    return rows


def prefixed(prefix: str) -> list[str]:
    return [prefix + line for line in [*TOP, *DEVICES, *NEW, *body(), *BOTTOM]]


WARNING = "Warning: Permanently added 'worker-1.svc,10.11.5.31' (ECDSA) to the list of known hosts."
INFO = "node-0:21:27 [0] NCCL INFO Setting affinity for GPU 0 to ff,ffff0000,00ffffff"
SHAPES: dict[str, list[str]] = {
    "with root": [*TOP, *DEVICES, *NEW, *body(), *BOTTOM],
    "without root": [*TOP, *DEVICES, *OLD, *body(root=""), *BOTTOM],
    "of its first version, in ms": [*FIRST, *body(root="", unit_us=1000)],
    "unchecked": [*TOP, *DEVICES, *NEW, *body(wrong="N/A"), *BOTTOM],
    "in place only": [*TOP, *DEVICES, *NEW, *body(place="in"), *BOTTOM],
    "each iteration reported": [*TOP, *DEVICES, *PER_ITERATION, *body(more="1.0 2.0 3.0 4.0"), *BOTTOM],
    "with time stamps": [NEW[1] + " timestamp", *(row + "  2026-01-01 10:00:00" for row in body())],
    "in place only, with time stamps": [NEW[1] + " timestamp", *(row + " 2026 10:00" for row in body(place="in"))],
    "header without #": [line.lstrip("#") for line in NEW] + body(),
    "old header without #": [line.lstrip("#") for line in OLD] + body(root=""),
    "rows alone": body(),
    "old rows alone": body(root=""),
    "mpirun --tag-output": [WARNING, *prefixed("[1,0]<stdout>:"), "[1,1]<stdout>:" + INFO],
    "mpirun --timestamp-output": prefixed("Wed Jan 10 12:00:00 2024[1,0]<stdout>:"),
    "prterun --tag-output": prefixed("[prterun-host-1234@1,0]<stdout>: "),
    "indented in a page": prefixed("    [1,0]<stdout>:"),
    "srun --label": prefixed(" 0: "),
    "pdsh": prefixed("worker-0: "),
    "kubectl logs --timestamps": prefixed("2024-05-01T12:00:00.123456789Z "),
    "between a launcher's lines": ["-" * 74, WARNING, "-" * 74, *TOP, *DEVICES, INFO, *NEW, INFO, *body(), "..."],
    "Windows line ends": [line + "\r" for line in [*TOP, *DEVICES, *NEW, *body(), *BOTTOM]],
    "another collective before it": [
        "# Collective test starting: hypercube_perf", *NEW, *body(unit_us=0.5, redop="none"),
        "# Collective test starting: all_reduce_perf", *TOP, *DEVICES, *NEW, *body(),
    ],
}  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
def test_sizes_times_and_ranks_of_every_shape(shape: str) -> None:
    found = parse_table("\n".join(SHAPES[shape]) + "\n", "log")
    times = {row.size_bytes: row.time_s * 1e6 for row in found.rows}
    assert times == pytest.approx(TIMES_US, rel=1e-3, abs=0.5)
    others = [] if "in place only" in shape else list(TIMES_US.values())
    assert [row.in_place_s * 1e6 for row in found.rows if row.in_place_s] == pytest.approx(others, rel=1e-3, abs=0.5)
    assert found.ranks == RANKS
    stated = any("Rank" in line for line in SHAPES[shape])
    assert found.nodes == (2 if stated else None)
    assert bool(found.notes) != stated


def test_a_log_says_which_nccl_ran_and_how_many_gpus_a_process_had() -> None:
    def sample(*lines: str) -> Sample:
        table = parse_table("\n".join([*lines, *DEVICES, *NEW, *body()]), "log")
        return Sample.of(table, load_topology("dgx-a100"))

    found = sample("# nThread 1 nGpus 8 minBytes 8", "NCCL version 2.12.7+cuda11.4")
    assert (found.version, found.version_known, found.gpus_per_process) == (2012, True, 8)
    assert sample("# nccl-tests version 2.18.0 nccl-headers=22907 nccl-library=21805").version == 2018
    assert sample("node-0:1:1 [0] NCCL INFO NCCL_ALGO set by environment to Tree.").algorithm == "tree"
    plain = sample("# nThread 1 nGpus 1 minBytes 8")
    assert (plain.version_known, plain.gpus_per_process, plain.algorithm) == (False, 1, "auto")
    digits = "9" * 5000
    odd = sample(
        f"# nThread 1 nGpus {digits} minBytes 8", f"NCCL version {digits}.{digits}", f"#  Rank {digits} Group 0"
    )
    assert (odd.version_known, odd.gpus_per_process) == (False, 1)


def document(processes: int = RANKS, gpus: int = 1, **more: object) -> dict[str, object]:
    """Return what nccl-tests 2.18 writes with `-J`."""
    devices = [
        {"rank": gpus * n, "group": 0, "pid": 5000 + n, "hostname": f"node-{gpus * n // 8}", "device": 0}
        for n in range(processes)
    ]
    results = []
    for size, time_us in TIMES_US.items():
        rate = round(size / time_us / 1e3, 6)
        figures = {"time": time_us, "alg_bw": rate, "bus_bw": round(rate * 1.875, 6), "nwrong": None}
        shape = {"size": size, "count": size // 4, "type": "float", "redop": "sum", "root": "    -1"}
        results.append(
            {**shape, "out_of_place": figures, "in_place": figures, "actual_iterations": 20, "experiment_name": ""}
        )
    return {
        "version": 2, "start_time": "2026-01-01 10:00:00", "args": ["./build/all_reduce_perf", "-J", "o.json"],
        "env": ["HOME=/root", "NCCL_ALGO=Ring"], "nccl_version": 22907,
        "config": {
            "nthreads": 1, "ngpus": gpus, "minimum_bytes": 8, "maximum_bytes": 67108864, "step_factor": 2,
            "graph": 0, "blocking_collectives": "false", "parallel_init": "false", "devices": devices,
        },
        "results": results, "out_of_bounds": {"count": 0, "okay": "true"},
        "average_bus_bandwidth": {"bandwidth": 57.2, "okay": "unchecked"}, "errors": [], **more,
    }  # fmt: skip


@pytest.mark.parametrize(("processes", "gpus"), [(RANKS, 1), (RANKS // 8, 8)])
def test_json_of_nccl_tests_states_ranks_nodes_version_and_algorithm(processes: int, gpus: int) -> None:
    found = parse_table(json.dumps(document(processes, gpus)), "o.json")
    assert {row.size_bytes: row.time_s * 1e6 for row in found.rows} == pytest.approx(TIMES_US)
    assert (found.ranks, found.nodes, found.isolated) == (RANKS, 2, False)
    sample = Sample.of(found, load_topology("dgx-a100"))
    assert (sample.version, sample.algorithm, sample.gpus_per_process) == (2029, "ring", gpus)
    old = Sample.of(parse_table(json.dumps(document(nccl_version=2804, env=[])), "o.json"), load_topology("dgx-a100"))
    assert (old.version, old.algorithm) == (2008, "auto")


def test_ranks_that_nothing_states_are_read_off_the_rates_or_guessed_with_a_note() -> None:
    def found(cells: str) -> MeasuredTable:
        return parse_table(f"size(B),time(ns),busbw(GB/s)\n{cells}", "t.csv")

    assert [found(f"1048576,70140,{busbw}\n").ranks for busbw in ("14.95", "22.42", "26.16")] == [2, 4, 8]
    assert "2 from the ratio of busbw and algbw" in found("1048576,70140,14.95\n").notes[0]
    nothing = parse_table("size_bytes,time_us\n1048576,70\n", "t.csv")
    assert nothing.ranks is None
    assert "every GPU" in nothing.notes[0]


def bad_json(change: Callable[[dict[str, object]], None]) -> str:
    whole = document()
    for row in whole["results"]:  # type: ignore[attr-defined]
        change(row)
    return json.dumps(whole)


BAD = {
    "a row in ms": (
        [*TOP, *DEVICES, *NEW, *body()[:5], *body(unit_us=1000)[5:]],
        r"log: row 27, column algbw: 34.* GB/s, but 1048576 B in 0\.030 is .*same unit",
    ),
    "time of the processor": (
        [line.replace("  time", "cputime") for line in NEW] + body(),
        r"log: row 2, column cputime: a processor's time",
    ),
    "another collective": (
        ["# Collective test starting: hypercube_perf", *NEW, *body()],
        "log: row 1: hypercube_perf names no operation that is modelled; name it in the header",
    ),
    "an operation that reduces nothing": ([*NEW, *body(redop="none")], "log: row 4, column redop: none names no"),
    "rates of other ranks": (
        [*TOP, *DEVICES[:8], *NEW, *body()],
        r"log: row 15, column busbw: .* GB/s is not 1\.75 times size over time, as of allreduce on 8 ranks",
    ),
    "several groups": ([*DEVICES[:8], DEVICES[8].replace("Group  0", "Group  1"), *NEW, *body()], "2 groups at once"),
    "a row cut off": ([*NEW, *body(), body()[0][:40]], "log: row 13: 3 cells, time is number 6"),
    "JSON of the processor's time": (
        [bad_json(lambda row: row.update(out_of_place={"cpu_time": 3.0}))],
        r"log: results\.0\.out_of_place\.cpu_time: a processor's time",
    ),
    "JSON, time that is no number": (
        [bad_json(lambda row: row.update(out_of_place={"time": "nan"}))],
        r"log: results\.0\.out_of_place\.time: time 'nan' is not positive",
    ),
    "JSON, truth as a size": (
        [bad_json(lambda row: row.update(size=True))],
        r"log: results\.0\.size: True is not a number of bytes",
    ),
    "JSON of another collective": (
        [json.dumps(document(args=["build/hypercube_perf"]))],
        r"log: args\.0: hypercube_perf names no operation",
    ),
    "CSV with a row in ms": (
        ["size_bytes,oop_time_us,oop_algbw_GBps", "1048576,70,14.98", "2097152,0.14,14.98"],
        "log: row 3, column oop_algbw_GBps: 14.98 GB/s, but 2097152 B in 0.14 is",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_what_contradicts_itself_or_is_no_allreduce_names_row_and_column(name: str) -> None:
    lines, message = BAD[name]
    with pytest.raises(CalibrationError, match=message):
        parse_table("\n".join(lines), "log")


ODD = st.sampled_from(
    ["", "-", "nan", "inf", "-1", "0", "1e999", "9" * 400, "abc", "#", "[1,0]<stdout>:", ",", "\x00", "{"]
)


@given(st.sampled_from(sorted(SHAPES)), st.lists(st.tuples(st.integers(0, 999), ODD), min_size=1, max_size=4))
@settings(max_examples=examples(200), deadline=None)
def test_odd_words_are_refused_or_leave_rows_that_are_some(shape: str, changes: list[tuple[int, str]]) -> None:
    text = "\n".join(SHAPES[shape])
    for number, odd in changes:
        words = list(re.finditer(r"\S+", text))
        word = words[number % len(words)]
        text = text[: word.start()] + odd + text[word.end() :]
    try:
        found = parse_table(text, "log")
    except CalibrationError:
        return
    assert found.rows
    assert all(row.size_bytes > 0 and 0 < row.time_s < 1e6 for row in found.rows)


def test_a_size_of_nothing_with_a_rate_is_left_out() -> None:
    cells = "0,70,26.2\n1048576,70,26.2\n"
    assert parse_table(f"# ranks: 8\nsize_bytes,time_us,busbw_GBps\n{cells}", "t").notes == (
        "t: row 3: size 0 left out",
    )


@pytest.mark.parametrize("program", ["all_gather_perf", "build/reduce_scatter_perf", "sendrecv_perf", "broadcast_perf"])
def test_a_log_names_its_operation(program: str) -> None:
    name = program.rpartition("/")[2]
    operation = Operation.named(name.removesuffix("_perf"))
    lines = [f"# Collective test starting: {name}", *NEW, *body(redop="none", operation=operation)]
    assert parse_table("\n".join(lines), "log").operation is operation


def test_a_log_of_several_operations_is_a_table_each() -> None:
    gather = body(redop="none", operation=Operation.ALL_GATHER)
    lines = [
        "# Collective test starting: all_gather_perf", *NEW, *gather,
        "# Collective test starting: all_reduce_perf", *NEW, *body(),
    ]  # fmt: skip
    tables = parse_tables("\n".join(lines), "log")
    assert [table.operation for table in tables] == [Operation.ALL_GATHER, Operation.ALLREDUCE]
    assert [table.ranks for table in tables] == [RANKS, RANKS]
    assert parse_table("\n".join(lines), "log").operation is Operation.ALLREDUCE


def test_a_row_with_a_root_is_rooted() -> None:
    for redop, operation in (("sum", Operation.REDUCE), ("none", Operation.BROADCAST)):
        lines = [*NEW, *body(root="0", redop=redop, operation=operation)]
        assert parse_table("\n".join(lines), "log").operation is operation


def test_a_document_names_its_operation() -> None:
    config = {"operation": "all_gather", "nranks": 2}
    rows = [{"size": 1024, "redop": "none", "out_of_place": {"time": 10.0, "alg_bw": 0.1024, "bus_bw": 0.0512}}]
    table = parse_table(json.dumps({"config": config, "results": rows}), "log")
    assert (table.operation, table.ranks) == (Operation.ALL_GATHER, 2)
