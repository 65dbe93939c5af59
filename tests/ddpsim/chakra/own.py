"""A scheme whose ranks pass something on to their neighbours beside the sum of gradients."""

from dataclasses import replace

from ddpsim.common.operation import Operation
from ddpsim.schedules.message import Message
from ddpsim.schedules.points import BACKWARD_END, PointKind, points
from ddpsim.schedules.schedule import Schedule
from ddpsim.schedules.setup import sums


def passed_on(setup):
    everything = tuple(range(len(setup.parameters)))
    summed = [replace(message, blocks=(BACKWARD_END,)) for message in sums(setup, setup.buckets)]
    after = points(PointKind.GRADIENT, everything)
    passed = Message(id="on", op=Operation.SENDRECV, size_bytes=1 << 20, after=after, blocks=(BACKWARD_END,))
    return Schedule(scheme="passed_on", messages=(*summed, passed))
