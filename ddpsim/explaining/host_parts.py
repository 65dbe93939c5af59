"""What the host did in a step of a Kineto trace, by phase, and the parts of a step where nothing but hosts compute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ddpsim.explaining.seen import SeenCollective
from ddpsim.trace.overlap import intersection, union
from ddpsim.workload.kineto.steps import Step


def host_work(step: Step, after: Step | None, end_s: float, blocking: Sequence[SeenCollective]) -> dict[str, float]:
    """Return the host's own work by phase; collectives that the host waits for where it launches them are left out."""
    broadcast = sum(i.end_s - i.start_s for i in step.ddp if i.start_s < step.backward_s)
    hooks = sum(i.end_s - i.start_s for i in step.ddp if step.backward_s <= i.start_s < step.backward_end_s)
    updates = [i for i in step.optimizer if i.start_s >= step.backward_end_s]
    updated_s = max((i.end_s for i in updates), default=step.backward_end_s)
    cleared = [] if after is None else [i for i in after.optimizer if i.start_s < end_s]
    held = union((c.started_s, c.finished_s) for c in blocking)
    waits = union((wait.start_s, wait.end_s) for wait in step.waits)

    def less(start_s: float, stop_s: float) -> float:
        return intersection([(start_s, stop_s)], held) + intersection([(start_s, stop_s)], waits)

    optimizer = sum(i.end_s - i.start_s - less(i.start_s, i.end_s) for i in updates)
    return {
        "forward": step.backward_s - step.forward_s - broadcast - less(step.forward_s, step.backward_s),
        "backward": step.backward_end_s - step.backward_s - hooks - less(step.backward_s, step.backward_end_s),
        "optimizer": optimizer + sum(i.end_s - i.start_s for i in cleared),
        "input": max(0.0, end_s - updated_s - sum(i.end_s - i.start_s for i in cleared) - less(updated_s, end_s)),
        "hooks": hooks,
    }


def host_parts(
    step: Step, end_s: float, host: Mapping[str, float], collectives: Sequence[SeenCollective]
) -> dict[str, float]:
    """Return the parts of a step that the host computes itself, of what `host_work` says of it."""
    finish_s = max((i.end_s for i in step.ddp if i.start_s >= step.backward_end_s), default=step.backward_end_s)
    over_s = max((c.finished_s for c in collectives), default=step.backward_end_s)
    parts = {
        "forward_s": host["forward"],
        "backward_compute_s": host["backward"],
        "exposed_comm_s": max(0.0, min(over_s, finish_s) - step.backward_end_s),
        "buffer_broadcast_s": sum(i.end_s - i.start_s for i in step.ddp if i.start_s < step.backward_s),
        "optimizer_s": host["optimizer"],
        "input_s": host["input"],
    }
    return {**parts, "ddp_overhead_s": end_s - step.forward_s - sum(parts.values())}
