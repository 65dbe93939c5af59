"""All commands under one name, and how errors leave: one message on standard error, exit code 2."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from ddpsim.cli.flags import error_in_flags, find_command, flags_of
from ddpsim.cli.sections import PlainHelp, SectionedCommand, take_plain_values
from ddpsim.cli.streams import guard_streams
from ddpsim.cli.usage import INTERRUPTED, USAGE_ERROR, refuse_repeated, usage_message
from ddpsim.common.errors import InputError
from ddpsim.common.stopping import Interrupts
from ddpsim.common.version import __version__


@dataclass(frozen=True, slots=True)
class Listed:
    """A command as the program's help lists it, before its module is imported.

    Attributes:
        name: on the command line.
        summary: first sentence of its help.
        module: of `ddpsim.cli`; None is the name.
        group: whether it has commands of its own.
        settings: how it is registered.
    """

    name: str
    summary: str
    module: str | None = None
    group: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)

    def register(self, program: typer.Typer) -> None:
        """Import the command and make it one of `program`."""
        module = import_module(f"ddpsim.cli.{self.module or self.name.replace('-', '_')}")
        if self.group:
            program.add_typer(module.app, name=self.name)
        else:
            program.command(self.name, cls=SectionedCommand, **self.settings)(
                getattr(module, self.name.replace("-", "_"))
            )

    def mention(self, program: typer.Typer) -> None:
        """Let `program` list the command, which cannot be called."""
        program.command(self.name, help=self.summary)(lambda: None)


COMMANDS = (
    Listed("predict", "Predict an iteration's latency, its breakdown and every bucket."),
    Listed("sweep", "Predict every bucket cap at every node count."),
    Listed(
        "plan",
        "Find the bucket sizes that make an iteration shortest, with --schemes the scheme, or with --search all of it.",
    ),
    Listed("compare", "Compare machines before buying: time, efficiency, memory, links and cost, each with its band."),
    Listed(
        "compression",
        "Find the rate of the NICs below which compressed gradients make a step faster, with its 80 % band.",
    ),
    Listed("allreduce", "Predict allreduce times, in nccl-tests' columns.", "collective"),
    Listed("collective", "Predict an operation's times, in nccl-tests' columns."),
    Listed("calibrate", "Fit a machine's link constants to measured tables of collectives."),
    Listed("validate", "Hold a prediction against a measured run."),
    Listed(
        "explain",
        "Explain a traced run: where its step goes, which rank is late and why, what other buckets would gain.",
    ),
    Listed(
        "constants",
        "List the constants that predictions rest on: value, unit, source, doubt, and whether each is a prior.",
    ),
    Listed("doctor", "Say what this machine and this torch can do, each line with the command that proves it."),
    Listed("order", "Report how far ranks, iterations and the buckets in force disagree on the order of gradients."),
    Listed("order-bench", "Replay order traces under order policies, with what conferring and rebuilding cost."),
    Listed("buckets", "Show a model's buckets in launch order, and why each closed."),
    Listed(
        "paper",
        'Reproduce the evaluation of Li et al., "PyTorch Distributed" (VLDB 2020): `python -m studies.paper`.',
        settings={
            "add_help_option": False,
            "context_settings": {"allow_extra_args": True, "ignore_unknown_options": True},
        },
    ),
    Listed(
        "pipeline",
        "Predict the step of a model in stages (GPipe, PipeDream) or in cut layers (Mesh-TensorFlow), and its bubble.",
    ),
    Listed("topo", "List, show and import machines: graphs of links.", group=True),
    Listed("workload", "List, show and import workloads: one rank's recorded iterations.", group=True),
)
"""All commands, in the order of the help; `tests/ddpsim/cli/test_app.py` holds the summaries against theirs."""


def _version(wanted: bool) -> None:
    if wanted:
        print(f"ddpsim {__version__}")
        raise typer.Exit


def ddpsim(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Predict the iteration latency of PyTorch DistributedDataParallel, and hold predictions against real runs.

    Every command takes --json (one document on stdout). Sizes named *-mb are MiB, as in torch; other quantities carry
    their unit: 50GB/s, 400Gb/s, 2us.
    """


class Program(PlainHelp, TyperGroup):
    """The group of all commands."""


@functools.cache
def command_for(name: str | None) -> Any:
    """Return click's command of the program with one command that can be called, the others only listed.

    Only that one's module is imported. The command is made once: typer looks at every option.

    Args:
        name: of the command; None makes all that can be called.
    """
    program = typer.Typer(
        name="ddpsim",
        cls=Program,
        no_args_is_help=True,
        rich_markup_mode=None,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={
            "token_normalize_func": lambda token: token.replace("_", "-"),
            "help_option_names": ["-h", "--help"],
        },
    )
    for each in COMMANDS:
        (each.register if name in (None, each.name) else each.mention)(program)
    program.callback()(ddpsim)
    command = typer.main.get_command(program)
    take_plain_values(command)
    return command


def whole_command() -> Any:
    """Return click's command of the whole program."""
    return command_for(None)


def command_name(arguments: Sequence[str]) -> str:
    """Return the command that `arguments` name; the empty string where they name none."""
    return next((argument.replace("_", "-") for argument in arguments if not argument.startswith("-")), "")


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code; the modules of the others stay unread."""
    return carry_out(command_for(command_name(arguments)), arguments, "ddpsim", whole=whole_command)


def print_error(message: str, error: InputError | None) -> None:
    """Write `message` to standard error; `error` is what it is made of, where it is not of the usage."""
    print(message, file=sys.stderr)


Say = Callable[[str, InputError | None], None]
"""How a program tells of bad input: `print_error`, or what lets one of several processes speak."""


def carry_out(
    command: Any,
    arguments: Sequence[str],
    program: str,
    say: Say = print_error,
    *,
    whole: Callable[[], Any] | None = None,
) -> int:
    """Run click's `command` and return its exit code; bad input is one message on standard error, and 2.

    Args:
        command: of the program.
        arguments: of the program.
        program: its name.
        say: tells of bad input.
        whole: makes the program's command with all of its commands, where `command` only lists the others.
    """
    interrupts = Interrupts()
    try:
        with interrupts.note_interrupts():
            return _carry_out(command, arguments, program, say, whole or (lambda: command))
    except BaseException:
        if not interrupts.came:
            raise
        return _interrupted()


def _carry_out(command: Any, arguments: Sequence[str], program: str, say: Say, whole_command: Callable[[], Any]) -> int:
    try:
        with guard_streams():
            refuse_repeated(command, arguments)
            code = command(args=list(arguments), prog_name=program, standalone_mode=False, obj=tuple(arguments))
    except InputError as error:
        say(f"error: {error_in_flags(error, flags_of(find_command(command, arguments)), arguments)}", error)
        return 2
    except (typer.Abort, KeyboardInterrupt):
        return _interrupted()
    except USAGE_ERROR as error:
        say(usage_message(error, arguments, program, whole_command), None)
        return 2
    return code if isinstance(code, int) else 0


def _interrupted() -> int:
    print("error: interrupted", file=sys.stderr)
    return INTERRUPTED
