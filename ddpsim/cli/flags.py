"""The flags of the command line: what Python calls `process_groups` is `--process-groups` there, in errors too."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import PurePath
from typing import Any

from ddpsim.common.errors import InputError

_SPAN = re.compile(r"`([a-z_]+)(?:=([^`]*))?`")
"""An option in a sentence, alone or with a value: `comm`, `comm=noop`."""

_PLACE = re.compile(r"([a-z_]+)(?:=(.*?)|\[([^\]]*)\])?(?=: |$)")
"""An option as a place, alone, with a value or with a key: `drop`, `device=cpu`, `drop[encoder.layer.3]`."""


def flags_of(command: Any) -> Mapping[str, str]:
    """Return the flag of each option of a click command by its name in Python."""
    return {param.name: param.opts[0] for param in command.params if param.param_type_name == "option"}


def find_command(command: Any, arguments: Sequence[str]) -> Any:
    """Return the command that `arguments` call, of the whole program's `command`; what follows `--` is another's."""
    for argument in select_own_arguments(arguments):
        command = getattr(command, "commands", {}).get(argument, command)
    return command


def select_own_arguments(arguments: Sequence[str]) -> list[str]:
    """Return the arguments that are the program's, and not those of a command it is to run."""
    return list(arguments[: arguments.index("--")] if "--" in arguments else arguments)


def write_as_flags(text: str, flags: Mapping[str, str]) -> str:
    """Return `text` with the options in it as flags; what is no option of the command stays.

    >>> write_as_flags("`comm=noop` and `drop` are both given", {"comm": "--comm", "drop": "--drop"})
    '--comm noop and --drop are both given'
    """
    return _SPAN.sub(lambda match: _flag(match, flags), text)


def error_in_flags(error: InputError, flags: Mapping[str, str], arguments: Sequence[str] = ()) -> str:
    """Return what to print of `error`: the place, where it is an option, and options in sentences as flags.

    Args:
        arguments: of the program; a place in a file that one of its options names begins with that option.
    """
    place = None if error.place is None else _option_of(error.place, arguments) + _place(error.place, flags)
    remedy = None if error.remedy is None else write_as_flags(error.remedy, flags)
    return str(InputError(write_as_flags(error.message, flags), place=place, remedy=remedy))


def _option_of(place: str, arguments: Sequence[str]) -> str:
    """Return the option that brought the file that `place` begins with, and a space; nothing where none did.

    >>> _option_of("a.yaml: node", ["predict", "--topology", "a.yaml"])
    '--topology '
    """
    words = [word for each in arguments for word in (each.split("=", 1) if each.startswith("--") else [each])]
    for flag, value in pairwise(words):
        file = "standard input" if value == "-" else value.rpartition("@")[0] or value
        if flag.startswith("-") and any(place == each or place.startswith(f"{each}: ") for each in (file, value)):
            return f"{flag} "
    return ""


def text_in_flags(text: str, flags: Mapping[str, str]) -> str:
    """Return an error that is text already, its place first, as `error_in_flags` does.

    >>> text_in_flags("shapes: no step; give e.g. `shapes=resnet50`", {"shapes": "--shapes"})
    '--shapes: no step; give e.g. --shapes resnet50'
    """
    return write_as_flags(_place(text, flags), flags)


def _place(place: str, flags: Mapping[str, str]) -> str:
    """Return `place` with its option as a flag: the first word, or the last after what it is of.

    In a file it is a key, and stays.

    >>> _place("mixture: expert_parallel", {"expert_parallel": "--expert-parallel"})
    'mixture: --expert-parallel'
    >>> _place("c.yaml: seed", {"seed": "--seed"})
    'c.yaml: seed'
    >>> _place("scheme=zero1:deepspeed", {"scheme": "--scheme"})
    '--scheme zero1:deepspeed'
    """
    match = _PLACE.match(place)
    if match is not None and match[1] in flags:
        return _flag(match, flags) + place[match.end() :]
    of, colon, last = place.rpartition(": ")
    if PurePath(of).suffix:
        return place
    return f"{of}{colon}{flags.get(last, last)}"


def _flag(match: re.Match[str], flags: Mapping[str, str]) -> str:
    name, *values = match.groups()
    return " ".join([flags[name], *filter(None, values)]) if name in flags else match[0]
