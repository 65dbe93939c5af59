"""Errors of typer and click in the words of this project: one line, with what was given and where to read on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import typer

USAGE_ERROR = cast(type[Exception], typer.BadParameter.__mro__[2])
"""What every usage error derives from; typer carries click inside and does not export it."""


def usage_message(error: BaseException, arguments: Sequence[str], program: str) -> str:
    """Return `error` as one line to print; the help where a command was called without anything."""
    message = getattr(error, "format_message", lambda: str(error))()
    if type(error).__name__ == "NoArgsIsHelpError":
        return str(message)
    context = getattr(error, "ctx", None)
    path = context.command_path if context else program
    return f"error: {message.rstrip('.')}{_given(error, arguments)}; see `{path} --help`"


def _given(error: BaseException, arguments: Sequence[str]) -> str:
    """Return what was given to the option that `error` is about, which typer's message leaves out."""
    options = getattr(getattr(error, "param", None), "opts", [])
    for number, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name.replace("_", "-") in options and (equals or number + 1 < len(arguments)):
            return f", got {value if equals else arguments[number + 1]!r}"
    return ""
