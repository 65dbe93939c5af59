"""Numbers in sentences: times, shares and their bands as a verdict says them."""

from __future__ import annotations

from collections.abc import Iterable

from ddpsim.common.units import format_count, format_time
from ddpsim.planning.ranking import describe_borrowed, list_unranked
from ddpsim.prediction.prediction import Prediction


def step(prediction: Prediction) -> str:
    """Return the optimizer's step with its band, `178.5 ms (80 % band 135.8 to 253.6 ms)`, and its micro-batches."""
    return format_time_band(*prediction.step_s) + format_each(prediction.options.accumulate, prediction.iteration_s)


def format_each(accumulate: int, one_s: float) -> str:
    """Return what stands behind a step's time where it has several micro-batches: ` of 4 micro-batches, 45 ms each`."""
    return "" if accumulate == 1 else f" of {accumulate} micro-batches, {format_time(one_s)} each"


def format_one_step(accumulate: int) -> str:
    """Return what a timeline draws, as its title and the first words of its note."""
    return "One step" if accumulate == 1 else "One micro-batch of a step"


def format_time_band(seconds: float, low_s: float | None, high_s: float | None) -> str:
    """Return a time with its band, where it has one."""
    if low_s is None or high_s is None or low_s == high_s:
        return format_time(seconds)
    return f"{format_time(seconds)} (80 % band {format_time(low_s)} to {format_time(high_s)})"


def format_share_band(share: float, low: float, high: float) -> str:
    """Return a share with its band: `8.4 % (80 % band 6.1 to 10.2 %)`."""
    return (
        f"{100 * share:.1f} %"
        if low == high
        else f"{100 * share:.1f} % (80 % band {100 * low:.1f} to {100 * high:.1f} %)"
    )


def rate(prediction: Prediction) -> str:
    """Return the samples a second of all ranks that train."""
    return f"{prediction.samples_per_s:,.0f} samples a second"


def format_where(prediction: Prediction) -> str:
    """Return machine and nodes: `2 nodes of dgx-1v`."""
    return f"{format_count(prediction.nodes, 'node')} of {prediction.topology.name}"


def format_signed(share: float | None) -> str:
    """Return a signed share: `+1.6 %`."""
    return "–" if share is None else f"{100 * share:+z.1f} %"


def format_number_band(middle: float, low: float, high: float) -> str:
    """Return a number of four digits with its band: `1,434 (80 % band 1,010 to 1,885)`."""
    if low == high:
        return _digits(middle)
    return f"{_digits(middle)} (80 % band {_digits(low)} to {_digits(high)})"


def _digits(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def format_unranked(predictions: Iterable[Prediction]) -> list[str]:
    """Return which predictions no verdict ranks, and which rest on steps of other GPUs, a sentence a reason."""
    every = list(predictions)
    return [
        *(f"{said}." for said in describe_borrowed(every)),
        *(
            f"Not ranked: {', '.join(dict.fromkeys(map(format_where, found)))}: {why}."
            for why, found in list_unranked(every)
        ),
    ]
