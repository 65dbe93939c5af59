"""The program `ddpsim`: its list of commands (`COMMANDS`), and how a command ends (`carry_out`).

`command_for` imports the module of the one command that runs; the others are listed by their summaries. `carry_out`
runs it between guarded streams and prints bad input as one message on standard error, exit code 2: an `InputError` with
its options as flags, or a usage error of typer and click as one line with the value and where to read on. A full disk
behind standard output is one message, a reader that has gone away is none.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Annotated, Any, TextIO, cast

import typer
from typer.core import TyperGroup

from ddpsim.cli.flags import error_in_flags, find_command, flags_of, select_own_arguments
from ddpsim.cli.sections import PlainHelp, SectionedCommand, take_plain_values
from ddpsim.common.errors import InputError, list_few, shorten
from ddpsim.common.stopping import Interrupts
from ddpsim.common.version import __version__

_CONTROLS = {
    code: f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"
    for code in (*range(9), *range(11, 32), *range(127, 160), *range(0x202A, 0x202F), *range(0x2066, 0x206A))
}
"""Characters that move a terminal's cursor, colour it or turn text round: as Python has them."""


@contextlib.contextmanager
def guard_streams() -> Iterator[None]:
    """Guard both streams within the block, and flush standard output at its end.

    A reader that has gone away is no error: the rest is dropped. An error of standard error itself can be reported
    nowhere, and is dropped too.

    Raises:
        InputError: where standard output cannot be written, as on a full disk, or is closed.
    """
    output, error = _Guarded(sys.stdout, _refuse), _Guarded(sys.stderr, lambda reason: None)
    with contextlib.redirect_stdout(cast(TextIO, output)), contextlib.redirect_stderr(cast(TextIO, error)):
        yield
        output.flush()


class _Guarded:
    """A stream whose failure goes to `failed` with its reason, at every use; everything else is the stream's own."""

    def __init__(self, stream: TextIO | None, failed: Callable[[str], None]) -> None:
        self._stream, self._failed = stream, failed
        self._reason: str | None = None

    def write(self, text: str) -> int:
        """Write `text`, with control characters shown instead of sent: names in it come from anybody's files."""
        return self.draw(text.translate(_CONTROLS))

    def draw(self, text: str) -> int:
        """Write `text` as it is, for a line that a program draws on a terminal itself."""
        if self._stream is None:
            self._reason = "it is closed"
        self._attempt(lambda stream: stream.write(text))
        return len(text)

    def flush(self) -> None:
        """Flush the stream."""
        self._attempt(lambda stream: stream.flush())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _attempt(self, act: Callable[[TextIO], object]) -> None:
        if self._stream is not None and self._reason is None:
            try:
                act(self._stream)
            except BrokenPipeError:
                _drop_the_rest(self._stream)
            except OSError as error:
                _drop_the_rest(self._stream)
                self._reason = error.strerror or str(error)
        # Raised again at each use: a library may have swallowed it before.
        if self._reason is not None:
            self._failed(self._reason)


def _drop_the_rest(stream: TextIO) -> None:
    """Let what is still buffered, and all that follows, go nowhere."""
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), stream.fileno())


def _refuse(reason: str) -> None:
    remedy = "send it to a file or program that takes it"
    raise InputError(f"cannot be written: {reason}", place="standard output", remedy=remedy)


INTERRUPTED = 130
"""Exit code of a command that SIGINT ends."""
USAGE_ERROR = cast(type[Exception], typer.BadParameter.__mro__[2])
"""What every usage error derives from; typer carries click inside and does not export it."""
_LONGEST = 800
"""Characters of a message, however long the arguments are."""
_MOST_COMMANDS = 3
"""Commands that are named of those that have an option; chosen by hand, so that the line stays one."""


def usage_message(
    error: BaseException, arguments: Sequence[str], program: str, whole_command: Callable[[], Any]
) -> str:
    """Return `error` as one line to print; the help where a command was called without anything.

    Args:
        error: of the parser.
        arguments: of the program.
        program: its name.
        whole_command: makes the command of the whole program, in which an option is looked for that the called one
            does not have.
    """
    message = getattr(error, "format_message", lambda: str(error))()
    if type(error).__name__ == "NoArgsIsHelpError":
        return str(message)
    context = getattr(error, "ctx", None)
    path = context.command_path if context else program
    line = shorten(f"{message.rstrip('.')}{_find_given_value(error, arguments)}", _LONGEST)
    if type(error).__name__ == "NoSuchOption":
        line += _describe_owners(getattr(error, "option_name", ""), whole_command(), program)
    return f"error: {line}; see `{path} --help`"


def refuse_repeated(command: Any, arguments: Sequence[str]) -> None:
    """Raise for an option that takes one value and is given twice: the parser would keep the last and say nothing.

    Args:
        command: of the whole program; the one that `arguments` call is found in it.
        arguments: of the program; what follows `--` is another's.
    """
    command = find_command(command, arguments)
    options = [param for param in command.params if param.param_type_name == "option"]
    for param in (option for option in options if not option.multiple and not option.is_flag):
        flags = [argument.partition("=")[0] for argument in select_own_arguments(arguments) if argument.startswith("-")]
        if sum(flag in param.opts or flag.replace("_", "-") in param.opts for flag in flags) > 1:
            raise InputError("is given twice and takes one value", place=param.opts[0], remedy="keep one")


def _find_given_value(error: BaseException, arguments: Sequence[str]) -> str:
    """Return the value of the option that `error` is about, which typer's message leaves out."""
    options = getattr(getattr(error, "param", None), "opts", [])
    for number, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name.replace("_", "-") in options and (equals or number + 1 < len(arguments)):
            return f", got {value if equals else arguments[number + 1]!r}"
    return ""


def _describe_owners(flag: str, command: Any, program: str) -> str:
    """Return which commands have an option that the called one lacks; the empty string where none has."""
    owners = [f"`{path}`" for path in _find_owners(flag, command, program)]
    if not owners:
        return ""
    return f", which {list_few(owners, _MOST_COMMANDS)} {'has' if len(owners) == 1 else 'have'}"


def _find_owners(flag: str, command: Any, path: str) -> Iterator[str]:
    """Yield the commands that declare the option `flag`: `command`, called as `path`, and those below it."""
    if any(flag in param.opts for param in command.params):
        yield path
    for name, below in getattr(command, "commands", {}).items():
        yield from _find_owners(flag, below, f"{path} {name}")


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
