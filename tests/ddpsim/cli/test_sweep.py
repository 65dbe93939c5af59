"""`sweep`, `plan` and `compare` with workers: the same bytes whoever computes, and one message for what is wrong."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import pytest

from ddpsim.planning.sweep import sweep
from ddpsim.prediction.document import flat
from ddpsim.simulation.engine import simulate_local
from ddpsim.topology.spec import load_topology
from ddpsim.workload.files import load_workload

SWEEP = ("sweep", "--topology", "dgx-1v", "--nodes", "1,2", "--bucket-cap-mb", "1,2,5")
COMPARE = ("compare", *SWEEP[1:], "--advice", "--price", "dgx-1v=9EUR/h")
PLAN = ("plan", "--topology", "dgx-1v", "--topology", "p3.16xlarge", "--nodes", "1,2", "--bucket-cap-mb", "1")


@pytest.fixture
def scheduler() -> Iterator[str]:
    """Yield the address of a Dask cluster of two processes on this machine."""
    distributed = pytest.importorskip("distributed")
    # Dask sets variables for the processes that it starts, and leaves them.
    with (
        mock.patch.dict(os.environ),
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
    ):
        yield cluster.scheduler_address


@pytest.mark.parametrize("words", [SWEEP, PLAN], ids=["sweep", "plan"])
def test_the_bytes_are_the_same_for_any_number_of_workers(
    ddpsim: Callable, tiny: Path, tmp_path: Path, words: tuple[str, ...]
) -> None:
    seen = set()
    for count in (1, 2, 3):
        out = tmp_path / f"{count}.json"
        result = ddpsim(*words, "--workload", tiny, "--json", "--workers", count, "-o", out)
        seen.add((result.out, out.read_bytes()))
    assert len(seen) == 1


@pytest.mark.needs("wait")
def test_a_cluster_gives_the_same_bytes(ddpsim: Callable, tiny: Path, scheduler: str) -> None:
    for words in (SWEEP, PLAN, COMPARE):
        here = ddpsim(*words, "--workload", tiny, "--json", "--workers", 1)
        there = ddpsim(*words, "--workload", tiny, "--json", "--scheduler", scheduler)
        assert there.code == 0
        assert (there.out, there.err) == (here.out, here.err)


@pytest.mark.parametrize("words", [SWEEP, PLAN, COMPARE], ids=["sweep", "plan", "compare"])
def test_workers_that_cannot_be_are_refused(ddpsim: Callable, tiny: Path, words: tuple[str, ...]) -> None:
    for count in (0, -1, 10**6):
        ddpsim(*words, "--workload", tiny, "--workers", count).refused("--workers", str(count))
    ddpsim(*words, "--workload", tiny, "--workers", "2", "--scheduler", "x").refused("--workers and --scheduler")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        for wrong in (address, "nonsense", ""):
            refused = ddpsim(*words, "--workload", tiny, "--scheduler", wrong)
            refused.refused(f"--scheduler: no Dask scheduler answers at '{wrong}'", "start one")


def test_records_of_a_sweep_are_rows_of_its_file(ddpsim: Callable, tiny: Path, tmp_path: Path) -> None:
    from ddpsim import BucketCaps

    out = tmp_path / "rows.jsonl"
    ddpsim(*SWEEP, "--workload", tiny, "-o", out)
    caps = [BucketCaps(bucket_cap_mb=cap) for cap in (1, 2, 5)]
    found = sweep(load_workload(tiny), load_topology("dgx-1v"), nodes=[1, 2], caps=caps)
    assert repr(found) == "<Sweep: 6 predictions to come>"
    first = next(found)
    assert repr(found) == "<Sweep: 5 predictions to come>"
    rows = [flat(json.loads(line)) for line in out.read_text().splitlines()]
    assert first.iteration_s == rows[0]["iteration_s"]
    assert json.loads(json.dumps(found.records())) == rows[1:]


def test_what_is_asked_for_twice_is_one_row(ddpsim: Callable, tiny: Path, tmp_path: Path) -> None:
    out = tmp_path / "rows.jsonl"
    asked = "--nodes", "2,2,1", "--bucket-cap-mb", "5,25,5"
    ddpsim("sweep", "--topology", "dgx-1v", "--workload", tiny, "-o", out, *asked)
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["nodes"] for row in rows] == [2, 2, 1, 1]


def test_a_table_is_the_same_whether_more_than_it_shows_was_computed(
    ddpsim: Callable, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = (*SWEEP, "--workload", tiny, "--workers", 1)
    whole = ddpsim(*words, "-o", tmp_path / "points.jsonl").out
    monkeypatch.setattr("ddpsim.planning.sweep.bound_of", lambda *_: pytest.fail("what binds is not shown"))
    monkeypatch.setattr("ddpsim.prediction.prediction.paths_taken", lambda *_: pytest.fail("nor are transports"))
    assert ddpsim(*words).out == whole


def test_a_rank_without_ddp_is_simulated_once_for_all_caps_and_nodes(
    ddpsim: Callable, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ddpsim.prediction.predict.simulate_local", counted := mock.Mock(wraps=simulate_local))
    rows = ddpsim(*SWEEP, "--workload", tiny, "--workers", 1, "--json").document["rows"]
    assert len(rows) == 6
    assert counted.call_count == 1
    assert len({row["local_s"] for row in rows}) == 1
