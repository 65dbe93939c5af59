from __future__ import annotations

from collections.abc import Callable


def test_a_pipeline_is_told_and_more_stages_than_layers_are_refused(ddpsim: Callable) -> None:
    base = ("pipeline", "--workload", "mlp", "--topology", "dgx-1v", "--boundary", "1MiB")
    ddpsim(*base, "--stages", "8").refused("8 stages of a model of")
    ddpsim(*base, "--stages", "3").refused("do not divide")
    found = ddpsim(*base, "--stages", "2", "--micro-batches", "4", "--json")
    assert found.code == 0
    assert found.document["copies"] == 4
    assert "the first stage keeps" in ddpsim(*base, "--stages", "2").out


def test_what_passes_between_stages_is_asked_for_where_anything_is_cut(ddpsim: Callable) -> None:
    base = ("pipeline", "--workload", "mlp", "--topology", "dgx-1v")
    ddpsim(*base, "--stages", "4", "--micro-batches", "16").refused("--boundary", "--stages is 4", "25MiB")
    ddpsim(*base, "--tensor-ranks", "2").refused("--boundary", "--tensor-ranks is 2")
    assert ddpsim(*base, "--json").document["activations_s"] == 0
