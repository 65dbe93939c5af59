"""Options of a run written as arguments of a command line: parsed again, they give the same values.

An option of predictions alone whose text has a unit (`--jitter 3%`) would come out as a bare number, which the command
line refuses; no command writes one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any

from ddpsim.common.options.option import Declared, list_declared
from ddpsim.common.units import format_exact


def flag(option: Declared) -> str:
    """Return the flag of an option: `--process-groups`."""
    return _flag(option.name)


def flags(option: Declared) -> list[str]:
    """Return every flag of an option, its own first."""
    return [_flag(name) for name in (option.name, *option.option.also)]


def format_arguments(kind: type, values: Mapping[str, Any]) -> list[str]:
    """Return the arguments for `values`, by field name, of the dataclass `kind`; defaults are left out.

    >>> from ddpsim.simulation.jobs.job_options import JobOptions
    >>> format_arguments(JobOptions, {"accumulate": 2, "broadcast_buffers": False, "stragglers": {3: 1.5}, "seed": 0})
    ['--accumulate', '2', '--no-broadcast-buffers', '--straggler', '3:1.5']
    """
    arguments: list[str] = []
    for option in list_declared(kind):
        if option.field in values and values[option.field] != option.default:
            arguments += _arguments(option, values[option.field])
    return arguments


def _arguments(option: Declared, value: Any) -> Iterator[str]:
    if option.kind is bool:
        yield flag(option)
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from (flag(option), f"{key}:{_join_values(each)}")
    else:
        yield from (flag(option), _join_values(value))


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _join_values(value: Any) -> str:
    return ",".join(map(_text, value)) if isinstance(value, tuple) else _text(value)


def _text(value: Any) -> str:
    if isinstance(value, timedelta):
        return f"{format_exact(value.total_seconds())}s"
    return format_exact(value) if isinstance(value, float) else str(value)
