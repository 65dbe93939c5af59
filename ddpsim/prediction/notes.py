"""Notes of a prediction: whose pace its workload has, what was assumed, what does not fit, what is not simulated."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from ddpsim.collectives.calibration import Calibration
from ddpsim.common.units import format_bandwidth
from ddpsim.prediction.memory import Memory
from ddpsim.simulation.jobs.simulated import Options
from ddpsim.topology.graph import Placement
from ddpsim.workload import Workload
from ddpsim.workload.anchors import MEASURED_ON
from ddpsim.workload.fusing import CompiledAs
from ddpsim.workload.replayed import was_compiled

_AS_MANY = 1.01
"""Bytes over plain ones up to which a codec is said to send as many: scales and indices beside its bits."""
_REMEDY = (
    "it cannot be estimated there: make the file with `python -m ddpexec estimate`, which keeps its operators, or take "
    "a workload of that device"
)


def codec_notes(codec: str, ranks: int, plain_bytes: int, sent_bytes: int) -> Iterator[str]:
    """Yield a note where compressed gradients are more bytes than plain ones: what every rank gathers grows with them.

    An all-gather of s bytes a rank moves what a ring allreduce of s p / 2 does over each link.

    Args:
        sent_bytes: of the ring allreduce that loads links as the compressed gradients do.
    """
    if ranks > 1 and _AS_MANY * plain_bytes < sent_bytes:
        fewest = math.ceil(ranks * plain_bytes / sent_bytes) - 1
        fewer = (
            f"up to {fewest} it moves fewer" if fewest > 1 else "there is no number of ranks on which it moves fewer"
        )
        yield (
            f"compression {codec} gathers what each rank has encoded: on {ranks} ranks {sent_bytes / plain_bytes:.2g} "
            f"times the bytes of an allreduce of plain gradients; {fewer}"
        )


def calibration_notes(calibration: Calibration | None, machine: str) -> Iterator[str]:
    """Yield a note where constants were fitted to tables of another machine."""
    fitted_to = None if calibration is None else calibration.provenance.get("topology")
    if fitted_to not in (None, machine):
        yield f"the calibration was fitted to {fitted_to}: its constants are used for {machine} too"


def pace_notes(
    workload: Workload,
    placement: Placement,
    options: Options,
    memory: Memory | None,
    *,
    other_devices: Sequence[str],
    assumed: Mapping[str, float],
    sharded: bool,
) -> Iterator[str]:
    """Yield each note on workload and machine, a sentence without a full stop; the arguments are a prediction's."""
    machine = placement.topology
    if other_devices:
        yield (
            f"{workload.name} has the compute times of {workload.device_label}, {machine.name} has "
            f"{', '.join(other_devices)}; {_REMEDY if not options.keep_pace else 'by --keep-pace'}, and is not ranked"
        )
    elif workload.timed:
        pace = workload.device
        yield f"{workload.name} has the compute times of {pace}, by layers that sleep, as `ddpexec run --workload` does"
    if (other := workload.provenance.get(MEASURED_ON)) is not None:
        yield (
            f"no step was measured on {workload.device_label}: {workload.name} is taken to reach the same share "
            f"of its roofline as the step measured on {other}; measure one there too"
        )
    yield from workload.left_out
    clips = options.clip_gradients or (workload.optimizer_kind or "").endswith("+clip")
    if clips and placement.world_size > 1 and (sharded or options.ranks_a_copy * options.expert_parallel > 1):
        yield (
            "sharded gradients are clipped by their global norm: the allreduce of that norm before the update is not "
            "simulated"
        )
    if was_compiled(workload) and not options.compiled:
        yield (
            f"{workload.name} is compiled by torch.compile, which splits it at bucket bounds under DDP: predict with "
            "--compiled; without it the step is taken as it was recorded"
        )
    if (compiled_as := CompiledAs.of(workload.provenance)) is not None:
        yield f"{workload.name} is {compiled_as.text()}"
    for name, value in assumed.items():
        yield (
            f"the memory bandwidth of {workload.device} is not known: {name} is assumed, {format_bandwidth(value)}; "
            "estimate for a GPU of the table (--gpu) or state it (--memory-bandwidth 1792GB/s ...), or measure it "
            "(`ddpexec microbench`, `ddpsim calibrate`, --calibration)"
        )
    if memory is not None and memory.fits is False:
        yield f"{workload.name} does not fit the memory of {machine.name}'s GPUs: {memory.text()}"
    if workload.ranks not in (1, placement.gpus_per_node) and not workload.timed:
        yield (
            f"{workload.name} was recorded by {workload.ranks} ranks at once on a machine, "
            f"{machine.name} has {placement.gpus_per_node} on a node; capture it with as many"
        )
