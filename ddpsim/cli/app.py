"""All commands under one name, and how errors leave: one message on standard error, exit code 2."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, cast

import typer

from ddpsim import __version__
from ddpsim.cli import allreduce, buckets, calibrate, order, plan, predict, topo, validate, workload
from ddpsim.errors import InputError

_CLICK = cast(type[Exception], typer.BadParameter.__mro__[2])

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
app.command()(predict.sweep)
app.command()(plan.plan)
app.command()(allreduce.allreduce)
app.command()(calibrate.calibrate)
app.command()(validate.validate)
app.command()(order.order)
app.command()(buckets.buckets)
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
    their unit: 50GB/s, 400Gb/s, 2us, 25MiB.
    """


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code."""
    try:
        code = app(args=list(arguments), prog_name="ddpsim", standalone_mode=False)
    except InputError as error:
        return _fail(str(error))
    except typer.Abort:
        return _fail("interrupted", 130)
    except _CLICK as error:
        return _usage(error, arguments)
    except KeyboardInterrupt:
        return _fail("interrupted", 130)
    return code if isinstance(code, int) else 0


def _usage(error: BaseException, arguments: Sequence[str]) -> int:
    message = getattr(error, "format_message", lambda: str(error))()
    if not message:
        return 2
    context = getattr(error, "ctx", None)
    path = context.command_path if context else "ddpsim"
    return _fail(f"{message.rstrip('.')}{_given(error, arguments)}; see `{path} --help`")


def _given(error: BaseException, arguments: Sequence[str]) -> str:
    """Return what was given to the option that `error` is about, which typer's message leaves out."""
    options = getattr(getattr(error, "param", None), "opts", [])
    for number, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name.replace("_", "-") in options and (equals or number + 1 < len(arguments)):
            return f", got {value if equals else arguments[number + 1]!r}"
    return ""


def _fail(message: str, code: int = 2) -> int:
    print(f"error: {message}", file=sys.stderr)
    return code
