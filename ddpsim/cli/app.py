"""All commands under one name, and how errors leave: one message on standard error, exit code 2."""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from ddpsim.cli import (
    buckets,
    calibrate,
    collective,
    compare,
    compression,
    constants,
    doctor,
    explain,
    order,
    order_bench,
    paper,
    pipeline,
    plan,
    predict,
    priors,
    sweep,
    topo,
    validate,
    workload,
)
from ddpsim.cli.flags import called, error_in_flags, flags_of
from ddpsim.cli.streams import guarded_streams
from ddpsim.cli.usage import USAGE_ERROR, refuse_repeated, usage_message
from ddpsim.errors import InputError
from ddpsim.stopping import INTERRUPTED, Interrupts
from ddpsim.version import __version__

app = typer.Typer(
    name="ddpsim",
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={
        "token_normalize_func": lambda token: token.replace("_", "-"),
        "help_option_names": ["-h", "--help"],
    },
)
app.command()(predict.predict)
app.command()(sweep.sweep)
app.command()(plan.plan)
app.command()(compare.compare)
app.command()(compression.compression)
app.command()(collective.allreduce)
app.command()(collective.collective)
app.command()(calibrate.calibrate)
app.command()(priors.priors)
app.command()(validate.validate)
app.command()(explain.explain)
app.command()(constants.constants)
app.command()(doctor.doctor)
app.command()(order.order)
app.command("order-bench")(order_bench.order_bench)
app.command()(buckets.buckets)
app.command(add_help_option=False, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(
    paper.paper
)
app.command()(pipeline.pipeline)
app.add_typer(topo.app, name="topo")
app.add_typer(workload.app, name="workload")


def _version(wanted: bool) -> None:
    if wanted:
        print(f"ddpsim {__version__}")
        raise typer.Exit


@app.callback()
def ddpsim(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Predict the iteration latency of PyTorch DistributedDataParallel, and hold predictions against real runs.

    Every command takes --json (one document on stdout). Sizes named *-mb are MiB, as in torch; other quantities carry
    their unit: 50GB/s, 400Gb/s, 2us.
    """


@functools.cache
def whole_command() -> Any:
    """Return click's command of the whole program, made once: typer looks at every option of every command."""
    return typer.main.get_command(app)


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code."""
    return carry_out(whole_command(), arguments, "ddpsim")


def carry_out(command: Any, arguments: Sequence[str], program: str) -> int:
    """Run click's `command` and return its exit code; bad input is one message on standard error, and 2."""
    interrupts = Interrupts()
    try:
        with interrupts.noted():
            return _carry_out(command, arguments, program)
    except BaseException:
        if not interrupts.came:
            raise
        return _fail("interrupted", INTERRUPTED)


def _carry_out(command: Any, arguments: Sequence[str], program: str) -> int:
    try:
        with guarded_streams():
            refuse_repeated(command, arguments)
            code = command(args=list(arguments), prog_name=program, standalone_mode=False, obj=tuple(arguments))
    except InputError as error:
        return _fail(error_in_flags(error, flags_of(called(command, arguments))))
    except (typer.Abort, KeyboardInterrupt):
        return _fail("interrupted", INTERRUPTED)
    except USAGE_ERROR as error:
        print(usage_message(error, arguments, program), file=sys.stderr)
        return 2
    return code if isinstance(code, int) else 0


def _fail(message: str, code: int = 2) -> int:
    print(f"error: {message}", file=sys.stderr)
    return code
