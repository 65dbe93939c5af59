"""An option is one field of a dataclass: name, type and default are Python's, an `Option` in its annotation the rest.

The command line (`ddpsim.cli.expand`), a campaign's YAML (`keys`) and the provenance of a run (`option_values`) are
made from these declarations: whoever adds an option adds one field. The checks at the end (`check_choices`, ...)
are shared by the dataclasses' `__post_init__`; their errors name the option as Python does, and the command line turns
that into the flag.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from enum import StrEnum
from numbers import Integral, Real
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from ddpsim.common.errors import InputError

Parse = Callable[[Any, str], Any]
Class = TypeVar("Class", bound=type)


class Section(StrEnum):
    """Where a long help shows an option, in this order: `Annotated[int, Option("..."), Section.MACHINE]`."""

    JOB = "Job"
    MACHINE = "Machine"
    BUCKETS = "Buckets and schemes"
    WHAT_IF = "What if"
    COST = "Cost and deadline"
    COMPUTED = "How it is computed"
    OUTPUT = "Output"


@dataclass(frozen=True, slots=True)
class Option:
    """The part of an option's declaration that is not in its field's type and default."""

    help: str
    """One line."""
    metavar: str | None = None
    """Stands for the value in the help; None where the choices of a `Literal` do."""
    name: str | None = None
    """Its name on the command line where that is not the field's: `impl`, `straggler`, `no_stamps`."""
    also: tuple[str, ...] = ()
    """Other names of it."""
    least: int | None = None
    """Smallest whole number, checked by the parser of the command line."""
    parse: Parse | None = None
    """Returns the value of a text, with the field's name for errors; None where the type suffices."""
    repeated: bool = False
    """Whether the option may occur several times, and `parse` takes the list of texts."""
    text: str | None = None
    """The default as text, for an option with `parse`."""
    off: str | None = None
    """Help of the flag that switches it off, for an option that is on by default."""


def plain_signature(kind: Class) -> Class:
    """Return the dataclass with its options' types in the constructor's signature, without their `Option`s.

    `help` then has `bucket_cap_mb: float | None` where the field is `Annotated[float | None, Option(...)]`.
    """
    shown = vars(kind)["__init__"].__annotations__
    for name, text in shown.items():
        shown[name] = str(text).removeprefix("Annotated[").partition(", Option(")[0]
    return kind


@dataclass(frozen=True, slots=True)
class Declared:
    """An option with all of its declaration: the field's, and its `Option`."""

    field: str
    """Its name in Python and in the provenance."""
    kind: Any
    """Type of its values but None: of `int | None` it is int."""
    nullable: bool
    """Whether None is a value."""
    default: Any
    option: Option
    section: Section | None = None
    """Of a long help; None stands before all of them."""

    @property
    def choices(self) -> tuple[str, ...]:
        """The values of a `Literal`; none where any will do."""
        return get_args(self.kind) if get_origin(self.kind) is Literal else ()

    @property
    def switched_off(self) -> bool:
        """Whether the option is on by default, and its flag switches it off."""
        return self.kind is bool and bool(self.default)

    @property
    def help(self) -> str:
        """The help of the flag; of one that switches off, of doing that."""
        return (self.option.off if self.switched_off else None) or self.option.help

    @property
    def name(self) -> str:
        """How people write it, with underscores."""
        return self.option.name or (f"no_{self.field}" if self.switched_off else self.field)

    def value(self, parsed: Any) -> Any:
        """Return the field's value for one that the command line's parser returns.

        Raises:
            InputError: text that cannot be read.
        """
        if self.switched_off:
            return not parsed
        if self.option.parse is None:
            return parsed
        return self.default if parsed is None else self.option.parse(parsed, self.field)


@functools.cache
def list_declared(kind: Any) -> tuple[Declared, ...]:
    """Return the options that the dataclass `kind` declares, those of dataclasses among its fields in their place."""
    return tuple(_list_declared(kind))


def build(kind: Any, values: Mapping[str, Any]) -> Any:
    """Return a `kind` of option values by field name; options that are left out keep their defaults.

    Raises:
        InputError: values out of range, or in contradiction.
    """
    own = {field.name: _find_inner(kind, field) for field in fields(kind)}
    arguments = {name: build(inner, values) for name, inner in own.items() if inner is not None}
    return kind(**arguments, **{name: values[name] for name in own.keys() & values.keys()})


