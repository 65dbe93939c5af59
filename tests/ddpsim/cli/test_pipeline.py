from __future__ import annotations

from collections.abc import Callable


def test_a_pipeline_is_told_and_more_stages_than_layers_are_refused(ddpsim: Callable) -> None:
    base = ("pipeline", "--workload", "mlp", "--topology", "dgx-1v", "--boundary", "1MiB")
    ddpsim(*base, "--stages", "8").refused("8 stages of a model of")
    ddpsim(*base, "--stages", "3").refused("do not divide")
    found = ddpsim(*base, "--stages", "2", "--micro-batches", "4", "--json")
    assert found.code == 0
    assert found.document["copies"] == 4


def test_what_passes_between_stages_is_asked_for_where_anything_is_cut(ddpsim: Callable) -> None:
    base = ("pipeline", "--workload", "mlp", "--topology", "dgx-1v")
    ddpsim(*base, "--stages", "4", "--micro-batches", "16").refused("--boundary", "--stages is 4", "25MiB")
    ddpsim(*base, "--tensor-ranks", "2").refused("--boundary", "--tensor-ranks is 2")
    assert ddpsim(*base, "--json").document["activations_s"] == 0


def test_an_estimated_transformer_knows_what_passes_between_its_stages(ddpsim: Callable) -> None:
    base = ("pipeline", "--workload", "bert-large", "--topology", "dgx-1v", "--stages", "4", "--micro-batches", "4")
    # 8 sequences of 128 tokens, 1,024 values of four bytes wide.
    said = ddpsim(*base, "--boundary", "4MiB", "--json").document
    assert ddpsim(*base, "--json").document == said
    assert ddpsim(*base, "--boundary", "64MiB", "--json").document["step_s"] > said["step_s"]


def test_gradients_are_summed_under_backward_where_that_is_asked_for(ddpsim: Callable) -> None:
    base = ("pipeline", "--workload", "bert-large", "--topology", "dgx-1v", "--stages", "4", "--micro-batches", "4")
    after, under = (ddpsim(*base, "--gradients", when, "--json").document for when in ("after", "ddp"))
    assert 0 < under["exposed_allreduce_s"] < after["exposed_allreduce_s"]
    one = ("--order", "pipedream", "--gradients", "ddp")
    ddpsim(*base, *one).refused("--order pipedream and --gradients ddp are both given")


def test_predict_says_the_same_of_the_same_pipeline(ddpsim: Callable) -> None:
    base = ("--workload", "bert-large", "--topology", "dgx-1v")
    told = ddpsim("pipeline", *base, "--stages", "4", "--micro-batches", "4", "--json").document
    given = ("--pipeline", "gpipe:4,micro-batches=4", "--scheme", "flat")
    found = ddpsim("predict", *base, *given, "--json").document
    assert found["iteration_s"] == told["step_s"]
    assert found["samples_per_s"] == told["samples_per_s"]
    assert found["pipeline"]["parameters"] == [sorted(stage) for stage in told["stages"]]
    assert found["layer_comm_s"] > 0


def test_the_wait_of_a_rank_for_its_neighbours_is_called_the_bubble(ddpsim: Callable) -> None:
    base = ("predict", "--workload", "bert-large", "--topology", "dgx-1v")
    text = ddpsim(*base, "--pipeline", "1f1b:4,micro-batches=4").out
    assert "\n  pipeline bubble and messages " in text
    assert "communication of layers" not in text


def test_what_is_no_pipeline_is_refused_by_its_option(ddpsim: Callable) -> None:
    base = ("predict", "--workload", "bert-large", "--topology", "dgx-1v", "--pipeline")
    ddpsim(*base, "1f1b").refused("--pipeline", "1f1b:4,micro-batches=16")
    ddpsim(*base, "1f1b:4", "--first", "4").refused("--first", "--pipeline")
    mlp = ("predict", "--workload", "mlp", "--topology", "dgx-1v", "--pipeline")
    ddpsim(*mlp, "1f1b:2,micro-batches=4").refused("--pipeline", "boundary=25MiB")
