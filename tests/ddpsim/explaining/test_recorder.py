"""Dumps of the flight recorder: who is behind, and pickles that would run something."""

import os
import pickle
import subprocess
import sys

import pytest

from ddpsim.common.errors import TraceError
from ddpsim.explaining.recorder import read_plain, read_recorder


def _entry(number, created_s, state="completed", name="nccl:all_reduce", sizes=((1024,),)):
    return {
        "collective_seq_id": number,
        "p2p_seq_id": 0,
        "op_id": number,
        "process_group": ("0", "default_pg"),
        "profiling_name": name,
        "time_created_ns": int(created_s * 1e9),
        "duration_ms": 1.5,
        "input_sizes": sizes,
        "state": state,
        "is_p2p": False,
        "frames": [{"name": "step", "filename": "train.py", "line": 7}],
    }


def _write(folder, rank, entries):
    (folder / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps({"version": "2.4", "entries": entries}))


def test_the_rank_that_enqueues_last_is_named(tmp_path):
    for rank in range(4):
        late_s = 0.012 if rank == 2 else 0.0002 * rank
        _write(tmp_path, rank, [_entry(n, n * 0.1 + late_s) for n in range(1, 9)])
    found = read_recorder(tmp_path)
    assert found.last is not None
    assert found.last[0] == 2
    assert found.last[1] == pytest.approx(0.0118, abs=3e-4)
    assert (found.behind, found.mismatches, found.collectives) == ((), (), 8)


def test_a_rank_that_never_comes_is_named(tmp_path):
    for rank in range(3):
        entries = [_entry(n, n * 0.1) for n in range(1, 5)]
        entries += [_entry(5, 0.5, state="started", sizes=((77,),))] if rank != 1 else []
        _write(tmp_path, rank, entries)
    (behind,) = read_recorder(tmp_path).behind
    assert (behind.rank, behind.last, behind.others) == (1, 4, 5)
    assert "77" in behind.waiting_in


def test_nobody_waits_in_a_collective_that_is_retired(tmp_path):
    for rank in range(2):
        over = {"state": "scheduled", "retired": True}  # what gloo leaves
        _write(tmp_path, rank, [_entry(n, n * 0.1) | over for n in range(1, 5 + rank)])
    assert read_recorder(tmp_path).behind == ()


_DUMPING = """
import os, sys
import torch, torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace
dist.init_process_group("gloo", init_method="file://" + sys.argv[1] + "/store", rank=0, world_size=1)
for _ in range(4):
    dist.all_reduce(torch.ones(77))
os.mkdir(sys.argv[1] + "/dumps")
open(sys.argv[1] + "/dumps/nccl_trace_rank_0", "wb").write(_dump_fr_trace())
"""


@pytest.mark.needs("wait")
def test_what_torch_itself_dumps_is_read(tmp_path):
    pytest.importorskip("torch")
    environment = {**os.environ, "TORCH_FR_BUFFER_SIZE": "100"}
    subprocess.run([sys.executable, "-c", _DUMPING, str(tmp_path)], env=environment, check=True, timeout=120)
    found = read_recorder(tmp_path / "dumps")
    assert (found.ranks, found.behind, found.mismatches) == ((0,), (), ())
    dumped = read_plain((tmp_path / "dumps" / "nccl_trace_rank_0").read_bytes(), "dump")
    assert isinstance(dumped, dict)
    assert [entry["input_sizes"] for entry in dumped["entries"]][:4] == [[[77]]] * 4


def test_ranks_that_call_different_things_are_named(tmp_path):
    for rank in range(3):
        name = "nccl:all_gather" if rank == 0 else "nccl:all_reduce"
        _write(tmp_path, rank, [_entry(1, 0.1, name=name)])
    (mismatch,) = read_recorder(tmp_path).mismatches
    assert (mismatch.rank, mismatch.number) == (0, 1)


class _Harm:
    def __reduce__(self):
        return os.mkdir, ("harmed",)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_that_would_run_something_is_refused(tmp_path, monkeypatch, protocol):
    monkeypatch.chdir(tmp_path)
    harmful = {"version": "2.4", "entries": [_Harm()]}
    (tmp_path / "nccl_trace_rank_0").write_bytes(pickle.dumps(harmful, protocol=protocol))
    with pytest.raises(TraceError, match="plain containers"):
        read_recorder(tmp_path)
    assert not (tmp_path / "harmed").exists()


@pytest.mark.parametrize(
    "raw",
    [
        b"cos\nsystem\n(S'touch harmed'\ntR.",
        b"\x80\x04\x8c\x02os\x94\x8c\x06system\x94\x93\x94.",
        b"\x80\x02\x82\x01.",
        b"\x80\x04Ppersistent\n.",
        b"",
        b"not a pickle",
        b"\x80\x04]q",
    ],
)
def test_whatever_is_no_plain_container_is_one_error(raw):
    with pytest.raises(TraceError, match="plain containers"):
        read_plain(raw, "dump")


def test_what_a_dump_holds_is_read_whole():
    plain = {"a": [1, 2.5, "x", b"y", None, True, (1, 2)], "b": {3, 4}}
    assert read_plain(pickle.dumps(plain), "dump") == plain


def test_a_folder_without_dumps_says_so(tmp_path):
    with pytest.raises(TraceError, match="holds no dump"):
        read_recorder(tmp_path)
    with pytest.raises(TraceError, match="no such folder"):
        read_recorder(tmp_path / "none")
