from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = ("plan", "--search", "--workload", "gpt2-small", "--topology", "dgx-a100", "--nodes", "2")
FEW = ("--schemes", "ddp,fsdp2", "--tensor-parallel", "1,4", "--micro-batch-size", "8,32", "--pipeline", "none")


def test_a_search_shows_the_best_and_why_the_rest_are_left(ddpsim: Callable) -> None:
    text = ddpsim(*HERE, *FEW).out
    assert text.startswith("gpt2-small on dgx-a100, 2 nodes: 128 samples a step\n")
    assert "best: ddp" in text
    assert "\nplain DDP " in text
    assert " than plain DDP, " in text
    assert "DistributedDataParallel(model" in text
    assert "ruled out:" in text


def test_the_document_has_rows_and_counts(ddpsim: Callable) -> None:
    document = ddpsim(*HERE, *FEW, "--json", "--workers", "1").document
    [searched] = document["searches"]
    assert document["best"] == document["rows"][0] == document["best_by_workload"]["gpt2-small"]
    assert searched["global_batch_size"] == 128
    # Of one rank 32 do not divide its 8 samples.
    assert searched["candidates"] == len(document["rows"]) + sum(each["count"] for each in searched["ruled_out"]) == 8
    assert searched["ruled_out"][0]["reason"] == "does not divide"
    for row in document["rows"]:
        assert row["micro_batch_size"] * row["accumulate"] * row["data_parallel"] == 128
        assert row["tensor_parallel"] * row["data_parallel"] == row["world_size"] == 16
        assert row["step_low_s"] <= row["step_s"] <= row["step_high_s"]
    assert ddpsim(*HERE, *FEW, "--json", "--workers", "2").document == document


def test_a_scheme_alone_and_caps_are_searched(ddpsim: Callable, tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    one = ("--scheme", "zero1", "--tensor-parallel", "1", "--micro-batch-size", "8", "--bucket-cap-mb", "5")
    document = ddpsim(*HERE, *one, "--json", "-o", out).document
    assert [row["scheme"] for row in document["rows"]] == ["zero1"]
    assert {each["bucket_cap_mb"] for each in document["rows"][0]["sweep"]} <= {5.0}
    assert json.loads(out.read_text())["schema"] == "ddpsim.plan/1"


def test_a_limit_is_the_memory_of_a_plan_too(ddpsim: Callable) -> None:
    limited = (*HERE[:1], *HERE[2:], "--memory-limit", "1GB", "--bucket-cap-mb", "25")
    assert "/0.9" in ddpsim(*limited).out
    document = ddpsim(*limited, "--json").document
    assert document["rows"][0]["memory"]["capacity_bytes"] == 10**9
    assert document["rows"][0]["memory"]["fits"] is False


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (
            ("--memory-limit", "1GB"),
            "--memory-limit: nothing that was looked over fits 0.9 GiB of a GPU: the least is ",
        ),
        (("--memory-limit", "80"), "--memory-limit: size '80' has no unit"),
        (("--tensor-parallel", "7"), "groups of 7 ranks do not divide 16 ranks; give a divisor of 16"),
        (
            ("--tensor-parallel", "8"),
            "8 ranks do not divide the 12 heads of attention that transformer.h.0.attn.c_proj",
        ),
        (("--tensor-parallel", "two"), "--tensor-parallel: 'two' is not a number; write e.g. --tensor-parallel 1,2,8"),
        (("--micro-batch-size", "0"), "--micro-batch-size: 0 is not a count"),
        (("--global-batch-size", "0"), "--global-batch-size: 0 is not a count"),
        (("--global-batch-size", "8", "--accumulate", "2"), "--global-batch-size and --accumulate 2 are both given"),
        (("--report", "page.html"), "--search and --report are both given"),
        (("--schemes", "ddp,zero9"), "--schemes: unknown scheme 'zero9'"),
    ],
)
def test_what_cannot_be_searched_is_refused(ddpsim: Callable, asked: tuple[str, ...], message: str) -> None:
    few = () if "--schemes" in asked else ("--schemes", "ddp,fsdp2")
    ddpsim(*HERE, *few, *asked).refused(message)


def test_without_a_search_its_options_say_nothing(ddpsim: Callable) -> None:
    plan = HERE[:1] + HERE[2:]
    ddpsim(*plan, "--tensor-parallel", "1,4").refused("--tensor-parallel: 2 values without --search; add --search")
    ddpsim(*plan, "--micro-batch-size", "4").refused("--micro-batch-size: says nothing without --search")
    ddpsim(*plan, "--global-batch-size", "64").refused("--global-batch-size: says nothing without --search")
