"""In what order a stage of a pipeline computes its micro-batches, and how long that takes.

Sources: GPipe (Huang et al., 2019), whose bubble is (p-1)/(m+p-1) of a step of m micro-batches on p stages; PipeDream
(Narayanan et al., 2019), one forward and one backward in turn, without a flush, and its form with one (2021);
interleaved, where a rank has several stages (Narayanan et al., SC 2021, section 2.2), as torch 2.13 orders them
(`torch/distributed/pipelining/schedules.py`, `ScheduleInterleaved1F1B`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, get_args

from ddpsim.common.errors import InputError, PlanError
from ddpsim.schedules.mesh import SENDS, beside_tensor, group_of_stage
from ddpsim.schedules.points import PointKind
from ddpsim.schedules.schedule import Pass, Schedule

Order = Literal["gpipe", "1f1b", "pipedream", "interleaved"]
ORDERS: tuple[Order, ...] = get_args(Order)

Work = tuple[Literal["forward", "backward"], int]
"""What a stage computes: the forward or the backward of a micro-batch, numbered through all steps."""

StageWork = tuple[Literal["forward", "backward"], int, int]
"""What a rank computes: the forward or the backward of a stage, and the micro-batch's number."""


def work_of(order: Order, stage: int, stages: int, micro_batches: int) -> list[Work]:
    """Return what a stage computes in a step, in order.

    `gpipe` computes all forwards, then all backwards. The others have as many forwards under way as stages are from
    this one to the last, then one backward and one forward in turn.

    >>> work_of("1f1b", 1, 2, 2)
    [('forward', 0), ('backward', 0), ('forward', 1), ('backward', 1)]
    """
    ahead = micro_batches if order == "gpipe" else min(stages - stage, micro_batches)
    works: list[Work] = [("forward", number) for number in range(ahead)]
    for number in range(micro_batches):
        works.append(("backward", number))
        if ahead + number < micro_batches:
            works.append(("forward", ahead + number))
    return works


def works_of(order: Order, ranks: int, micro_batches: int, stages_per_rank: int = 1) -> list[list[StageWork]]:
    """Return what each rank computes in a step, in order; stage s is on rank s modulo `ranks`.

    Raises:
        InputError: `interleaved` with micro-batches that torch's rounds do not divide.

    >>> works_of("gpipe", 2, 1)
    [[('forward', 0, 0), ('backward', 0, 0)], [('forward', 1, 0), ('backward', 1, 0)]]
    """
    if order == "interleaved":
        return [_interleave(rank, ranks, micro_batches, stages_per_rank) for rank in range(ranks)]
    return [
        [(kind, stage, number) for kind, number in work_of(order, stage, ranks, micro_batches)]
        for stage in range(ranks)
    ]


def passes_of(order: Order, works: Sequence[Sequence[StageWork]], place: int, size_bytes: int) -> tuple[Pass, ...]:
    """Return what a rank computes in a step, in order, with what it receives and sends.

    Sends are waited for as torch has it (`torch/distributed/pipelining/schedules.py`, torch 2.13): GPipe's when all
    forwards have been, or all backwards; 1F1B's with the message that is received next after a work of the other kind,
    and else when the next work is done. Sends of interleaved stages are taken to be waited for nowhere.

    Args:
        works: of all ranks.
        size_bytes: of a micro-batch's activations between two stages, and of their gradient.
    """
    own, end = works[place], max(stage for each in works for _, stage, _ in each)
    lasts = {(kind, stage): number for kind, stage, number in own}
    passes: list[Pass] = []
    for at, (kind, stage, number) in enumerate(own):
        # `settles` says when earlier sends are waited for: with this work's own receive, when it is computed, or sent.
        before, settles = find_before(kind, number, stage, end), set[Literal["received", "computed", "sent"]]()
        if at and own[at - 1][0] != kind:
            settles.add("received")
        if order == "1f1b":
            settles.add("computed")
        if at == len(own) - 1:
            settles.add("sent")
        passed_on = stage < end if kind == "forward" else stage > 0
        each = Pass(
            kind,
            stage,
            number,
            lasts[kind, stage] == number,
            None if before is None or before[1] == stage else (group_of_stage(SENDS, before[1]), before[0]),
            (group_of_stage(SENDS, stage), kind) if passed_on else None,
            size_bytes,
            frozenset() if order == "interleaved" else frozenset(settles),
        )
        passes.append(each)
    return tuple(passes)


def beside_stages(
    schedule: Schedule, place: int, tensor_ranks: int, data_ranks: int, passes: tuple[Pass, ...]
) -> Schedule:
    """Return `schedule`, made for `data_ranks` ranks, on the groups of the ranks of one place of a pipeline.

    Args:
        passes: that these compute.

    Raises:
        PlanError: a scheme whose ranks are in groups already, serve others or are threads of one process, or by which
            forward or backward waits for messages: a rank has several of them a step.
    """
    holds = any(point.kind in (PointKind.FORWARD, PointKind.BACKWARD) for each in schedule for point in each.blocks)
    if holds or schedule.update != "after_backward":
        what = "its forward or backward waits for messages, and a stage of a pipeline computes several in a step"
        raise PlanError(what, place=f"scheme {schedule.scheme!r}", remedy="use ddp, naive or flat, or no `pipeline`")
    layered = beside_tensor(schedule, tensor_ranks, data_ranks, "use ddp, naive or flat, or no `pipeline`")
    messages = tuple(replace(each, group=group_of_stage(each.group, place)) for each in layered)
    groups = {group_of_stage(name, place): ranks for name, ranks in layered.groups.items()}
    return replace(layered, messages=messages, groups=groups, passes=passes, place=place)


