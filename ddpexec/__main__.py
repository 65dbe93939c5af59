"""`python -m ddpexec COMMAND`: one file a command in `ddpexec.commands`; only this one prints errors and exits."""

import sys

if __name__ == "__main__":
    try:
        from ddpsim.cli import end_on_interrupt

        end_on_interrupt()
    except KeyboardInterrupt:  # what answers it was not there yet
        print("error: interrupted", file=sys.stderr)
        sys.exit(130)

import functools
import gc
import os
from collections.abc import Sequence
from typing import Any

import typer

from ddpexec.commands import COMMANDS
from ddpexec.errors import LostRankError
from ddpexec.groups.environment import adopt_mpirun
from ddpexec.groups.environment import speak
from ddpsim.cli.app import carry_out
from ddpsim.cli.sections import SectionedCommand
from ddpsim.common.errors import InputError

_PROGRAM = "python -m ddpexec"


def app() -> typer.Typer:
    """Return the command line with every command that is built."""
    settings = {"token_normalize_func": lambda token: token.replace("_", "-"), "help_option_names": ["-h", "--help"]}
    application = typer.Typer(
        name=_PROGRAM,
        add_completion=False,
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings=settings,
    )
    application.callback()(_ddpexec)
    for name, command in COMMANDS.items():
        application.command(name, cls=SectionedCommand)(command)
    return application


@functools.cache
def whole_command() -> Any:
    """Return click's command of the whole program, made once."""
    return typer.main.get_command(app())


def run(arguments: Sequence[str]) -> int | str | None:
    """Run one command and return its exit code; bad input is one message on stderr, from rank 0 alone, and 2."""
    try:
        return carry_out(whole_command(), arguments, _PROGRAM, _say)
    except SystemExit as done:
        return done.code


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit."""
    code = run(sys.argv[1:] if arguments is None else arguments)
    # A process group that lives, in some cycle, until the interpreter goes down aborts it: its threads still run.
    gc.collect()
    sys.exit(code)


def _say(message: str, error: InputError | None) -> None:
    speak(message, error.speaker if isinstance(error, LostRankError) else 0)


def _ddpexec() -> None:
    """Run, measure and trace distributed data parallel training on torch.distributed."""


def _run_and_leave() -> None:
    """Run the command and end the process at once, without the interpreter's own teardown.

    gloo's threads may still wind down then; where teardown destroys one that runs, C++ aborts, and a finished rank
    would look like a failed one.
    """
    code: object = 0
    adopt_mpirun()
    try:
        main()
    except SystemExit as end:
        code = end.code
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 0 if code is None else 1)


if __name__ == "__main__":
    _run_and_leave()
