"""Options on the command line: `expand` makes one option of each field of a parameter that is a dataclass.

typer reads a function's signature: `expand` gives it one with the fields as parameters, and calls the function with the
dataclasses that it builds of the values. A dataclass is of one of two kinds: with `Option`s, the declarations that both
packages share, or annotated for typer, the command's own arguments.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, get_args, get_type_hints

import typer

from ddpsim.cli.flags import write_as_flags
from ddpsim.common.options.arguments import flag, flags
from ddpsim.common.options.option import Declared, build, list_declared, section_of


@dataclass(frozen=True, slots=True)
class OnlyFields:
    """Mark in the annotation of a parameter: these fields alone are options of the command.

    Attributes:
        help: the help of some of them in this command, where the dataclass's is of other commands.
    """

    names: tuple[str, ...]
    help: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Group:
    """A parameter that is a dataclass, and which of its fields the command takes."""

    kind: Any
    only: OnlyFields | None
    taken: Container[str]

    @classmethod
    def of(cls, annotation: Any, kind: Any, taken: Container[str]) -> _Group:
        """Return the group of a parameter's annotation, which is `kind` or names some of its fields."""
        only = next((mark for mark in getattr(annotation, "__metadata__", ()) if isinstance(mark, OnlyFields)), None)
        return cls(kind, only, taken)

    @property
    def options(self) -> list[Declared]:
        """The options that the dataclass declares and the command does not declare itself."""
        declared = (each for each in list_declared(self.kind) if each.field not in self.taken)
        return [each for each in declared if self.only is None or each.field in self.only.names]

    def parameters(self) -> list[inspect.Parameter]:
        """Return one parameter of the command an option; fields annotated for typer stand as they are."""
        if self.options:
            helps = {} if self.only is None else self.only.help
            return [_parameter(each, self.options, helps.get(each.field, each.help)) for each in self.options]
        hints = get_type_hints(self.kind, include_extras=True)
        return [
            _keyword(each.name, _default(each), _in_section(hints[each.name])) for each in dataclasses.fields(self.kind)
        ]

    def make(self, values: dict[str, Any]) -> Any:
        """Return the dataclass of the values of its fields, and remove these from `values`."""
        if not self.options:
            return self.kind(**{field.name: values.pop(field.name) for field in dataclasses.fields(self.kind)})
        return build(self.kind, {each.field: each.value(values.pop(each.field)) for each in self.options})


def _dataclass_of(annotation: Any) -> Any | None:
    kind = get_args(annotation)[0] if hasattr(annotation, "__metadata__") else annotation
    return kind if isinstance(kind, type) and dataclasses.is_dataclass(kind) else None


def expand(function: Callable[..., None]) -> Callable[..., None]:
    """Return `function` with each parameter that is a dataclass replaced by that dataclass's options.

    A dataclass whose fields are annotated for typer is the command's own: an option that it or the function has by a
    name is not taken from another dataclass.
    """
    own = inspect.signature(function, eval_str=True).parameters
    kinds = {name: kind for name, each in own.items() if (kind := _dataclass_of(each.annotation)) is not None}
    taken = {
        *own,
        *(each.name for kind in kinds.values() if not list_declared(kind) for each in dataclasses.fields(kind)),
    }
    groups = {name: _Group.of(own[name].annotation, kind, taken) for name, kind in kinds.items()}
    parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for name, p in own.items() if name not in groups]
    for group in groups.values():
        parameters += group.parameters()

    @functools.wraps(function)
    def expanded(**values: Any) -> None:
        arguments = {name: group.make(values) for name, group in groups.items()}
        function(**values, **arguments)

    signature = inspect.Signature(parameters)
    expanded.__signature__ = signature  # type: ignore[attr-defined]
    expanded.__annotations__ = {p.name: p.annotation for p in parameters}
    del expanded.__wrapped__
    return expanded


def _parameter(each: Declared, others: list[Declared], text: str) -> inspect.Parameter:
    """Return the option as typer takes it; choices are text, so that the dataclass refuses others in its own words."""
    option = each.option
    metavar = option.metavar or "|".join(each.choices) or None
    help_text = write_as_flags(text, {other.field: flag(other) for other in others})
    info = typer.Option(*flags(each), metavar=metavar, help=help_text, min=option.least, rich_help_panel=each.section)
    kind, nullable, default = each.kind, each.nullable, each.default
    if each.kind is bool:
        default = False
    elif option.parse is not None:
        kind = list[str] if option.repeated else str
        nullable, default = option.text is None, option.text
    elif each.choices:
        kind = str
    return _keyword(each.field, default, Annotated[kind | None if nullable else kind, info])


def _in_section(annotation: Any) -> Any:
    """Return a field's annotation for typer, its option in the section that the annotation names."""
    section = section_of(annotation)
    if section is None:
        return annotation
    kind, info = get_args(annotation)[:2]
    info = copy.copy(info)
    info.rich_help_panel = section
    return Annotated[kind, info]


def _default(each: dataclasses.Field[Any]) -> Any:
    return inspect.Parameter.empty if each.default is dataclasses.MISSING else each.default


def _keyword(name: str, default: Any, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
