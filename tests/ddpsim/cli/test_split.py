"""`ddpsim workload split`, and what commands say of ranks of several devices."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

PLACED = ("--topology", "dgx-a100", "--nodes", "1")


@pytest.fixture
def on_two(ddpsim: Callable, tmp_path: Path) -> Path:
    file = tmp_path / "on-two.json"
    ddpsim("workload", "split", "resnet50@a100-amp-b32", "--at", "layer3", "-o", file)
    return file


def test_it_writes_a_workload_that_is_predicted_on_half_as_many_ranks(ddpsim: Callable, on_two: Path) -> None:
    one, two = (
        ddpsim("predict", "--workload", each, *PLACED, "--json").document for each in ("resnet50@a100-amp-b32", on_two)
    )
    assert (one["world_size"], two["world_size"]) == (8, 4)
    assert two["iteration_low_s"] < two["iteration_s"] < two["iteration_high_s"]
    assert two["memory"]["parameters_bytes"] < one["memory"]["parameters_bytes"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("resnet50", "--devices", "1"), "--devices: 1 devices; give 2 or more"),
        (("resnet50", "--at", "palm"), "--at: no parameter is below 'palm'"),
        (("resnet50", "--sent-bytes", "25"), "--sent-bytes"),
    ],
)
def test_what_cannot_be_cut_is_refused(
    ddpsim: Callable, tmp_path: Path, arguments: tuple[str, ...], words: str
) -> None:
    done = ddpsim("workload", "split", *arguments, "-o", tmp_path / "w.json")
    assert done.code == 2
    assert words in " ".join(done.err.split())


@pytest.mark.parametrize(
    ("option", "words"),
    [
        (("--scheme", "fsdp2"), "--scheme fsdp2: "),
        (("--process-groups", "2"), "--process-groups 2: "),
        (("--first", "2"), "--first: "),
        (("--gpus-per-node", "3"), "--gpus-per-node: ranks of 2 GPUs on nodes of 3"),
    ],
)
def test_what_is_not_simulated_is_refused_by_its_flag(
    ddpsim: Callable, on_two: Path, option: tuple[str, ...], words: str
) -> None:
    done = ddpsim("predict", "--workload", on_two, *PLACED, *option)
    assert done.code == 2
    assert words in " ".join(done.err.split())
    assert "Traceback" not in done.err
