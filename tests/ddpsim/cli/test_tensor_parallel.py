from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

HERE = ("--workload", "gpt2-small", "--topology", "dgx-a100", "--nodes", "2")


def test_a_prediction_says_what_layers_send(ddpsim: Callable) -> None:
    text = ddpsim("predict", *HERE, "--tensor-parallel", "4").out
    assert "layers over 4 consecutive ranks, 53 allreduces of " in text
    assert "gradients over 4 ranks" in text
    assert "communication of layers" in text
    assert "DistributedDataParallel(model)  # of a rank's part of the model, process_group: one rank in 4" in text


def test_the_document_has_it_in_bytes_and_seconds(ddpsim: Callable) -> None:
    document = ddpsim("predict", *HERE, "--tensor-parallel", "4", "--json").document
    assert (document["tensor_parallel"], document["data_parallel"]) == (4, 4)
    # Twelve layers, twice each way, the embedding and the output layer; three numbers a token of the loss.
    assert document["layer_messages"] == 4 * 12 + 2 + 3
    assert document["layer_bytes"] == 4 * 8 * 512 * ((4 * 12 + 2) * 768 + 3)
    assert document["layer_comm_s"] > 0
    assert document["samples_per_s"] * document["iteration_s"] == pytest.approx(4 * 8)
    without = ddpsim("predict", *HERE, "--json").document
    assert not {"tensor_parallel", "layer_messages", "layer_comm_s"} & set(without)


def test_plan_and_compare_take_it(ddpsim: Callable) -> None:
    planned = ddpsim("plan", *HERE, "--tensor-parallel", "4", "--json").document
    assert {row["tensor_parallel"] for row in planned["rows"]} == {4}
    compared = ddpsim("compare", *HERE, "--tensor-parallel", "4", "--json").document
    assert [row["data_parallel"] for row in compared["rows"]] == [4]
    swept = ddpsim("sweep", *HERE, "--tensor-parallel", "4", "--bucket-cap-mb", "25", "--json").document
    assert swept["rows"][0]["layer_comm_s"] > 0


def test_what_cannot_be_cut_exits_with_one_message(ddpsim: Callable, tmp_path: Path) -> None:
    machine = ("--topology", "dgx-a100")
    for asked, message in (
        (
            ("--workload", "resnet50"),
            "its operators are not those of a transformer's layers",
        ),
        (
            ("--workload", "gpt2-small"),
            "8 ranks do not divide the 12 heads of attention that transformer.h.0.attn.c_proj.weight joins",
        ),
        (("--workload", "gpt2-small", "--first", "3"), "--first and --tensor-parallel are both given"),
        (("--workload", "gpt2-small", "--chakra", tmp_path / "et"), "are both given"),
    ):
        ddpsim("predict", *asked, *machine, "--tensor-parallel", "8").refused(message)
