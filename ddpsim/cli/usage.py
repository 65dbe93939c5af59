"""Errors of typer and click in the words of this project: one line, with what was given and where to read on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import typer

from ddpsim.cli.flags import find_command, select_own_arguments
from ddpsim.common.errors import InputError, list_few, shorten

INTERRUPTED = 130
"""Exit code of a command that SIGINT ends."""
USAGE_ERROR = cast(type[Exception], typer.BadParameter.__mro__[2])
"""What every usage error derives from; typer carries click inside and does not export it."""
_LONGEST = 800
"""Characters of a message, whatever was given."""
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
    said = shorten(f"{message.rstrip('.')}{_find_given_value(error, arguments)}", _LONGEST)
    if type(error).__name__ == "NoSuchOption":
        said += _describe_owners(getattr(error, "option_name", ""), whole_command(), program)
    return f"error: {said}; see `{path} --help`"


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
    """Return what was given to the option that `error` is about, which typer's message leaves out."""
    options = getattr(getattr(error, "param", None), "opts", [])
    for number, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name.replace("_", "-") in options and (equals or number + 1 < len(arguments)):
            return f", got {value if equals else arguments[number + 1]!r}"
    return ""


def _describe_owners(flag: str, command: Any, program: str) -> str:
    """Return which commands have the option that another was given; the empty string where none has."""
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
