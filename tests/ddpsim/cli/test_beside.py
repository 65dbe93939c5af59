"""`--beside JOB.yaml`: another job on the same fabric, of `predict`, `plan` and `compare`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

FABRIC = """
name: fabric
node: {gpus: {count: 1, model: V100}, nics: [{kind: infiniband, rate: 100Gb/s}]}
nodes: 4
fabric: {kind: two-level, nodes_per_leaf: 2, trunk: 5Gb/s}
"""


@pytest.fixture
def where(tmp_path: Path, tiny: Path) -> tuple[object, ...]:
    (tmp_path / "fabric.yaml").write_text(FABRIC)
    return "--workload", tiny, "--topology", tmp_path / "fabric.yaml", "--nodes", "2"


def job(folder: Path, text: str) -> Path:
    path = folder / "job.yaml"
    path.write_text(text)
    return path


def test_three_commands_take_another_job(ddpsim: Callable, where: tuple, tiny: Path, tmp_path: Path) -> None:
    path = job(tmp_path, f"workload: {tiny}\nnodes: 2\nplacement: alternate\nbucket_cap_mb: 1\noverlap: on\n")
    found = ddpsim("predict", *where, "--beside", path, "--json").document
    beside = found["beside"]
    assert (beside["workload"], beside["nodes"]) == ("tiny", [1, 3])
    assert beside["alone_step_s"] < found["step_s"] <= found["iteration_high_s"]
    assert "phase of the job beside" in [doubt["name"] for doubt in found["doubts"]]
    [row] = ddpsim("compare", *where, "--beside", path, "--json").document["rows"]
    assert row["step_s"] == pytest.approx(found["step_s"], rel=1e-9)
    planned = ddpsim("plan", *where, "--bucket-cap-mb", "1,25", "--beside", path, "--json").document["rows"]
    assert min(each["iteration_s"] for each in planned) > beside["alone_step_s"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nodes: 2\n", "the key is missing"),
        ("workload: resnet50\nnodes: 0\n", "0 is no number of nodes"),
        ("workload: resnet50\nnodes: [2, 2]\n", "[2, 2] is no number of nodes"),
        ("workload: resnet50\nnodes: [2]\nplacement: alternate\n", "keep one"),
        ("workload: resnet50\nnodes: 2\ncolour: red\n", "unknown key 'colour'"),
        ("workload: resnet51\nnodes: 2\n", "unknown workload 'resnet51'"),
        ("workload: resnet50\nnodes: 2\nscheme: nothing\n", "unknown scheme 'nothing'"),
        ("workload: resnet50\nnodes: 2\nbucket_cap_mb: 1\nbucket_cap_mb_list: [1]\n", "are both given"),
        ("workload: resnet50\nnodes: [0]\n", "node 0 of them is the other's"),
        ("workload: resnet50\nnodes: 2\ngpus_per_node: 8\n", "8 ranks a node asked for"),
        ("workload: resnet50\nnodes: 2\nbackend: rccl\n", "RCCL needs AMD's GPUs"),
        ("- 1\n", "a mapping was expected"),
        ("workload: [\n", "malformed YAML"),
    ],
)
def test_a_job_that_cannot_be_is_one_message(
    ddpsim: Callable, where: tuple, tmp_path: Path, text: str, said: str
) -> None:
    ddpsim("predict", *where, "--beside", job(tmp_path, text)).refused(said)


def test_a_file_that_is_not_there_is_one_message(ddpsim: Callable, where: tuple, tmp_path: Path) -> None:
    for command in ("predict", "plan", "compare"):
        ddpsim(command, *where, "--beside", tmp_path / "none.yaml").refused("none.yaml")
    ddpsim("compare", *where, "--beside", tmp_path).refused("is a folder")
