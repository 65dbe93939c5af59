"""When forward first needs each parameter, from the numbers by which autograd's nodes name the operators they undo.

A node of backward has the sequence number of the operator of forward that made it. The node that runs just before a
gradient is accumulated gave the last part of it: backward goes through forward in reverse, so that its operator is the
first that reads the parameter.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping as Table
from collections.abc import Sequence

import numpy as np

from ddpsim.workload.kineto.events import Events, HostEvent
from ddpsim.workload.kineto.mapping import Mapping
from ddpsim.workload.kineto.replay import TimelineWithoutDdp
from ddpsim.workload.kineto.steps import ACCUMULATE, NODE, HostStep
from ddpsim.workload.profile import ForwardUse, median_use

_NUMBER, _THREAD = "Sequence number", "Fwd thread id"
_NOT_KNOWN = "when forward needs its parameters is not known, all count as at the start: "


def forward_use_in(
    events: Events, steps: Sequence[HostStep], timeline: TimelineWithoutDdp, mapping: Mapping
) -> tuple[ForwardUse | None, str]:
    """Return when forward first needs each parameter, the median of `steps`, and how that was found.

    A parameter without a gradient counts as one that forward never needs. Where the operator of any other is not in
    forward, as that of a checkpointed layer, which is made in backward, or in a trace without sequence numbers, nothing
    is known.
    """
    starts = [event.start_s for event in events.operators]
    uses = []
    for step in steps:
        forward, backward, end = (
            bisect_left(starts, moment_s) for moment_s in (step.forward_s, step.backward_s, step.end_s)
        )
        made = {event.args[_NUMBER]: event for event in events.operators[forward:backward] if _NUMBER in event.args}
        if not made:
            return None, _NOT_KNOWN + "no operator has a sequence number"
        operators = _first_readers(events.operators[backward:end], step.accumulations, made)
        if missing := operators.count(None):
            what = f"{missing} of {len(operators)} gradients come from operators that are not in forward"
            return None, _NOT_KNOWN + what
        found = [operator for operator in operators if operator is not None]
        uses.append(_use(step, found, timeline, mapping))
    return median_use(uses), "when forward needs its parameters is known by the sequence numbers of operators"


def _first_readers(
    backward: Sequence[HostEvent], accumulations: Sequence[HostEvent], made: Table[object, HostEvent]
) -> list[HostEvent | None]:
    """Return for each accumulation the operator of forward that first read its parameter, None where it is not there.

    Nodes that were made on another thread than the first have numbers of their own.
    """
    nodes = [event for event in backward if event.name.startswith(NODE) and not event.name.endswith(ACCUMULATE)]
    begun = [node.start_s for node in nodes]
    found: list[HostEvent | None] = []
    for accumulation in accumulations:
        before = bisect_left(begun, accumulation.start_s)
        node = next((node for node in reversed(nodes[:before]) if node.thread == accumulation.thread), None)
        known = node is not None and node.args.get(_THREAD) == nodes[0].args.get(_THREAD)
        found.append(made.get(node.args.get(_NUMBER)) if node is not None and known else None)
    return found


def _use(step: HostStep, operators: Sequence[HostEvent], timeline: TimelineWithoutDdp, mapping: Mapping) -> ForwardUse:
    host, device = (np.full(len(mapping.parameters), np.nan) for _ in range(2))
    order = list(mapping.order)
    host[order] = [timeline.moment(each.start_s) - timeline.moment(step.forward_s) for each in operators]
    if not timeline.works:
        return ForwardUse(host.round(9), host.round(9))
    begin_s = timeline.first_start_s(step.forward_s)
    device[order] = [timeline.first_start_s(each.start_s) - begin_s for each in operators]
    return ForwardUse(host.round(9), device.round(9))
