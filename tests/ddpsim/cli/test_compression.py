from __future__ import annotations

from collections.abc import Callable

BASE = ("compression", "--workload", "mlp", "--topology", "lab-flat", "--nodes", "2")


def test_break_even_rates_are_told_with_their_band(ddpsim: Callable) -> None:
    found = ddpsim(*BASE, "--schemes", "fp16,topk:0.01", "--json")
    assert found.code == 0
    rows = found.document["rows"]
    assert [row["scheme"] for row in rows] == ["fp16", "topk:0.01"]
    for row in rows:
        assert row["gain"] == 1 - row["step_s"] / row["plain_s"]
        assert row["rate_Bps"] is None or row["rate_low_Bps"] <= row["rate_Bps"] <= row["rate_high_Bps"]
    text = ddpsim(*BASE, "--schemes", "fp16").out
    assert text.splitlines()[1].split()[-1] == "no"
    given = ddpsim(*BASE, "--schemes", "fp16", "--set", "gloo.ddp.fp16_Bps=1GB/s").out
    assert given != text


def test_what_is_bad_is_refused(ddpsim: Callable) -> None:
    ddpsim(*BASE, "--schemes", "fp61").refused("fp61")
    ddpsim(*BASE, "--schemes", "fp16,").refused("a scheme without a name")
    ddpsim(*BASE[:-1], "1", "--schemes", "fp16").refused("one node of lab-flat send nothing over a NIC")


def test_a_codec_that_gathers_more_than_plain_gradients_is_noted_in_the_result(ddpsim: Callable) -> None:
    base = ("predict", "--workload", "resnet50", "--topology", "p3.16xlarge", "--compression", "adaptive")
    many, few = (ddpsim(*base, "--nodes", nodes, "--json").document for nodes in (4, 1))
    assert "on 32 ranks 4 times the bytes" in many["notes"][0]
    assert "up to 7 it moves fewer" in many["notes"][0]
    assert not any("compression" in note for note in few["notes"])
    assert "4 times the bytes" in ddpsim(*base, "--nodes", "4").out
