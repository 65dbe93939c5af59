"""The command line `python -m ddpexec COMMAND`: one module for each command, listed in `COMMANDS`.

A command reads its options, calls one function of another room and prints what that returns; it measures nothing
itself. torch is imported inside a command, never for `--help`. Errors are raised here and printed by `ddpexec.__main__`
alone, by one rank for all.

Nouns: a command is a typer function; its options are declared in dataclasses here or in `ddpsim.common.options`.

Read first: `run` (train a model and trace it), then `doctor` with `torch_findings` (what torch can do on this machine).

Public modules: none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ddpexec.commands.campaign import campaign
from ddpexec.commands.capture import capture
from ddpexec.commands.demo import demo
from ddpexec.commands.doctor import doctor
from ddpexec.commands.estimate import estimate
from ddpexec.commands.microbench import microbench
from ddpexec.commands.netlab import netlab
from ddpexec.commands.order_run import order_run
from ddpexec.commands.record_orders import record_orders
from ddpexec.commands.run import run

COMMANDS: Mapping[str, Callable[..., None]] = {
    "capture": capture,
    "estimate": estimate,
    "microbench": microbench,
    "netlab": netlab,
    "run": run,
    "campaign": campaign,
    "demo": demo,
    "doctor": doctor,
    "record-orders": record_orders,
    "order-run": order_run,
}

__all__ = ["COMMANDS"]
