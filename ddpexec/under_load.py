"""How much a running backward and a running collective slow each other, measured with a real model.

Computation: forward and backward of the model on every rank, first alone, then while a second thread keeps exactly one
collective in flight. Communication: those collectives, first with idle ranks, then beside the computation. Both loops
run in one and the same time, so that the two factors belong together.
"""

from __future__ import annotations

import statistics
import threading
from collections.abc import Callable
from dataclasses import dataclass

import torch

from ddpexec.launched import Launched
from ddpexec.models import MODELS, build
from ddpexec.stopwatch import Span, agreed, gather, last_to_last, seconds_of, span_of
from ddpsim.errors import InputError
from ddpsim.workload import Workload

SIZE_BYTES = 25 << 20
"""Of the collectives: torch's default bucket."""

_LEAST, _MOST = 4, 200


@dataclass(frozen=True, slots=True)
class Slowdowns:
    """Factors on undisturbed times, at least one each.

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
    name = workload.name.partition("@")[0]
    if name not in MODELS:
        remedy = f"give a workload of one of {', '.join(MODELS)}"
        raise InputError(f"{workload.name!r} is of no shipped model", place="--under-load", remedy=remedy)
    model = build(name, device)
    batch = model.make_batch(workload.batch_size, device)

    def compute() -> None:
        model.module.zero_grad(set_to_none=True)
        model.loss(model.module(*batch.inputs), batch).backward()  # type: ignore[no-untyped-call]

    return compute


def measure_slowdowns(launched: Launched, compute: Callable[[], None], seconds: float = 2.0) -> Slowdowns:
    """Return the slow-downs of `compute`, one step of work, and of collectives of `SIZE_BYTES`.

    `seconds` is about what each of the four measurements may take.
    """
    communicator, device = launched.communicator, launched.device
    tensor = torch.ones(SIZE_BYTES // 4, device=device)

    def collective() -> Span:
        return span_of(lambda: communicator.all_reduce(tensor, 0).wait(), device)

    compute()
    first_s = _rank_zero_alone(launched, compute, seconds)
    steps = _count(seconds, agreed(first_s, communicator))
    communicator.main.barrier().wait()
    together_s = agreed(statistics.median(seconds_of(compute, device) for _ in range(steps)), communicator)
    quiet_s = _collectives(launched, collective, _count(seconds, last_to_last([collective()], communicator)[0]))
    collectives = _count(seconds, quiet_s)
    communicator.main.barrier().wait()
    busy_s, loaded_s = _beside(launched, compute, collective, collectives)
    return Slowdowns(
        compute_slowdown=max(1.0, agreed(busy_s, communicator) / together_s),
        communication_slowdown=max(1.0, loaded_s / quiet_s),
        shared_compute_slowdown=max(1.0, together_s / agreed(first_s, communicator)),
    )


def _rank_zero_alone(launched: Launched, compute: Callable[[], None], budget_s: float) -> float:
    """Return rank 0's seconds a step while the others sleep in a barrier; the same on every rank."""
    communicator = launched.communicator
    seconds = 0.0
    if communicator.rank == 0:
        count = _count(budget_s, seconds_of(compute, launched.device))
        seconds = statistics.median(seconds_of(compute, launched.device) for _ in range(count))
    communicator.main.barrier().wait()
    return gather([seconds], communicator)[0][0]


def _collectives(launched: Launched, collective: Callable[[], Span], count: int) -> float:
    """Return the median of `count` collectives."""
    return statistics.median(last_to_last([collective() for _ in range(count)], launched.communicator))


def _beside(
    launched: Launched, compute: Callable[[], None], collective: Callable[[], Span], count: int
) -> tuple[float, float]:
    """Return the median step while `count` collectives run one after the other, and their median."""
    spans: list[Span] = []
    stream = torch.cuda.Stream(launched.device) if launched.device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def communicate() -> None:
        if stream is not None:  # each thread has a current device of its own
            torch.cuda.set_device(launched.device)
        with torch.cuda.stream(stream):
            spans.extend(collective() for _ in range(count))

    thread = threading.Thread(target=communicate)
    steps: list[float] = []
    thread.start()
    while thread.is_alive():
        steps.append(seconds_of(compute, launched.device))
    thread.join()
    if len(spans) < count:
        raise InputError("a collective failed beside the computation", place="--under-load")
    # The last step may have run on when the collectives were over.
    return statistics.median(steps[:-1] or steps), statistics.median(last_to_last(spans, launched.communicator))


def _count(budget_s: float, each_s: float) -> int:
    return max(_LEAST, min(_MOST, round(budget_s / max(each_s, 1e-6))))
