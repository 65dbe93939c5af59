"""What the host did in a step of a Kineto trace, by phase, and the parts of a step where nothing but hosts compute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ddpsim.explaining.exposed import Exposed, blocked_s, exposed_parts
from ddpsim.explaining.seen import SeenCollective, complete_parts
from ddpsim.trace.metrics import intersection, union
from ddpsim.workload.kineto.steps import HostStep


def finished_s(step: HostStep, collectives: Sequence[SeenCollective]) -> float:
    """Return when DDP was done with backward: on a CPU the host waits there for the last of its collectives."""
    marked_s = max((i.end_s for i in step.ddp if i.start_s >= step.backward_end_s), default=step.backward_end_s)
    last_s = max((c.finished_s for c in collectives if c.own), default=step.backward_end_s)
    update_s = next((i.start_s for i in step.optimizer if i.start_s >= step.backward_end_s), step.end_s)
    return max(marked_s, min(last_s, update_s))


def host_work(
    step: HostStep, after: HostStep | None, end_s: float, exposed: Exposed, over_s: float
) -> dict[str, float]:
    """Return the host's own work by phase.

    Args:
        step, after: the step and the next.
        end_s: where the step ends.
        exposed: collectives that the host waits for, which are left out.
        over_s: DDP was done with backward.
    """
    broadcast = sum(i.end_s - i.start_s for i in step.ddp if i.start_s < step.backward_s)
    hooks = sum(i.end_s - i.start_s for i in step.ddp if step.backward_s <= i.start_s < step.backward_end_s)
    updates = [i for i in step.optimizer if i.start_s >= step.backward_end_s]
    updated_s = max((i.end_s for i in updates), default=step.backward_end_s)
    update_s = min((i.start_s for i in updates), default=updated_s)
    cleared = [] if after is None else [i for i in after.optimizer if i.start_s < end_s]
    waits = union((wait.start_s, wait.end_s) for wait in step.waits)

    def own(start_s: float, stop_s: float) -> float:
        if stop_s <= start_s:
            return 0.0
        return stop_s - start_s - blocked_s(exposed, start_s, stop_s) - intersection([(start_s, stop_s)], waits)

    loop = own(min(over_s, update_s), update_s) + own(updated_s, end_s)
    return {
        "forward": max(0.0, own(step.forward_s, step.backward_s) - broadcast),
        "backward": max(0.0, own(step.backward_s, step.backward_end_s) - hooks),
        "optimizer": sum(own(i.start_s, i.end_s) for i in updates) + sum(i.end_s - i.start_s for i in cleared),
        "input": max(0.0, loop - sum(i.end_s - i.start_s for i in cleared)),
        "hooks": hooks,
    }


def host_parts(
    step: HostStep, end_s: float, host: Mapping[str, float], exposed: Exposed, collectives: Sequence[SeenCollective]
) -> dict[str, float]:
    """Return the parts of a step that the host computes itself, of what `host_work` says of it."""
    last_s = max((c.finished_s for c in collectives if c.own), default=step.backward_end_s)
    begin_s, over_s = step.backward_end_s, min(last_s, finished_s(step, collectives))
    parts = {
        "forward_s": host["forward"],
        "backward_compute_s": host["backward"],
        "exposed_comm_s": max(0.0, over_s - begin_s - blocked_s(exposed, begin_s, over_s)),
        "buffer_broadcast_s": sum(i.end_s - i.start_s for i in step.ddp if i.start_s < step.backward_s),
        "optimizer_s": host["optimizer"],
        "input_s": host["input"],
        **exposed_parts(exposed, step.forward_s, end_s),
    }
    return complete_parts(parts, end_s - step.forward_s)
