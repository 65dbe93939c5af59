from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.mixtures import LAYERS, TOKENS, WIDTH, save_mixture

MACHINE = ("--topology", "dgx-a100", "--nodes", "2")


@pytest.fixture
def here(tmp_path: Path) -> tuple[object, ...]:
    return ("--workload", save_mixture(tmp_path), *MACHINE)


def test_a_prediction_says_what_experts_send(ddpsim: Callable, here: tuple[object, ...]) -> None:
    text = ddpsim("predict", *here, "--expert-parallel", "8").out
    assert "experts over 8 consecutive ranks, 12 all-to-alls of 192 MiB (201,326,592 B) in all a step" in text
    assert "gradients over 16 ranks, experts' over 2 ranks" in text
    assert "communication of layers" in text
    assert "of all but experts; theirs by another, process_group: one rank in 8" in text


def test_the_document_has_it_in_bytes_and_seconds(ddpsim: Callable, here: tuple[object, ...]) -> None:
    document = ddpsim("predict", *here, "--expert-parallel", "4", "--json").document
    told = ("expert_parallel", "data_parallel", "expert_data_parallel")
    assert [document[name] for name in told] == [4, 16, 4]
    # Tokens go to the experts and back, in forward and in backward.
    assert document["layer_messages"] == 4 * LAYERS
    assert document["layer_bytes"] == 4 * LAYERS * TOKENS * WIDTH * 2
    assert document["layer_comm_s"] > 0
    assert document["samples_per_s"] * document["iteration_s"] == pytest.approx(16 * 8)
    without = ddpsim("predict", *here, "--json").document
    assert not {"expert_parallel", "layer_messages", "layer_comm_s"} & set(without)


def test_plan_and_compare_take_it(ddpsim: Callable, here: tuple[object, ...]) -> None:
    planned = ddpsim("plan", *here, "--expert-parallel", "4", "--json").document
    assert {row["expert_parallel"] for row in planned["rows"]} == {4}
    compared = ddpsim("compare", *here, "--expert-parallel", "4", "--json").document
    assert [row["expert_data_parallel"] for row in compared["rows"]] == [4]
    swept = ddpsim("sweep", *here, "--expert-parallel", "4", "--bucket-cap-mb", "25,100", "--json").document
    assert all(row["layer_comm_s"] > 0 for row in swept["rows"])
    assert swept["rows"][0]["iteration_s"] != swept["rows"][1]["iteration_s"]


def test_what_cannot_be_spread_exits_with_one_message(
    ddpsim: Callable, here: tuple[object, ...], tmp_path: Path
) -> None:
    for asked, message in (
        (
            (*here, "--expert-parallel", "3"),
            "mixture: --expert-parallel: groups of 3 ranks do not divide the 8 experts of layers",
        ),
        ((*here, "--gpus-per-node", "3", "--expert-parallel", "4"), "groups of 4 ranks do not divide 6 ranks"),
        (("--workload", "resnet50", *MACHINE, "--expert-parallel", "8"), "none of its parameters is of a list of exp"),
        ((*here, "--expert-parallel", "8", "--first", "3"), "--first and --expert-parallel are both given"),
        ((*here, "--expert-parallel", "8", "--chakra", tmp_path / "et"), "are both given"),
        ((*here, "--expert-parallel", "8", "--scheme", "hsdp:2"), "experts in groups of 8 ranks have theirs apart"),
    ):
        ddpsim("predict", *asked).refused(message)


def test_a_search_has_ranks_share_experts_or_layers_not_both(ddpsim: Callable, here: tuple[object, ...]) -> None:
    found = ddpsim("plan", "--search", *here, "--expert-parallel", 2, "--schemes", "ddp", "--json").document
    assert {row["tensor_parallel"] for row in found["rows"]} == {1}
