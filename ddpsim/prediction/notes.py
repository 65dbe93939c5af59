"""What a prediction wants said beside its figures: whose pace is kept, what was assumed, what does not fit."""

from __future__ import annotations

from collections.abc import Iterator

from ddpsim.prediction.prediction import Prediction
from ddpsim.units import format_bandwidth
from ddpsim.workload.compiled import was_compiled


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
