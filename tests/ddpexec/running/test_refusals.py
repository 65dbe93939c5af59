"""What a run refuses before it begins, named as flags and as Python's settings."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

from ddpexec.running.settings import RunSettings
from ddpsim import InputError

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
