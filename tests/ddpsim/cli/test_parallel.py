"""Ranks that share layers or experts: what commands say of them, and what they refuse."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.mixtures import LAYERS, TOKENS, WIDTH, save_mixture

MACHINE = ("--topology", "dgx-a100", "--nodes", "2")
TOLD = {
    "tensor": (
        4,
        "each layer split over 4 consecutive ranks, 53 allreduces of ",
        "gradients reduced over 4 ranks",
        "DistributedDataParallel(model)  # of a rank's part of the model, process_group: one rank in 4",
    ),
    "expert": (
        8,
        "experts spread over 8 consecutive ranks, 12 all-to-alls of 192 MiB (201,326,592 B) in all a step",
        "gradients reduced over 16 ranks, experts' over 2 ranks",
        "of all but experts; theirs by another, process_group: one rank in 8",
    ),
}
GROUPS = {"tensor": ("data_parallel",), "expert": ("data_parallel", "expert_data_parallel")}
"""What a document calls the ranks that have the same."""


@pytest.fixture
def here(kind: str, tmp_path: Path) -> tuple[object, ...]:
    """Return a workload whose layers, or experts, can be shared, and a machine."""
    return ("--workload", save_mixture(tmp_path) if kind == "expert" else "gpt2-small", *MACHINE)


@pytest.mark.parametrize("kind", TOLD)
def test_a_prediction_says_what_is_sent(ddpsim: Callable, kind: str, here: tuple[object, ...]) -> None:
    ranks, *sentences = TOLD[kind]
    printed = ddpsim("predict", *here, f"--{kind}-parallel", ranks).out
    text = f"{printed} {' '.join(printed.split())}"
    for sentence in (*sentences, "communication of layers"):
        assert sentence in text


@pytest.mark.parametrize(
    ("kind", "groups", "messages", "size_bytes", "samples"),
    [
        # Twelve layers, twice each way, the embedding and the output layer; three numbers a token of the loss.
        ("tensor", [4, 4], 4 * 12 + 2 + 3, 4 * 8 * 512 * ((4 * 12 + 2) * 768 + 3), 4 * 8),
        # Tokens go to the experts and back, in forward and in backward.
        ("expert", [4, 16, 4], 4 * LAYERS, 4 * LAYERS * TOKENS * WIDTH * 2, 16 * 8),
    ],
)
def test_the_document_has_it_in_bytes_and_seconds(
    ddpsim: Callable,
    kind: str,
    here: tuple[object, ...],
    groups: list[int],
    messages: int,
    size_bytes: int,
    samples: int,
) -> None:
    document = ddpsim("predict", *here, f"--{kind}-parallel", "4", "--json").document
    assert [document[name] for name in (f"{kind}_parallel", *GROUPS[kind])] == groups
    assert (document["layer_messages"], document["layer_bytes"]) == (messages, size_bytes)
    assert document["layer_comm_s"] > 0
    assert document["samples_per_s"] * document["iteration_s"] == pytest.approx(samples)
    without = ddpsim("predict", *here, "--json").document
    assert not {f"{kind}_parallel", "layer_messages", "layer_comm_s"} & set(without)


@pytest.mark.parametrize("kind", TOLD)
def test_plan_compare_and_sweep_take_it(ddpsim: Callable, kind: str, here: tuple[object, ...]) -> None:
    shared = (f"--{kind}-parallel", "4", "--json")
    planned = ddpsim("plan", *here, *shared).document
    assert {row[f"{kind}_parallel"] for row in planned["rows"]} == {4}
    compared = ddpsim("compare", *here, *shared).document
    assert [row[GROUPS[kind][-1]] for row in compared["rows"]] == [4]
    swept = ddpsim("sweep", *here, *shared, "--bucket-cap-mb", "25,100").document
    assert all(row["layer_comm_s"] > 0 for row in swept["rows"])
    assert swept["rows"][0]["iteration_s"] != swept["rows"][1]["iteration_s"]


@pytest.mark.parametrize(
    ("kind", "options", "said"),
    [
        ("tensor", ("--workload", "resnet50"), "its operators are not those of a transformer's layers"),
        ("tensor", ("--first", "3"), "--first and --tensor-parallel are both given"),
        ("tensor", ("--chakra", "et"), "are both given"),
        ("expert", ("--expert-parallel", "3"), "mixture: --expert-parallel: groups of 3 ranks do not divide the 8 exp"),
        ("expert", ("--workload", "resnet50"), "none of its parameters is of a list of exp"),
        ("expert", ("--first", "3"), "--first and --expert-parallel are both given"),
        ("expert", ("--chakra", "et"), "are both given"),
    ],
)
def test_what_cannot_be_shared_is_one_message(
    ddpsim: Callable, kind: str, here: tuple[object, ...], options: tuple[str, str], said: str
) -> None:
    given = dict(zip(here[::2], here[1::2], strict=True)) | {f"--{kind}-parallel": "8", options[0]: options[1]}
    ddpsim("predict", *(word for pair in given.items() for word in pair)).refused(said)


@pytest.mark.parametrize("kind", ["expert"])
def test_a_search_has_ranks_share_experts_or_layers_not_both(ddpsim: Callable, here: tuple[object, ...]) -> None:
    found = ddpsim("plan", "--search", *here, "--expert-parallel", 2, "--schemes", "ddp", "--json").document
    assert {row["tensor_parallel"] for row in found["rows"]} == {1}
