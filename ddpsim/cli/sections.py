"""A command's help in the sections of its options, and values of options that need no conversion, taken as they are.

Typer makes an adapter of pydantic's of every option that is no flag, whether it is given or not; for a prediction,
these take a tenth of a second with pydantic's import. Here only what is surely right is taken: typer converts
everything else, and refuses it in its own words.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from types import NoneType
from typing import Any, get_args, get_type_hints

import typer.models
from typer.core import TyperCommand

from ddpsim.common.options.option import Section

_WHOLE = re.compile("[0-9]{1,9}", re.ASCII)


def take_plain_values(command: Any) -> None:
    """Let each option of click's `command`, and of those below it, take values that need no conversion as they are."""
    for each in getattr(command, "commands", {}).values():
        take_plain_values(each)
    if command.callback is None:
        return
    hints = get_type_hints(command.callback, include_extras=True)
    for param in command.params:
        kind, *marks = get_args(hints.get(param.name)) or (None,)
        info = next((mark for mark in marks if isinstance(mark, typer.models.ParameterInfo)), None)
        if info is None or param.callback or info.parser or getattr(info, "click_type", None):
            continue  # it has a conversion of its own
        kinds = set(get_args(kind) or [kind]) - {NoneType}
        take = partial(_process, param, kinds.pop() if len(kinds) == 1 else None, info)
        param.process_value = partial(take, param.process_value)


class PlainHelp:
    """A base of click's commands whose `--help` needs no conversion where it is not given."""

    def get_help_option(self, ctx: Any) -> Any:
        """Return click's option, which is one object at every call."""
        option = super().get_help_option(ctx)  # type: ignore[misc]
        if option is not None and "process_value" not in vars(option):
            option.process_value = partial(_process_help, option.process_value)
        return option


def _process_help(convert: Callable[[Any, Any], Any], context: Any, value: Any) -> Any:
    return None if value is None else convert(context, value)


def _process(
    param: Any,
    kind: Any,
    info: typer.models.ParameterInfo,
    convert: Callable[[Any, Any], Any],
    context: Any,
    value: Any,
) -> Any:
    if not param.required and value is None:
        return () if param.multiple or param.nargs == -1 else None
    if param.nargs == 1 and not param.multiple:
        if kind in (str, int, float) and type(value) is kind:
            return value
        if kind is int and isinstance(value, str) and _WHOLE.fullmatch(value) and _lies_within(int(value), info):
            return int(value)
    return convert(context, value)


def _lies_within(value: int, info: Any) -> bool:
    return (info.min is None or value >= info.min) and (info.max is None or value <= info.max)


_FEWEST = 20
"""Options of a command that are shown in sections; fewer fit on a screen. Chosen by hand."""
_ARGUMENTS = "Arguments"
_FIRST = "Options"
"""What an option stands under that names no section."""


class SectionedCommand(PlainHelp, TyperCommand):
    """Show the options of a command that has many in sections, in the order of `Section`."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments and options with their help into click's `formatter`."""
        params = self.get_params(ctx)
        if len(params) < _FEWEST:
            super().format_options(ctx, formatter)
            return
        rows: dict[str, list[tuple[str, str]]] = {section: [] for section in (_ARGUMENTS, _FIRST, *Section)}
        for param in params:
            record = param.get_help_record(ctx)
            if record is not None:
                rows[_section_of(param)].append(record)
        for section, records in rows.items():
            if records:
                with formatter.section(section):
                    formatter.write_dl(records)


def _section_of(param: Any) -> str:
    """Return the section of a parameter; click itself declares `--help`."""
    if param.param_type_name == "argument":
        return _ARGUMENTS
    return Section.OUTPUT if param.name == "help" else getattr(param, "rich_help_panel", None) or _FIRST
