"""What a prediction wants said beside its figures: whose pace is kept, what was assumed, what does not fit."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddpsim.units import format_bandwidth
from ddpsim.workload.compiled import was_compiled

if TYPE_CHECKING:
    from ddpsim.prediction.prediction import Prediction


_AS_MANY = 1.01
"""Bytes over plain ones up to which a codec is said to send as many: scales and indices beside its bits."""


def notes(prediction: Prediction) -> Iterator[str]:
    """Yield each note, a sentence without a full stop."""
    yield from codec_notes(prediction)
    yield from pace_notes(prediction)


def codec_notes(prediction: Prediction) -> Iterator[str]:
    """Yield a note where compressed gradients are more bytes than plain ones: what every rank gathers grows with them.

    An all-gather of s bytes a rank moves what a ring allreduce of s p / 2 does over each link.
    """
    ranks, codec = prediction.summary.world_size, prediction.options.codec
    plain = sum(bucket.size_bytes for bucket in prediction.plan.buckets)
    sent = sum(prediction.wire_bytes(bucket.parameters) for bucket in prediction.plan.buckets)
    if ranks > 1 and _AS_MANY * plain < sent:
        fewest = math.ceil(ranks * plain / sent) - 1
        fewer = f"up to {fewest} it moves fewer" if fewest > 1 else "there is no number of ranks on which it moves fewer"
        yield (
            f"compression {codec.name} gathers what each rank has encoded: on {ranks} ranks {sent / plain:.2g} times the "
            f"bytes of an allreduce of plain gradients; {fewer}"
        )


def pace_notes(prediction: Prediction) -> Iterator[str]:
    """Yield each note, a sentence without a full stop."""
    workload, machine = prediction.workload, prediction.topology
    if devices := prediction.other_devices:
        yield (
            f"{workload.name} keeps the pace of {workload.device_label}, {machine.name} has {', '.join(devices)}; "
            "take a workload of that device, or --scale-compute"
        )
    elif workload.timed:
        pace = workload.device
        yield f"{workload.name} keeps the pace of {pace} by layers that sleep, as `ddpexec run --workload` does"
    if was_compiled(workload) and not prediction.options.compiled:
        yield (
            f"{workload.name} is compiled by torch.compile, which splits it at bucket bounds under DDP: predict with "
            "--compiled; without it the step is taken as it was recorded"
        )
    for name, value in prediction.assumed.items():
        yield (
            f"nobody gave the memory bandwidth of {workload.device}: {name} is assumed, {format_bandwidth(value)}; "
            "estimate for a GPU of the table (--gpu) or state it (--memory-bandwidth 1792GB/s ...), or measure it "
            "(`ddpexec microbench`, `ddpsim calibrate`, --calibration)"
        )
    if (memory := prediction.memory) is not None and memory.fits is False:
        yield f"{workload.name} does not fit the memory of {machine.name}'s GPUs: {memory.text()}"
    if prediction.ranks_differ:
        yield (
            f"{workload.name} was recorded by {workload.ranks} ranks at once on a machine, "
            f"{machine.name} has {prediction.placement.gpus_per_node} on a node; capture it with as many"
        )
