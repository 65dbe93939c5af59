"""The files of `examples/cluster`, run against stand-ins for Slurm's commands and for torchrun."""

from __future__ import annotations

import os
import re
import stat
import subprocess
from pathlib import Path

import pytest

from ddpsim.trace.json import read_trace, write_rank, write_run
from tests.traces import example_trace

HERE = Path(__file__).parents[2] / "examples" / "cluster"

SRUN = """#!/usr/bin/env bash
# Runs a command once a node, each in its own process, as srun does; the worst exit code is its own.
options=()
while [[ $1 == --* ]]; do options+=("$1"); shift; done
echo "${options[*]} $*" >> "$LOG/srun"
pids=()
for ((node = 0; node < SLURM_NNODES; node++)); do
    SLURM_NODEID=$node SLURM_PROCID=$node "$@" & pids+=($!)
done
worst=0
for pid in "${pids[@]}"; do wait "$pid" || { code=$?; ((code > worst)) && worst=$code; }; done
exit "$worst"
"""
SCONTROL = """#!/usr/bin/env bash
[[ $1 == show && $2 == hostnames && $3 == 'node[07-08]' ]] && printf 'node07\\nnode08\\n'
"""
TORCHRUN = """#!/usr/bin/env bash
echo "$*" > "$LOG/torchrun.$SLURM_NODEID"
mkdir -p "${TRACE:-$LOG}" && cp "$LOG/rank$SLURM_NODEID.json.gz" "${TRACE:-$LOG}" 2>/dev/null
[[ $SLURM_NODEID == "${LOST:-}" ]] && exit 7
exit 0
"""


@pytest.fixture
def cluster(tmp_path: Path) -> dict[str, str]:
    """The environment of a batch script on two nodes."""
    binaries, log = tmp_path / "bin", tmp_path / "log"
    binaries.mkdir()
    log.mkdir()
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL), ("torchrun", TORCHRUN)):
        (binaries / name).write_text(text)
        (binaries / name).chmod(stat.S_IRWXU)
    slurm = {"SLURM_NNODES": "2", "SLURM_JOB_ID": "42", "SLURM_JOB_NODELIST": "node[07-08]"}
    here = {"SLURM_SUBMIT_DIR": str(HERE.parents[1]), "OUT": str(tmp_path / "out"), "LOG": str(log), "RANKS": "4"}
    return {**os.environ, **slurm, **here, "PATH": f"{binaries}:{os.environ['PATH']}"}


def batch(name: str, cluster: dict[str, str], *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    command = ["bash", str(HERE / name), *words]
    return subprocess.run(command, env={**cluster, **more}, capture_output=True, text=True, timeout=60, check=False)


def started(cluster: dict[str, str]) -> list[str]:
    """Return what torchrun was given on each node."""
    return [(Path(cluster["LOG"]) / f"torchrun.{node}").read_text().strip() for node in range(2)]


def test_every_node_joins_the_same_meeting(cluster: dict[str, str]) -> None:
    assert batch("measure.sbatch", cluster, "-b", "4K").returncode == 0
    common = "--nproc-per-node 4 --master-addr node07 --master-port 29500 -m ddpexec microbench"
    out = f"-o {cluster['OUT']}/allreduce.json -b 4K"
    assert started(cluster) == [f"--nnodes 2 --node-rank {node} {common} {out}" for node in range(2)]


def test_the_traces_of_all_nodes_come_to_one_folder(cluster: dict[str, str], tmp_path: Path) -> None:
    # Both nodes see one local folder, and copy the same files at the same time; run.json is the first's.
    trace = example_trace(2)
    for rank in range(2):
        write_rank(trace, rank, cluster["LOG"])
    done = batch("train.sbatch", cluster, "train.py", "--epochs", "1", TRACE=str(tmp_path / "local"))
    assert (done.returncode, done.stderr) == (0, "")
    assert started(cluster)[1].endswith("--master-port 29500 train.py --epochs 1")
    write_run(trace, f"{cluster['OUT']}/trace")
    assert read_trace(f"{cluster['OUT']}/trace").iterations == trace.iterations


def test_nodes_that_see_one_folder_gather_it_at_the_same_time(tmp_path: Path) -> None:
    local, out = tmp_path / "local", tmp_path / "out"
    (local / "deep").mkdir(parents=True)
    out.mkdir()
    names = ["run.json", "deep/rank0.json", *(f"rank{number}.json" for number in range(40))]
    for name in names:
        (local / name).write_text(name * 1000)
    command = ["bash", str(HERE / "gather.sh"), str(local), str(out)]
    nodes = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(4)]
    assert [(node.communicate()[1], node.returncode) for node in nodes] == [("", 0)] * 4
    assert sorted(str(path.relative_to(out)) for path in out.rglob("*.json*")) == sorted(names)
    assert all((out / name).read_text() == name * 1000 for name in names)


