"""Values of options that need no conversion: what typer converts by adapters of pydantic's, is taken as it is.

Typer makes an adapter of every option that is no flag, whether it is given or not; for a prediction, these take a tenth
of a second with pydantic's import. Here only what is surely right is taken: typer converts everything else, and refuses
it in its own words.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from types import NoneType
from typing import Any, get_args, get_type_hints

import typer.models

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
        """Return click's option, which is one object however often it is asked for."""
        found = super().get_help_option(ctx)  # type: ignore[misc]
        if found is not None and "process_value" not in vars(found):
            found.process_value = partial(_process_help, found.process_value)
        return found


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
