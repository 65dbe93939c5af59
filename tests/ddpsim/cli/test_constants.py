"""`ddpsim constants`, and `--set` on the commands that predict."""

from __future__ import annotations

import pytest

PREDICT = "predict --workload resnet50@v100-fp32-b32 --topology dgx-1v --nodes 2 --json"


def test_constants_lists_every_one_with_its_doubt(ddpsim):
    rows = ddpsim("constants", "--json").document["rows"]
    assert {row["name"].partition(".")[0] for row in rows} == {"nccl", "gloo", "rccl", "mpi"}
    assert {tuple(row) for row in rows} == {("name", "value", "unit", "source", "prior", "low", "high")}
    assert all(row["prior"] and row["source"] for row in rows)
    [row] = [row for row in rows if row["name"] == "nccl.ddp.hook_s"]
    assert row["low"] < row["value"] < row["high"]


def test_what_is_set_is_listed_and_nothing_else_changes(ddpsim):
    before = ddpsim("constants", "--backend", "nccl", "--json").document["rows"]
    after = ddpsim("constants", "--backend", "nccl", "--set", "nccl.ddp.hook_s=7us", "--json").document["rows"]
    changed = [now for was, now in zip(before, after, strict=True) if was != now]
    assert [(row["name"], row["value"], row["prior"], row["source"]) for row in changed] == [
        ("nccl.ddp.hook_s", 7e-6, False, "given")
    ]


@pytest.mark.parametrize("command", [PREDICT, PREDICT.replace("predict", "plan"), PREDICT.replace("predict", "sweep")])
def test_every_predicting_command_takes_what_is_set(ddpsim, command):
    def seconds(line):
        found = ddpsim(*line.split()).document
        return found["rows"][0]["iteration_s"] if "rows" in found else found["iteration_s"]

    assert seconds(f"{command} --set nccl.ddp.compute_slowdown=1.5") > seconds(command)


def test_set_moves_the_allreduce_that_it_names(ddpsim):
    line = "allreduce --topology dgx-1v -b 64M -e 64M --json"
    constants = {row["name"]: row["value"] for row in ddpsim("constants", "--json").document["rows"]}
    same = f"{line} --set nccl.efficiency.nvlink.simple={constants['nccl.efficiency.nvlink.simple']}"
    slow = f"{line} --set nccl.efficiency.nvlink.simple=0.5 --set nccl.efficiency.nvlink.ll128=0.3"
    one, two, three = (ddpsim(*each.split()).document["rows"][0] for each in (line, same, slow))
    assert one == two
    assert three["time_us"] > one["time_us"]
    assert one["time_low_us"] < one["time_us"] < one["time_high_us"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("nccl.ddp.hooks_s=1us", "did you mean nccl.ddp.hook_s"),
        ("nccl.ddp.hook_s", "write NAME=VALUE"),
        ("nccl.ddp.hook_s=5e-6", "has no unit"),
        ("nccl.channel.ll=20us", "nccl.channel.ll"),
        ("nccl.ddp.compute_slowdown=fast", "out of range or no number"),
        ("nccl.ddp.compute_slowdown=-1", "out of range or no number"),
        ("nccl.ddp.compute_slowdown=0.2", "'0.2' is below 1, which is no slow-down"),
        ("nccl.nic.lone=5", "'5' is more than all of what it is a share of; give at most 1"),
        ("gloo.step_s=1us", "is of gloo, the process group is nccl"),
        ("nccl.ddp.hook_s=1us --set nccl.ddp.hook_s=2us", "given twice"),
    ],
)
def test_what_cannot_be_set_is_one_message(ddpsim, given, expected):
    ddpsim(*PREDICT.split(), *f"--set {given}".split()).refused("--set", expected)