def test_a_folder_that_all_nodes_see_is_not_copied_onto_itself(cluster: dict[str, str]) -> None:
    write_rank(example_trace(2), 0, cluster["LOG"])
    done = batch("train.sbatch", cluster, "train.py", TRACE=f"{cluster['OUT']}/trace")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_lost_node_fails_the_job_and_leaves_its_traces(cluster: dict[str, str], tmp_path: Path) -> None:
    write_rank(example_trace(2), 0, cluster["LOG"])
    done = batch("train.sbatch", cluster, "train.py", LOST="1", TRACE=str(tmp_path / "local"))
    assert done.returncode == 7
    assert read_trace(f"{cluster['OUT']}/trace").ranks == [0]
    assert batch("measure.sbatch", cluster, LOST="0").returncode == 7


def test_srun_ends_all_nodes_when_one_fails(cluster: dict[str, str]) -> None:
    for name in ("measure.sbatch", "train.sbatch"):
        batch(name, cluster, "train.py")
    lines = (Path(cluster["LOG"]) / "srun").read_text().splitlines()
    starting = [line for line in lines if "node.sh" in line]
    assert len(starting) == 2
    assert all("--ntasks-per-node=1 --kill-on-bad-exit=1" in line for line in starting)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"SLURM_NNODES": ""}, "NODES='' is no number of nodes"),
        ({"NODES": "two"}, "NODES='two' is no number of nodes"),
        ({"NODE": "-1"}, "NODE='-1' is no number of a node"),
        ({"NODE": "2"}, "NODE=2, but there are 2 nodes, numbered from 0"),
        ({"HEAD": ""}, "HEAD is not set"),
    ],
)
def test_a_node_that_is_told_too_little_says_so(cluster: dict[str, str], given: dict[str, str], said: str) -> None:
    done = batch("node.sh", {**cluster, "NODE": "0", "HEAD": "node07"}, "train.py", **given)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: node.sh: {said}")
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


def test_nothing_to_run_and_no_trace_are_one_message(cluster: dict[str, str], tmp_path: Path) -> None:
    nothing = batch("node.sh", {**cluster, "NODE": "0", "HEAD": "node07"})
    missing = batch("gather.sh", cluster, str(tmp_path / "none"), str(tmp_path))
    for done, said in ((nothing, "nothing to run"), (missing, "none of its ranks wrote a trace")):
        assert done.returncode == 2
        assert said in done.stderr
        assert done.stderr.count("\n") == 1


def test_slurm_reads_the_options_of_both(cluster: dict[str, str]) -> None:
    for name in ("measure.sbatch", "train.sbatch"):
        text = (HERE / name).read_text()
        options = re.findall(r"^#SBATCH (--\S+)$", text, re.MULTILINE)
        assert {"--nodes=2", "--ntasks-per-node=1"} <= set(options)
        # Slurm stops reading at the first line that is neither comment nor blank.
        assert text.rindex("#SBATCH") < text.index("set -euo")
