"""What `ddpsim explain` prints of a tuner's folder: what was kept, why, its cost, and every plan predicted."""

from __future__ import annotations

from ddpsim.doctor.other_work import OtherWork
from ddpsim.explaining.tuned import Tuning, TuningRound
from ddpsim.tables import table_of
from ddpsim.tables.cells import ms, percent
from ddpsim.units import format_bandwidth, format_count, format_time


def text(tuning: Tuning) -> str:
    """Return a tuner's page as text, its rounds in their order."""
    return "\n\n".join(_round(number, each) for number, each in enumerate(tuning.rounds, 1))


def _round(number: int, told: TuningRound) -> str:
    lines = [
        f"round {number}, from step {told.first_step}: {told.reason}",
        f"kept     {told.kept}{_step(told.kept_step_s)}",
        f"before   {told.present}{_step(told.present_step_s)}",
        f"cost     {_cost(told)}",
    ]
    if told.latency_s is not None:
        rate = "" if told.bandwidth is None else f" and {format_bandwidth(told.bandwidth)}"
        probes = f", {format_count(told.probed, 'probing plan')}" if told.probed else ""
        lines.append(f"measured allreduces of {format_time(told.latency_s)}{rate}{probes}")
    other = OtherWork.read(told.model_dump(include={"other_work_processors", "processors"}))
    lines += [] if other is None else [f"note     {line}" for line in other.notes()]
    if told.plans:
        lines += ["", table_of("tuning", [each.model_dump() for each in told.plans]).text()]
    return "\n".join(lines)


def _step(seconds: float | None) -> str:
    return "" if seconds is None else f", {format_time(seconds)} a step"


def _cost(told: TuningRound) -> str:
    share = ""
    if told.present_step_s and told.steps:
        share = f", {percent(told.lost_s / (told.steps * told.present_step_s))} of their time"
    own = f"{ms(told.own_s)} ms of it between steps"
    return f"{format_count(told.steps, 'step')}, {ms(told.lost_s)} ms lost to the search{share}, {own}"
