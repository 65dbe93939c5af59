from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

MIB = 1 << 20


def test_buckets_close_at_their_caps(ddpsim: Callable, tiny: Path) -> None:
    document = ddpsim("buckets", "--workload", tiny, "--bucket-cap-mb-list", "1,2", "--json").document
    assert document["buckets"] == [
        {"index": 0, "size_bytes": MIB, "parameters": [3], "limit_bytes": MIB},
        {"index": 1, "size_bytes": 2 * MIB, "parameters": [2, 1], "limit_bytes": 2 * MIB},
        {"index": 2, "size_bytes": MIB, "parameters": [0], "limit_bytes": 2 * MIB},
    ]
    assert document["torch"] == "DistributedDataParallel(model, bucket_cap_mb_list=[1, 2])"


def test_text_says_why_a_bucket_without_a_limit_closed(ddpsim: Callable, tiny: Path) -> None:
    assert "end (no limit)" in ddpsim("buckets", "--workload", tiny, "--assignment", "initial").out


def test_the_assignment_is_the_one_a_prediction_takes(ddpsim: Callable, tiny: Path) -> None:
    here = ("--topology", "loopback", "--gpus-per-node", "2", "--json")
    for options in ([], ["--assignment", "initial"], ["--assignment", "unused"], ["--find-unused-parameters"]):
        shown = ddpsim("buckets", "--workload", tiny, *options, "--json").document
        taken = ddpsim("predict", "--workload", tiny, *here, *options).document
        assert shown["plan_fingerprint"] == taken["plan_fingerprint"], options


def test_a_plan_file_is_written_and_read_back(ddpsim: Callable, tiny: Path, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    made = ddpsim("buckets", "--workload", tiny, "--bucket-cap-mb", "2", "-o", plan, "--json").document
    read = ddpsim("buckets", "--workload", tiny, "--plan", plan, "--json").document
    assert [b["parameters"] for b in read["buckets"]] == [b["parameters"] for b in made["buckets"]]
    assert read["plan_fingerprint"] == made["plan_fingerprint"]


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (["--bucket-cap-mb", "5", "--bucket-cap-mb-list", "1,5"], ["--bucket-cap-mb 5 and --bucket-cap-mb-list"]),
        (["--first-bucket-mb", "5", "--bucket-cap-mb-list", "1,5"], ["--first-bucket-mb", "keep one"]),
        (["--bucket-cap-mb", "25MB"], ["--bucket-cap-mb", "'25MB'", "write e.g. --bucket-cap-mb 25"]),
        (["--bucket-cap-mb", "nan"], ["--bucket-cap-mb", "'nan'"]),
        (["--bucket-cap-mb-list", "1,,5"], ["--bucket-cap-mb-list", "''"]),
        (["--assignment", "random"], ["'random'", "rebuilt, initial, unused"]),
        (["--assignment", "initial", "--find-unused-parameters"], ["--assignment initial", "keep one"]),
        (["--plan", "x.json", "--assignment", "unused"], ["--plan and --assignment unused", "keep one"]),
        (["--plan", "missing.json"], ["missing.json", "No such file"]),
    ],
)  # fmt: skip
def test_options_that_do_not_fit(ddpsim: Callable, tiny: Path, options: list[str], parts: list[str]) -> None:
    ddpsim("buckets", "--workload", tiny, *options).refused(*parts)


def test_plans_that_do_not_fit(ddpsim: Callable, tiny: Path, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    ddpsim("buckets", "--workload", tiny, "--bucket-cap-mb", "2", "-o", plan)
    document = json.loads(plan.read_text())
    document["buckets"][0]["parameters"].pop()
    plan.write_text(json.dumps(document))
    said = ("plan.json", "1 parameters are in no bucket", "layer2.weight")
    ddpsim("buckets", "--workload", tiny, "--plan", plan).refused(*said)
    plan.write_text(plan.read_text()[:-9])
    ddpsim("buckets", "--workload", tiny, "--plan", plan).refused("plan.json", "not JSON", "line")


def test_layers_that_may_be_left_out_have_buckets_of_their_own(ddpsim: Callable, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    drop = ("--drop", "encoder.layer.3:0.5", "--drop-buckets", "aligned")
    rows = ddpsim("buckets", "--workload", "bert-base", *drop, "--out", plan, "--json").document["buckets"]
    names = json.loads(plan.read_text())["parameter_names"]
    dropped = {index for index, name in enumerate(names) if name.startswith("encoder.layer.3.")}
    assert dropped
    assert all(set(row["parameters"]) <= dropped or dropped.isdisjoint(row["parameters"]) for row in rows)
    assert ddpsim("buckets", "--workload", "bert-base", "--plan", plan, "--json").document["buckets"] == rows
    ddpsim("buckets", "--workload", "bert-base", "--drop-buckets", "aligned").refused("says nothing without")
