"""How much a running backward and a running collective slow each other, measured with a real model.

Computation: forward and backward of the model on every rank, first alone, then while a second thread keeps exactly one
collective in flight. Communication: those collectives, first with idle ranks, then beside the computation. Both loops
run in one and the same time, so that the two factors belong together.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from ddpexec.capturing.models import MODELS, build, flush_denormals
from ddpexec.groups.launched import Launched
from ddpexec.groups.threads import in_thread
from ddpexec.timing.stopwatch import Span, agree_on_median, allreduces_span, gather, measure_last_to_last, seconds_of
from ddpsim.common.errors import InputError
from ddpsim.workload import Workload

SIZE_BYTES = 25 << 20
"""Of the collectives: torch's default bucket."""

SECONDS = 8.0
"""About what each of the four measurements takes; chosen by hand, the default of `--load-seconds`."""
ROUNDS = 6
"""Rounds in which the four are taken by turns; chosen by hand."""
_LEAST, _MOST = 2, 200
"""Repetitions in one round, whatever the seconds allow; chosen by hand."""


@dataclass(frozen=True, slots=True)
class Slowdowns:
    """Slow-downs are factors on undisturbed times, each at least one.

    Attributes:
        compute_slowdown: of computation while a collective is in flight.
        communication_slowdown: of a collective while the ranks compute.
        shared_compute_slowdown: of computation when all ranks of a machine compute, against rank 0 alone.
    """

    compute_slowdown: float
    communication_slowdown: float
    shared_compute_slowdown: float


def computation_of(workload: Workload, device: torch.device) -> Callable[[], None]:
    """Return one forward and backward of the shipped model that `workload` is a profile of, at its batch size.

    Raises:
        InputError: a workload of no shipped model, which cannot be run.
    """
    try:
        model = build(workload.name.partition("@")[0], device)
    except InputError as error:
        remedy = f"give a workload of one of {', '.join(MODELS)}"
        raise InputError(f"{workload.name!r} is of no shipped model", place="under_load", remedy=remedy) from error
    batch = model.make_batch(workload.batch_size, device)

    def compute() -> None:
        with flush_denormals():
            model.module.zero_grad(set_to_none=True)
            model.loss(model.module(*batch.inputs), batch).backward()  # type: ignore[no-untyped-call]

    return compute


def measure_slowdowns(
    launched: Launched, compute: Callable[[], None], seconds: float = SECONDS, rounds: int = ROUNDS
) -> Slowdowns:
    """Return the slow-downs of `compute`, one step of work, and of collectives of `SIZE_BYTES`.

    `seconds` is about what each of the four measurements may take. They are taken by turns, in `rounds`: a processor's
    speed wanders within seconds, and a factor is of times that were taken beside each other.
    """
    communicator, device = launched.communicator, launched.device
    tensor = torch.ones(SIZE_BYTES // 4, device=device)
    collective = partial(allreduces_span, communicator, tensor)
    compute()
    step_s = agree_on_median(seconds_of(compute, device), communicator)
    quiet_s = measure_last_to_last([collective() for _ in range(2)], communicator)[-1]
    budget_s = seconds / rounds
    steps, collectives = _count(budget_s, step_s), _count(max(budget_s, 2 * step_s), quiet_s)
    factors = [measure_round(launched, compute, collective, steps, collectives) for _ in range(rounds)]
    return Slowdowns(*(max(1.0, statistics.median(each)) for each in zip(*factors, strict=True)))


def measure_round(
    launched: Launched, compute: Callable[[], None], collective: Callable[[], Span], steps: int, collectives: int
) -> tuple[float, float, float]:
    """Return the three factors, of computation, communication and shared computation, of one turn of each."""
    communicator, device = launched.communicator, launched.device
    alone_s = _rank_zero_alone(launched, compute, steps)
    together_s = agree_on_median(statistics.median(seconds_of(compute, device) for _ in range(steps)), communicator)
    quiet_s = _collectives(launched, collective, collectives)
    communicator.barrier()
    busy_s, loaded_s = measure_beside(launched, compute, collective, collectives)
    return agree_on_median(busy_s, communicator) / together_s, loaded_s / quiet_s, together_s / alone_s


def _rank_zero_alone(launched: Launched, compute: Callable[[], None], count: int) -> float:
    """Return rank 0's seconds a step, of `count`, while the others sleep in a barrier; the same on every rank."""
    communicator = launched.communicator
    seconds = 0.0
    if communicator.rank == 0:
        seconds = statistics.median(seconds_of(compute, launched.device) for _ in range(count))
    communicator.barrier()
    return gather([seconds], communicator)[0][0]


def _collectives(launched: Launched, collective: Callable[[], Span], count: int) -> float:
    """Return the median of `count` collectives."""
    return statistics.median(measure_last_to_last([collective() for _ in range(count)], launched.communicator))


def measure_beside(
    launched: Launched, compute: Callable[[], None], collective: Callable[[], Span], count: int
) -> tuple[float, float]:
    """Return the median step while `count` collectives run one after the other, and their median."""
    stream = torch.cuda.Stream(launched.device) if launched.device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def communicate() -> list[Span]:
        if stream is not None:  # each thread has a current device of its own
            torch.cuda.set_device(launched.device)
        with torch.cuda.stream(stream):
            return [collective() for _ in range(count)]

    sender = in_thread(communicate)
    steps: list[float] = []
    while not sender.done():
        steps.append(seconds_of(compute, launched.device))
    spans = sender.result()
    # The last step may have run on when the collectives were over.
    return statistics.median(steps[:-1] or steps), statistics.median(measure_last_to_last(spans, launched.communicator))


def _count(budget_s: float, each_s: float) -> int:
    return max(_LEAST, min(_MOST, round(budget_s / max(each_s, 1e-6))))
