"""Another schedule put in force between two steps of a training; parameters, optimizers and hooks stay.

Functions of a `ScheduledDataParallel`, which has them as methods.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ddpexec.errors import OptionError
from ddpexec.timing.observe import Observer
from ddpsim.bucketing import BucketCaps
from ddpsim.schedules.schedule import Schedule


def use_schedule(
    wrapper: Any, caps: BucketCaps, groups: Sequence[Sequence[int]], schedule: Schedule | None = None
) -> None:
    """Send by another schedule from the next forward on; call it on every rank between the same two steps.

    Pending updates are carried out first. The optimizer keeps its state and its parameter groups, which a learning rate
    scheduler may hold.

    Args:
        wrapper: whose schedule has none but sums of whole gradients, as `explain_fixed` says.
        caps: as the constructor would have been given them.
        groups: the buckets that they give, by registration index, in launch order.
        schedule: with these buckets, the same on every rank; None is DDP's.

    Raises:
        PlanError: buckets, or messages, that do not hold each parameter once.
        OptionError: a message that cannot be carried out, parameter groups that differ inside one, or while it learns
            when gradients come.
    """
    if wrapper.learns:
        what, remedy = "its own schedule is still to be made", "give `learn=0`, or wait until it has learned"
        raise OptionError(what, place=f"scheme {wrapper.schedule.scheme}", remedy=remedy)
    wrapper.complete()
    plan, made = wrapper._planner.make_other(groups, schedule)
    wrapper._install(made, keep_groups=True)
    wrapper._planner.caps, wrapper._planner.plan = caps, plan
    wrapper._announce(wanted=False)  # a module that announces by itself may have been asked by others since
    wrapper._announce(wanted=wrapper.reducer.waits_in_forward)


def observe(wrapper: Any, observer: Observer | None) -> None:
    """Let `observer` take the moments of each iteration from the next forward on; None takes none."""
    wrapper.observer = observer
    wrapper.reducer.stepper.observe(observer)
    wrapper.executor.observe(observer)
    wrapper._hooks[:] = wrapper.executor.handles


def release_streams(wrapper: Any) -> None:
    """Destroy the process groups of schedules that were in force; every rank does, between the same two steps."""
    wrapper._lanes.keep(wrapper.reducer.messages.streams)


def explain_fixed(wrapper: Any) -> str | None:
    """Why no other schedule may take the place of the one in force; None where one may."""
    if wrapper.reducer.messages.hooked:
        return "a communication hook sends its buckets, which cannot be seen on their way"
    if len(wrapper.communicator.groups) > 1:
        return "it has several process groups, and what one sends says nothing of the others"
    reason: str | None = wrapper._planner.fixed
    return reason
