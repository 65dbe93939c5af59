"""The text of a job's construction and first iterations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddpsim.common.tables import table_of
from ddpsim.common.tables.cells import ms, percent

if TYPE_CHECKING:
    from ddpsim.prediction.first import FirstIterations


def format_first(first: FirstIterations) -> str:
    """Return the construction, a row an iteration, and when they are steady."""
    from ddpsim.common.units import format_count, format_size, format_time

    setup, lines = first.construction, []
    if setup is not None:
        pieces = format_count(sum(message.tensors > 0 for message in setup.messages), "message")
        lines.append(
            f"construction  {format_time(setup.seconds)}: {format_size(setup.state_bytes)} of parameters and buffers "
            f"broadcast from rank 0 in {pieces}"
        )
    rows = [
        {
            "iteration": f"{each.simulated.index}{' (rebuilt)' if each.rebuilt else ''}",
            "buckets": each.buckets,
            "time_s": each.simulated.iteration_s,
            "steady-state ms": ms(each.steady_s),
            "exposed_comm_s": each.simulated.exposed_comm_s,
            "ddp_overhead_s": each.simulated.ddp_overhead_s,
        }
        for each in first.iterations
    ]
    lines += ["", table_of("", rows).text(), "", _format_steady(first)]
    return "\n".join(lines).strip()


def _format_steady(first: FirstIterations) -> str:
    from ddpsim.common.units import format_count, format_time

    count, begins = len(first.iterations), first.steady_from
    several = format_count(count, "iteration")
    if begins is None:
        return f"not in the steady state within {several}: the last still is over 1 % off"
    steady_s = sum(each.steady_s for each in first.iterations)
    share, than = percent(abs(first.longer_s) / steady_s), "longer" if first.longer_s > 0 else "shorter"
    longer = f"the first {several} take {format_time(abs(first.longer_s))} ({share}) {than} than later ones"
    return f"steady state from iteration {begins}" + (f"; {longer}" if begins else "")
