"""What people write against: the help of every command, and the public names of both packages with signatures."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any

from tests.docs.commands import commands, help_of, programs


def surface() -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield helps and names."""
    for program in programs():
        yield f"help of {program}", lambda program=program: help_of(program)
        for words in commands(program):
            yield f"help of {program} {' '.join(words)}", lambda p=program, w=words: help_of(p, *w)
    for package in ("ddpsim", "ddpexec"):
        names = [name for name in dir(importlib.import_module(package)) if not name.startswith("_")]
        yield from ((f"name {package}.{name}", lambda p=package, n=name: described(p, n)) for name in names)


def described(module: str, name: str) -> dict[str, Any]:
    """Return the signature of a public name, and of what a class of that name has for others."""
    found = getattr(importlib.import_module(module), name)
    if not inspect.isclass(found):
        return {"signature": signature(found)}
    members = {key: value for key, value in inspect.getmembers(found) if not key.startswith("_")}
    return {"signature": signature(found), "members": {key: signature(value) for key, value in members.items()}}


def signature(found: Any) -> str:
    """Return parameters with their defaults, annotations left out; of what is not called its kind."""
    try:
        parameters = inspect.signature(found).parameters.values()
    except (TypeError, ValueError):
        return "property" if isinstance(found, property) else "value"
    return f"({', '.join(str(each.replace(annotation=inspect.Parameter.empty)) for each in parameters)})"
