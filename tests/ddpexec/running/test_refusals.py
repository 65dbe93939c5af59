"""What a run refuses before it begins, named as flags and as Python's settings, and every row of what excludes what."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

from ddpexec.errors import OptionError
from ddpexec.running.settings import RunSettings
from ddpsim import BucketCaps, InputError, Options, load_workload
from ddpsim.bucketing import plan_buckets
from ddpsim.jobs.exclusions import EXECUTED, SHARED, SIMULATED, STOCK_TORCH, Exclusion, is_given, written
from ddpsim.jobs.pipeline import parse_pipeline

DEEPSPEED = r"DeepSpeed's schemes are simulated, .*run zero1"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("--model mlp --impl nobody", "error: --impl: unknown value 'nobody'; use one of ddpexec, torch"),
        (
            "--model mlp --impl torch --process-groups 2",
            "error: --impl torch has no --process-groups 2; use --impl ddpexec, or leave it out",
        ),
        ("--model mlp --scale-compute 0", "error: --scale-compute: 0.0 is not a factor"),
        ("--model mlp --straggler 1:0.9", "error: --straggler 1: 0.9 makes no straggler"),
        ("--model mlp --iterations 0", "error: --iterations: 0 is not a count"),
        ("--model mlp --timeout 10", "error: --timeout: time '10' has no unit"),
        ("--model mlp --step a:b", "run: give one of --model, --step and --workload; e.g. --model resnet50"),
        ("--step a:b --batch-size 3", "--batch-size and --step are both given"),
        ("--step a:b --accumulate 2", "--accumulate and --step are both given"),
        ("--model mlp --input-stage load=3ms,rate=1GB/s", "a real copy goes as fast as the machine lets it"),
        ("--model mlp --input-stage load=3", "load: time '3'"),
        ("--model mlp --micro-batches 2", "--micro-batches is of a pipeline"),
        ("--model mlp --pipeline gpipe --bucket-cap-mb 5", "are both given"),
        ("--model mlp --pipeline gpipe --scheme zero1", "--pipeline and --scheme are both given"),
        ("--step a:b --pipeline gpipe", "--pipeline and --step are both given"),
        ("--model mlp --pipeline gpipe --boundary 3MiB", "a model sends its own activations"),
        ("--workload mlp --pipeline gpipe", "how many bytes timed stages send is not said"),
        ("--model mlp --pipeline pipedream", "pipedream"),
        ("--model mlp --bucket-cap-mb 1,25", "--bucket-cap-mb: several caps need a run each, or turns in one; add"),
        ("--step a:b --interleave", "--interleave: --interleave and --step are both given"),
        ("--model mlp --interleave --scheme fsdp2", "--interleave and --scheme fsdp2 are both given"),
        ("--model mlp --interleave --scheme parameter-server", "--interleave and --scheme parameter-server are"),
        ("--model mlp --interleave --local-iterations 3", "--interleave and --local-iterations are both given"),
        ("--model mlp --send-rate 5", "--send-rate: bandwidth '5' has no unit"),
        ("--model mlp --scheme dataparallel --comm noop", "torch.nn.DataParallel has no --comm noop"),
    ],
)
def test_options_are_named_as_flags(given: str, words: str, refusal: Any) -> None:
    assert words in refusal("run", *given.split(), "--out", "nowhere")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"implementation": "nobody"}, "implementation: unknown value 'nobody'"),
        ({"implementation": "torch", "process_groups": 2}, "`implementation=torch` has no `process_groups=2`"),
        ({"stragglers": {1: 0.9}}, r"stragglers\[1\]: 0.9 makes no straggler"),
        ({"local_iterations": -1}, "-1 is not a count"),
        ({"scheme": "fsdp2", "backend": "nccl"}, "backend"),
        ({"scheme": "zero3"}, DEEPSPEED),
        ({"scheme": "zero2:deepspeed,reduce=fp32"}, DEEPSPEED),
        ({"devices": 2, "backend": "gloo"}, "and `devices=2` are both given"),
    ],
    ids=str,
)
def test_settings_are_named_as_python_has_them(given: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        RunSettings(**given)


PARAMETERS = load_workload("mlp").parameters
VALUES: dict[str, dict[str, Any]] = {
    "order": {"order": "once"}, "assignment": {"assignment": "unused"}, "drop": {"drop": {"2": 0.5}},
    "drop_buckets": {"drop_buckets": "aligned"}, "compression": {"compression": "fp16"},
    "process_groups": {"process_groups": 2}, "scheme": {"scheme": "naive"}, "overlap": {"overlap": "off"},
    "find_unused_parameters": {"find_unused_parameters": True},
    "gradient_as_bucket_view": {"gradient_as_bucket_view": True},
    "tensor_parallel": {"tensor_parallel": 2}, "expert_parallel": {"expert_parallel": 2},
    "pipeline": {"pipeline": parse_pipeline("1f1b:2", "pipeline")}, "accumulate": {"accumulate": 2},
    "compiled": {"compiled": True}, "input_stage": {"input_stage": "load=1ms"}, "beside": {"beside": None},
    "unused": {"unused": {1: ("2",)}, "find_unused_parameters": True}, "caps": {"caps": BucketCaps(bucket_cap_mb=1)},
    "plan": {"plan": plan_buckets(PARAMETERS, BucketCaps())}, "local_iterations": {"local_iterations": 2},
    "devices": {"devices": 2},
    "backend": {"backend": "mpi"}, "stragglers": {"stragglers": {1: 2.0}}, "comm": {"comm": "noop"},
    "fully_sharded": {"scheme": "fsdp2"}, "replicated": {"scheme": "dataparallel"},
}  # fmt: skip
"""A value of each option, and what it needs beside."""
PAIRS = [
    (kind, error, row, other)
    for kind, error, rows in (
        (Options, InputError, (*SHARED, *SIMULATED)), (RunSettings, OptionError, (*EXECUTED, *STOCK_TORCH)),
        (RunSettings, InputError, SHARED),
    )
    for row in rows
    for other in (row.refuses if row.needs is None else (row.needs,))
    if other != "beside"
]  # fmt: skip


def values_of(option: str) -> dict[str, Any]:
    name, _, value = option.partition("!")[0].partition("=")
    return {name: value} if value else VALUES[name]


@pytest.mark.parametrize(("kind", "error", "row", "other"), PAIRS, ids=lambda each: str(getattr(each, "option", each)))
def test_a_row_refuses_what_it_says(kind: Any, error: type[InputError], row: Exclusion, other: str) -> None:
    asked, beside = dict(values_of(row.option)), {} if row.needs else dict(values_of(other))
    if row.option == "drop_buckets=aligned" or row.option == "drop_buckets=remapped":
        asked |= VALUES["drop"]
    if row.needs:
        asked.pop(row.needs, None)
    with pytest.raises(error, match=r"both given|says nothing|is given without|has no"):
        kind(**{**beside, **asked})


def test_an_option_is_written_by_name_by_value_or_by_what_else_it_may_be() -> None:
    job = Options(backend="gloo", comm="noop", drop={"2": 0.5})
    names = "backend", "backend!nccl", "backend!gloo,nccl", "comm=noop", "comm=real"
    assert [is_given(job, name) for name in names] == [
        True, True, False, True, False,
    ]  # fmt: skip
    assert (written(job, "backend!nccl"), written(job, "drop"), written(job, "comm=noop")) == (
        "backend=gloo", "drop", "comm=noop",
    )  # fmt: skip
    assert not is_given(job, "backend", allowed=["backend"])