def _interleave(rank: int, ranks: int, micro_batches: int, stages: int) -> list[StageWork]:
    """Return what a rank computes: as many micro-batches of a stage as there are ranks, then of its next stage.

    Forwards run ahead of backwards by those of all but its last stage, and two for each rank behind it.
    """
    rounds = max(1, micro_batches // ranks)
    if micro_batches % rounds:
        what = f"{micro_batches} micro-batches do not go into {rounds} rounds of {ranks} ranks or more"
        raise InputError(what, place="micro_batches", remedy=f"give a multiple of {ranks}, or at most {ranks}")
    together, count = micro_batches // rounds, stages * micro_batches
    ahead = min((stages - 1) * together + 2 * (ranks - 1 - rank), count)
    numbers: dict[tuple[str, int], int] = {}

    def next_of(kind: Literal["forward", "backward"], step: int) -> StageWork:
        local = step // together % stages
        stage = (local if kind == "forward" else stages - 1 - local) * ranks + rank
        number = numbers[kind, stage] = numbers.get((kind, stage), -1) + 1
        return kind, stage, number

    works = [next_of("forward", step) for step in range(ahead)]
    for step in range(count):
        if ahead + step < count:
            works.append(next_of("forward", ahead + step))
        works.append(next_of("backward", step))
    return works


def count_most_under_way(works: Sequence[StageWork]) -> int:
    """Return the micro-batches whose activations a rank keeps at once, at most, counted by stage."""
    now = most = 0
    for kind, _, _ in works:
        now += 1 if kind == "forward" else -1
        most = max(most, now)
    return most


def count_under_way(order: Order, stage: int, stages: int, micro_batches: int) -> int:
    """Return the micro-batches whose activations a stage keeps at once, at most."""
    return micro_batches if order == "gpipe" else min(stages - stage, micro_batches)


def weight_versions(order: Order, stage: int, stages: int) -> int:
    """Return how many versions of its weights a stage keeps: without a flush one for each micro-batch under way."""
    return stages - stage if order == "pipedream" else 1


def find_end_times(
    works: Sequence[Sequence[StageWork]],
    forward_s: Sequence[float],
    backward_s: Sequence[float],
    sent_s: Sequence[float],
) -> list[float]:
    """Return when each rank has done all its work.

    A forward waits for that of the stage before, a backward for that of the stage behind, and for what they send; each
    waits for what its rank computes before it.

    Args:
        works: of each rank, in order.
        forward_s, backward_s: what one micro-batch takes on each stage.
        sent_s: what the activations, or their gradients, take from each stage to the next, or back.
    """
    last = len(forward_s) - 1
    free = [0.0] * len(works)
    ended: dict[tuple[str, int, int], float] = {}
    places = [0] * len(works)
    moved = True
    while moved:
        moved = False
        for rank, work in enumerate(works):
            while places[rank] < len(work):
                kind, stage, number = work[places[rank]]
                before = find_before(kind, number, stage, last)
                if before is not None and before not in ended:
                    break
                after_s = 0.0 if before is None else ended[before]
                if before is not None and before[1] != stage:
                    after_s += sent_s[min(before[1], stage)]
                took_s = forward_s[stage] if kind == "forward" else backward_s[stage]
                free[rank] = max(free[rank], after_s) + took_s
                ended[kind, stage, number] = free[rank]
                places[rank] += 1
                moved = True
    return free


def find_before(kind: str, number: int, stage: int, last: int) -> tuple[str, int, int] | None:
    """Return what another stage computes before this one can, or the last stage before it turns round."""
    if kind == "forward":
        return ("forward", stage - 1, number) if stage else None
    return ("backward", stage + 1, number) if stage < last else ("forward", stage, number)


def divide_stages(costs: Sequence[float], stages: int) -> list[int]:
    """Return where each stage begins, so that the longest takes the least: consecutive parts, none empty.

    >>> divide_stages([1, 1, 1, 3], 2)
    [0, 3]
    """
    count = len(costs)
    sums = [0.0]
    for cost in costs:
        sums.append(sums[-1] + cost)
    best: list[list[tuple[float, int]]] = [[(sums[end], 0) for end in range(count + 1)]]
    for stage in range(1, stages):
        before = best[-1]
        best.append([_find_least(before, sums, stage, end) for end in range(count + 1)])
    begins, end = [], count
    for stage in range(stages - 1, -1, -1):
        begin = best[stage][end][1] if stage else 0
        begins.append(begin)
        end = begin
    return begins[::-1]


def _find_least(before: Sequence[tuple[float, int]], sums: Sequence[float], stage: int, end: int) -> tuple[float, int]:
    """Return the longest of the stages up to `stage` that end at `end`, at its least, and where the last begins."""
    choices = ((max(before[begin][0], sums[end] - sums[begin]), begin) for begin in range(stage, end))
    return min(choices, default=(float("inf"), 0))
