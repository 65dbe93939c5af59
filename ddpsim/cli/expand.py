"""Options that several commands share, written once: a dataclass parameter becomes one option a field."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any, cast, get_type_hints


def expand(function: Callable[..., None]) -> Callable[..., None]:
    """Return `function` with each parameter that is a dataclass replaced by that dataclass's fields.

    The fields are annotated as typer wants its options; the function gets the dataclass filled in.
    """
    own = inspect.signature(function, eval_str=True).parameters
    groups = {name: cast(type, p.annotation) for name, p in own.items() if dataclasses.is_dataclass(p.annotation)}
    parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for name, p in own.items() if name not in groups]
    for group in groups.values():
        parameters += _parameters(group)

    @functools.wraps(function)
    def expanded(**given: Any) -> None:
        for name, group in groups.items():
            fields = [field.name for field in dataclasses.fields(group)]
            given[name] = group(**{field: given.pop(field) for field in fields})
        function(**given)

    signature = inspect.Signature(parameters)
    expanded.__signature__ = signature  # type: ignore[attr-defined]
    expanded.__annotations__ = {p.name: p.annotation for p in parameters}
    del expanded.__wrapped__
    return expanded


def _parameters(group: Any) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=hints[field.name]
        )
        for field in dataclasses.fields(group)
    ]