def option_values(options: Any) -> dict[str, Any]:
    """Return the value of every option of `options`, a dataclass, by field name.

    >>> from ddpsim.bucketing import BucketCaps
    >>> option_values(BucketCaps(bucket_cap_mb=5))
    {'bucket_cap_mb': 5, 'first_bucket_mb': None, 'bucket_cap_mb_list': None}
    """
    values: dict[str, Any] = {}
    mine = {each.field for each in list_declared(options.__class__)}
    for field in fields(options):
        value = getattr(options, field.name)
        if _find_inner(type(options), field) is not None:
            values |= option_values(value)
        elif field.name in mine:
            values[field.name] = value
    return values


def _list_declared(kind: Any) -> Iterator[Declared]:
    hints = _hints(kind)
    for field in fields(kind):
        hint = hints[field.name]
        if (inner := _find_inner(kind, field)) is not None:
            yield from list_declared(inner)
        for option in getattr(hint, "__metadata__", ()):
            if isinstance(option, Option):
                value, nullable = _without_none(get_args(hint)[0])
                yield Declared(field.name, value, nullable, default_of(field), option, section_of(hint))


def section_of(annotation: Any) -> Section | None:
    """Return the section that an annotation names."""
    return next((mark for mark in getattr(annotation, "__metadata__", ()) if isinstance(mark, Section)), None)


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


def _find_inner(kind: Any, field: Field[Any]) -> type | None:
    """Return the type of a field that is a dataclass of options itself."""
    hint = _hints(kind)[field.name]
    return hint if isinstance(hint, type) and is_dataclass(hint) and list_declared(hint) else None


def _without_none(hint: Any) -> tuple[Any, bool]:
    if get_origin(hint) not in (Union, types.UnionType):
        return hint, False
    (kind,) = (each for each in get_args(hint) if each is not type(None))
    return kind, True


def default_of(field: Field[Any]) -> Any:
    """Return the value of a dataclass's field where none is given."""
    return field.default if field.default_factory is MISSING else field.default_factory()


LARGEST_FACTOR = 1e9
"""Largest factor on any time; its inverse is the smallest."""


_KINDS: Mapping[Any, tuple[type, str]] = {
    int: (Integral, "a whole number, e.g. 4"), float: (Real, "a number, e.g. 1.5"), bool: (bool, "True or False"),
    str: (str, "a text, as the command line takes it"),
}  # fmt: skip
"""Abstract type of an option's values by its declared type, and in words."""


def check_choices(options: Any) -> None:
    """Raise InputError unless each option of `options` has its type, and is one of its names where it has some."""
    for each in list_declared(options.__class__):
        value = getattr(options, each.field, None)
        kind, words = _KINDS.get(each.kind, (object, ""))
        if value is None and each.nullable:
            continue
        if not isinstance(value, kind):
            raise InputError(f"{value!r} is of type {type(value).__name__}", place=each.field, remedy=f"give {words}")
        if each.choices and value not in each.choices:
            remedy = f"use one of {', '.join(each.choices)}"
            raise InputError(f"unknown value {value!r}", place=each.field, remedy=remedy)


def check_at_least_one(name: str, count: int, most: int | None = None) -> None:
    """Raise InputError for a count below 1, or above `most`."""
    if count < 1:
        raise InputError(f"{count} is not a count", place=name, remedy="give 1 or more")
    if most is not None and count > most:
        raise InputError(f"{count} are too many", place=name, remedy=f"give at most {most}")


def positive(name: str, factor: float) -> None:
    """Raise InputError for a factor that is not above 0, or is of no real machine."""
    if not 0 < factor < float("inf"):
        raise InputError(f"{factor!r} is not a factor", place=name, remedy="give a number above 0, e.g. 1.5")
    if not 1 / LARGEST_FACTOR <= factor <= LARGEST_FACTOR:
        remedy = f"give a number from {1 / LARGEST_FACTOR:g} to {LARGEST_FACTOR:g}, e.g. 1.5"
        raise InputError(f"{factor!r} is out of range", place=name, remedy=remedy)


def check_given(what: str, values: Sequence[object]) -> None:
    """Raise InputError for a list of values without any."""
    if not values:
        raise InputError("nothing is given", place=what, remedy="give at least one")
