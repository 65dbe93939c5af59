"""What a scheme cannot do of what DDP does, and why: refused where it is asked for, before anything is trained."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from ddpexec.ddp.hooks import OPTIMIZERS
from ddpexec.ddp.memory import keeps_parts
from ddpexec.errors import OptionError
from ddpsim.common.operation import Operation
from ddpsim.schedules.message import WORLD
from ddpsim.schedules.schedule import Schedule, averages


def check_hookable(schedule: Schedule) -> None:
    """Refuse a communication hook where what is summed is not whole buckets of gradients, by all ranks at once.

    Raises:
        OptionError: it names the message and says why.
    """
    what = "a communication hook reduces whole buckets of gradients, and message"
    _refuse(
        what, schedule, _find_unhookable(schedule), "use `ddp`, `naive`, `flat` or `priority`, or leave the hook out"
    )


def check_joinable(schedule: Schedule) -> None:
    """Refuse uneven inputs where a step is more than gradients that all ranks sum.

    Raises:
        OptionError: it says what else a rank without input would have to do.
    """
    reasons = {
        "update by gradients that are pushed to servers": bool(schedule.sharding.hosts),
        "update its part of the parameters": schedule.sharding.optimizer > 1,
        "average parameters that it has not trained": any(map(averages, schedule)),
        "choose chunks": any(message.chunks is not None for message in schedule),
        "sum with the ranks of a group alone": any(message.group != WORLD for message in schedule),
    }
    remedy = "give every rank as many inputs, or use `ddp`, `naive`, `flat`, `priority` or `dear`"
    _refuse("join(): a rank without input would have to", schedule, reasons, remedy)


def check_mixable(schedule: Schedule, accumulate: int, mixed: Any) -> None:
    """Refuse `mixed_precision` where weights are read or changed, or gradients added, while they are lowered.

    Args:
        schedule: of a scheme.
        accumulate: iterations of a step of the optimizer.
        mixed: torch's configuration.

    Raises:
        OptionError: it says which of these the scheme does.
    """
    apart = mixed.reduce_dtype not in (None, mixed.param_dtype)
    reasons = {
        "updates parameters in the midst of forward": schedule.update == "before_use",
        "has servers update by what they are sent": schedule.update == "elsewhere",
        "keeps a part of the parameters on a rank": keeps_parts(schedule),
        "averages parameters": any(map(averages, schedule)),
        "adds what it has not sent to later gradients": any(message.chunks is not None for message in schedule),
        "adds gradients of several iterations": accumulate > 1,
        "sums in the type that gradients come in, not in `reduce_dtype`, what no hook can": (
            apart and any(_find_unhookable(schedule).values())
        ),
    }
    remedy = "use torch.autocast, or `ddp`, `naive` or `flat` with one dtype for parameters and sums"
    _refuse("mixed_precision: it", schedule, reasons, remedy)


def check_module_for_scheme(module: nn.Module, scheme: str) -> None:
    """Refuse a module that was prepared for what only DDP does.

    Raises:
        OptionError: names that DDP would leave alone, or optimizers that would step before gradients are summed.
    """
    what, place = "", f"scheme {scheme}"
    if ignored := sorted(getattr(module, "_ddp_params_and_buffers_to_ignore", ())):
        what, remedy = f"{ignored[0]} is to be left alone, and a scheme trains all parameters", "freeze it"
    elif any(hasattr(parameter, OPTIMIZERS) for parameter in module.parameters()):
        what = "its optimizers step in backward, before a scheme has summed the gradients"
        remedy = "let the scheme make the optimizer"
    if what:
        raise OptionError(what, place=place, remedy=f"{remedy}, or use DistributedDataParallel")


def _refuse(what: str, schedule: Schedule, reasons: Mapping[str, bool], remedy: str) -> None:
    """Raise for the first of the reasons that holds."""
    for reason in (reason for reason, holds in reasons.items() if holds):
        raise OptionError(f"{what} {reason}", place=f"scheme {schedule.scheme}", remedy=remedy)


def _find_unhookable(schedule: Schedule) -> dict[str, bool]:
    return {
        f"{message.id!r} {reason}": holds
        for message in schedule
        for reason, holds in (
            ("averages parameters", averages(message)),
            (f"is no allreduce but a {message.op}", message.op is not Operation.ALLREDUCE),
            (f"is of the ranks of {message.group!r} alone", message.group != WORLD),
            ("carries a part of a bucket", message.part is not None),
            ("carries chosen chunks", message.chunks is not None),
            ("is held back for a cycle", bool(message.delay_s)),
        )
    }
